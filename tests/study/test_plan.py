"""The plan of a study: its parts, their order, and what is refused."""

import io
import itertools
import random

import pytest
from rich.console import Console

from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.tables import Study
from truenegs_jax.configs import study as study_config
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.study import parts as parts_lib
from truenegs_jax.study import run

DEMO = {
  "base": "electra_demo:runlocal",
  "arms": {
    "baseline": {"words": "baseline"},
    "mask": {"words": "hc", "masking.prob": 0.25},
  },
  "seeds": 2,
  "tasks": "mrpc,squad1",
  "robustness": {"robustness.sets": "swap_synonyms"},
  "corrections": {"corrections.text": "wordnet"},
}


@pytest.fixture
def console():
  return Console(file=io.StringIO(), width=200, markup=False)


def make_config(**changes):
  c = study_config.get_config()
  for name, value in {**DEMO, **changes}.items():
    c.study[name] = value
  return c


def parse(part):
  """Returns the config that a part's process gets."""
  return parse_config([x for x in part.command if x.startswith("--config")])


def make_parts(root, **changes):
  study = Study.read(make_config(**changes).study.to_dict())
  return parts_lib.make_parts(study, root)


def dry_run(root, console, **changes):
  c = make_config(**changes)
  c.dry_run = True
  assert run.run(c, root, console) == 0
  return console.file.getvalue()


@pytest.mark.parametrize("seed", range(2))
def test_whole_comparisons_come_early(tmp_path, seed):
  rng = random.Random(seed)
  arms = {
    f"a{i}": {"words": rng.choice(["hc", "sr"])}
    for i in range(rng.randint(1, 4))
  }
  tasks = rng.sample(["mrpc", "rte", "squad1"], rng.randint(0, 3))
  study = make_parts(
    tmp_path,
    arms=arms,
    seeds=(seeds := rng.randint(1, 3)),
    tasks=",".join(tasks),
    robustness=DEMO["robustness"] if "squad1" in tasks else {},
    corrections=rng.choice([{}, DEMO["corrections"]]),
  )
  names = list(dict.fromkeys(part.name for part in study))
  assert names[: len(tasks) + 1] == ["pretrain", *tasks]
  order = [(part.seed, part.name, part.arm) for part in study]
  assert order == list(itertools.product(range(seeds), names, arms))
  done = set()
  for part in study:
    assert part.needs in (done if part.name != "pretrain" else [""])
    done.add(part.key)


def test_commands_have_the_words_values_and_seeds_of_their_arm(tmp_path):
  study = make_parts(
    tmp_path,
    overrides={"steps": 40, "data.sources": "'a {seed}.txt'"},
    finetune_seeds=2,
  )
  by_key = {part.key.removeprefix("runs/"): part for part in study}
  part = by_key["mask/seed-1/pretrain"]
  c = parse(part)
  assert (c.steps, c.seed, c.masking.prob) == (40, 1, 0.25)
  assert c.negatives.hard_correction and c.data.sources == "'a 1.txt'"
  assert part.command[-1] == f"--workdir={tmp_path / part.key}"
  folder = str(tmp_path / "runs/mask/seed-1")
  part = by_key["mask/seed-1/squad1"]
  c = parse(part)
  assert (c.init, c.seed, c.finetune.seeds) == (f"{folder}/pretrain", 0, 2)
  assert part.outputs == tuple(f"squad/seed-{n}/result.json" for n in (0, 1))
  assert parse(by_key["mask/seed-1/robustness"]).init.endswith("seed-1/squad1")
  c = parse(by_key["mask/seed-1/corrections"])
  assert c.corrections.run == f"{folder}/pretrain"


@pytest.mark.parametrize(
  "changes, message",
  [
    (
      {"arms": {"a": {"words": "hcc"}}},
      "study.arms, 'a'.*'hcc' is unknown",
    ),
    (
      {"arms": {"a": {"masking.prob": 2.0}}},
      "masking.prob=2.0 is out of",
    ),
    (
      {"arms": {"a": {"masking.prop": 0.2}}},
      "no flag.*masking.prob",
    ),
    (
      {"arms": {"a": {"masking.prob": "x"}}},
      "masking.prob=x: could not convert",
    ),
    (
      {"arms": {"a": {"seed": 1}}},
      "study.arms, 'a'.*: seed cannot be set",
    ),
    (
      {"arms": {"a": {}, "A": {}}},
      "'[aA]' is no name of a folder of its own",
    ),
    ({"arms": {"a b": {}}}, "'a b' is no name of a folder"),
    (
      {"arms": {"a": "hc"}},
      "'a' has 'hc'. Set a dict of keys",
    ),
    ({"arms": {}}, "has no arm"),
    ({"base": "corrections"}, "study.base has task='corrections'"),
    ({"tasks": "mrpc,wnli"}, "study.tasks='wnli' is unknown.*squad1"),
    ({"tasks": "mrpc,rte"}, "fine-tuned on squad1, which is not in study.ta"),
    ({"finetune": {"finetune.window": 0}}, "study.finetune: finetune.win"),
  ],
)
def test_mistakes_are_refused_before_anything_is_written(
  tmp_path, console, changes, message
):
  root = tmp_path / "study"
  with pytest.raises(InputError, match=f"(?s){message}"):
    run.run(make_config(**changes), root, console)
  assert not root.exists()


def start(root):
  """Writes what a study saves when it starts."""
  (root / "config.json").write_text(make_config().to_json())


@pytest.mark.parametrize(
  "changes, expected",
  [
    ({"overrides": {"masking.prob": 0.3}}, "study.overrides"),
    ({"finetune": {"finetune.data": "glue"}}, "study.finetune"),
    ({"arms": {"mask": {"words": "sr"}}}, "arms.mask.words: 'hc' -> 'sr'"),
  ],
)
def test_changed_values_of_a_study_are_refused(
  tmp_path, console, changes, expected
):
  start(tmp_path)
  with pytest.raises(CheckpointError, match=f"(?s){expected}"):
    dry_run(tmp_path, console, **changes)


def test_a_study_may_grow_and_shrink(tmp_path, console):
  start(tmp_path)
  text = dry_run(
    tmp_path,
    console,
    seeds=3,
    finetune_seeds=9,
    arms={"baseline": {"words": "baseline"}, "new": {"words": "sr"}},
    tasks="squad1,rte",
  )
  assert "mrpc" not in text and "rte" in text


def test_the_packaged_study_has_the_papers_tables(tmp_path):
  for name, count in {
    "study": 3 * 4 * 10,
    "study:runlocal": 2 * 2 * 2,
    "study_small": 10 * 6 * 12,
    "study_small:len512": 10 * 6 * 3,
  }.items():
    c = parse_config([f"--config={name}"]).study
    study = Study.read(c.to_dict())
    assert len(parts_lib.make_parts(study, tmp_path)) == count


def test_the_workdir_of_a_pretraining_is_refused(tmp_path, console):
  (tmp_path / "checkpoints").mkdir()
  with pytest.raises(InputError, match="results would be replaced"):
    dry_run(tmp_path, console)
