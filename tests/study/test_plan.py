"""The plan of a study: its parts, their order, and what is refused."""

import io
import itertools
import json
import random

import pytest
from rich.console import Console

from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.tables import Study
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.study import drive, plan, run

DEMO = {
  "base": "electra_demo:runlocal",
  "arms": "baseline=baseline; mask=hc masking.prob=0.25",
  "seeds": 2,
  "tasks": "mrpc,squad1",
  "robustness": "robustness.sets=swap_synonyms",
  "corrections": "corrections.text=wordnet",
}


@pytest.fixture
def console():
  return Console(file=io.StringIO(), width=200, markup=False)


def make_config(**changes):
  values = {**DEMO, **changes}
  flags = [f"--config.study.{name}={x}" for name, x in values.items()]
  return parse_config(["--config=study", *flags])


def parse(part):
  """Returns the config that a part's process gets."""
  return parse_config([x for x in part.command if x.startswith("--config")])


def make_parts(root, **changes):
  study = Study.read(make_config(**changes).study)
  return plan.make_plan(study, root).parts


def dry_run(root, console, **changes):
  c = make_config(**changes)
  c.dry_run = True
  assert run.run(c, root, console) == 0
  return console.file.getvalue()


@pytest.mark.parametrize("seed", range(2))
def test_whole_comparisons_come_early_and_jobs_have_each_part_once(
  tmp_path, seed
):
  rng = random.Random(seed)
  arms = [f"a{i}={rng.choice(['hc', 'sr'])}" for i in range(rng.randint(1, 4))]
  tasks = rng.sample(["mrpc", "rte", "squad1"], rng.randint(0, 3))
  study = make_parts(
    tmp_path,
    arms="; ".join(arms),
    seeds=(seeds := rng.randint(1, 3)),
    tasks=",".join(tasks),
    robustness="robustness.sets=swap_synonyms" if "squad1" in tasks else "",
    corrections=rng.choice(["", "corrections.text=wordnet"]),
  )
  names = list(dict.fromkeys(part.name for part in study))
  assert names[: len(tasks) + 1] == ["pretrain", *tasks]
  order = [(part.seed, part.name, part.arm) for part in study]
  arm_names = [arm.partition("=")[0] for arm in arms]
  assert order == list(itertools.product(range(seeds), names, arm_names))
  count = rng.randint(1, 5)
  shards = [plan.select_shard(study, f"{i}/{count}") for i in range(count)]
  keys = [part.key for shard in shards for part in shard]
  assert sorted(keys) == sorted(part.key for part in study)
  for shard in shards:
    done = set()
    for part in shard:
      needed = plan.part_key(part.arm, part.seed, part.needs)
      assert not part.needs or needed in done
      done.add(part.key)


def test_commands_have_the_words_values_and_seeds_of_their_arm(tmp_path):
  study = make_parts(
    tmp_path, overrides="steps=40 data.sources='a {seed}.txt'", finetune_seeds=2
  )
  by_key = {part.key.removeprefix("runs/"): part for part in study}
  part = by_key["mask/seed-1/pretrain"]
  c = parse(part)
  assert (c.steps, c.seed, c.masking.prob) == (40, 1, 0.25)
  assert c.negatives.hard_correction and c.data.sources == "a 1.txt"
  assert part.config == by_key["mask/seed-0/pretrain"].config  # with {seed}
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
    ({"arms": "a=hcc"}, "study.arms, 'a'.*'hcc' is unknown"),
    ({"arms": "a=hc masking.prob=2"}, "'a'.*masking.prob=2.0 is out of range"),
    ({"arms": "a=hc seed=1"}, "study.arms, 'a'.*: seed cannot be set"),
    ({"arms": "a=hc; A=sr"}, "has 'A' twice"),
    ({"arms": "../a=hc"}, "'../a=hc' is not of the form NAME=WORDS"),
    ({"arms": "; "}, "has no arm"),
    ({"arms": "a='hc"}, "quote"),
    ({"base": "corrections"}, "study.base has task='corrections'"),
    ({"overrides": "steps"}, "study.overrides: 'steps' is not of the form"),
    ({"tasks": "mrpc,wnli"}, "study.tasks='wnli' is unknown.*squad1"),
    ({"tasks": "mrpc,rte"}, "fine-tuned on squad1, which is not in study.ta"),
    ({"finetune": "finetune.window=0"}, "study.finetune: finetune.window"),
    ({"shard": "2/2"}, "--config.study.shard=2/2 is not a job"),
  ],
)
def test_mistakes_are_refused_before_anything_is_written(
  tmp_path, console, changes, message
):
  root = tmp_path / "study"
  with pytest.raises(InputError, match=f"(?s){message}"):
    run.run(make_config(**changes), root, console)
  assert not root.exists()


def start(root, **changes):
  """Writes what the parts of a study leave when they start."""
  for part in make_parts(root, **changes):
    (root / part.key).mkdir(parents=True, exist_ok=True)
    record = json.dumps({"config": part.config})
    (root / part.key / drive.RECORD).write_text(record)


@pytest.mark.parametrize(
  "changes, expected",
  [
    ({"overrides": "masking.prob=0.3"}, "masking.prob: 0.25 -> 0.3"),
    ({"overrides": "init=weights"}, "init: '' -> 'weights'"),
    ({"finetune": "finetune.data=glue"}, "finetune.data: 'hf:.*' -> 'glue'"),
  ],
)
def test_changed_values_of_parts_are_refused(
  tmp_path, console, changes, expected
):
  start(tmp_path)
  with pytest.raises(CheckpointError, match=f"(?s)baseline.*{expected}"):
    dry_run(tmp_path, console, **changes)


def test_a_study_may_grow_and_shrink(tmp_path, console):
  start(tmp_path)
  text = dry_run(
    tmp_path,
    console,
    seeds=3,
    finetune_seeds=9,
    overrides="log.every_steps=7",
    arms="baseline=baseline; new=sr",
    tasks="squad1,rte",
  )
  assert "mrpc" not in text and "rte" in text


def test_the_packaged_study_has_the_papers_tables(tmp_path):
  study = Study.read(parse_config(["--config=study"]).study)
  planned = plan.make_plan(study, tmp_path)
  assert planned.arms == ["baseline", "hc", "sr", "hc+sr"]
  assert len(planned.parts) == 3 * 4 * 10
  for name, count in {
    "study:runlocal": 2 * 2 * 2,
    "study_small": 10 * 6 * 12,
    "study_small:len512": 10 * 6 * 3,
  }.items():
    study = Study.read(parse_config([f"--config={name}"]).study)
    assert len(plan.make_plan(study, tmp_path).parts) == count
