"""The plan of a study: its parts, their order, and what is refused."""

import io
import itertools
import json
import random

import pytest
from rich.console import Console

from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.runtime.flags import parse_config
from truenegs_jax.study import check_parts, flops, parts, plan, run

DEMO = {
  "base": "electra_demo:runlocal",
  "arms": "baseline=baseline mask=hc,masking.prob=0.25",
  "seeds": 2,
  "tasks": "mrpc squad1",
  "robustness": "robustness.sets=typos",
  "corrections": "corrections.text=wordnet",
}


@pytest.fixture
def console():
  return Console(file=io.StringIO(), width=200, markup=False)


def make_config(**changes):
  values = {**DEMO, **changes}
  flags = [f"--config.study.{name}={x}" for name, x in values.items()]
  return parse_config(["--config=study", *flags])


def make_parts(root, **changes):
  options = plan.StudyOptions.from_config(make_config(**changes))
  return plan.make_parts(options, root)


def dry_run(root, console, **changes):
  c = make_config(**changes)
  c.dry_run = True
  assert run.run(c, root, console) == 0
  return console.file.getvalue()


@pytest.mark.parametrize("seed", range(4))
def test_whole_comparisons_come_early_and_jobs_have_each_part_once(
  tmp_path, seed
):
  rng = random.Random(seed)
  arms = [f"a{i}={rng.choice(['hc', 'sr'])}" for i in range(rng.randint(1, 4))]
  tasks = rng.sample(["mrpc", "rte", "squad1"], rng.randint(0, 3))
  study = make_parts(
    tmp_path,
    arms=" ".join(arms),
    seeds=(seeds := rng.randint(1, 3)),
    tasks=" ".join(tasks),
    robustness="robustness.sets=typos" if "squad1" in tasks else "",
    corrections=rng.choice(["", "corrections.text=wordnet"]),
  )
  names = list(dict.fromkeys(part.name for part in study))
  assert names[: len(tasks) + 1] == ["pretrain", *tasks]
  order = [(part.seed, part.name, part.arm) for part in study]
  arm_names = [arm.partition("=")[0] for arm in arms]
  assert order == list(itertools.product(range(seeds), names, arm_names))
  count = rng.randint(1, 5)
  shards = [plan.select_shard(study, (i, count)) for i in range(count)]
  keys = [part.key for shard in shards for part in shard]
  assert sorted(keys) == sorted(part.key for part in study)
  for shard in shards:
    done = set()
    for part in shard:
      assert not part.needs or part.needs_key in done
      done.add(part.key)


def test_commands_have_the_words_values_and_seeds_of_their_arm(tmp_path):
  study = make_parts(
    tmp_path, overrides="steps=40 'data.sources=a b.txt'", finetune_seeds=2
  )
  by_key = {part.key.removeprefix("runs/"): part for part in study}
  part = by_key["mask/seed-1/pretrain"]
  c = check_parts.parse_part(part)
  assert (c.steps, c.seed, c.masking.prob) == (40, 1, 0.25)
  assert c.negatives.hard_correction and c.data.sources == "a b.txt"
  assert part.command[-1] == f"--workdir={tmp_path / part.key}"
  folder = str(tmp_path / "runs/mask/seed-1")
  part = by_key["mask/seed-1/squad1"]
  c = check_parts.parse_part(part)
  assert (c.init, c.seed, c.finetune.seeds) == (f"{folder}/pretrain", 0, 2)
  assert part.outputs == tuple(f"squad/seed-{n}/result.json" for n in (0, 1))
  assert check_parts.parse_part(by_key["mask/seed-1/robustness"]).init.endswith(
    "seed-1/squad1"
  )
  c = check_parts.parse_part(by_key["mask/seed-1/corrections"])
  assert c.corrections.run == f"{folder}/pretrain"


def test_arms_read_the_artificial_language_of_their_seed(tmp_path, console):
  changes = {
    "base": "artificial",
    "arms": "a=hc 'b=hc,negatives.sources=pairs path={language}/other.tsv'",
    "overrides": "steps=200",
    "synonyms": "50",
    **dict.fromkeys(("tasks", "corrections", "robustness"), ""),
  }
  study = make_parts(tmp_path, **changes)
  trained = [part for part in study if part.name == plan.PRETRAIN]
  languages = tmp_path / "languages/synonyms-50"
  for part in trained:
    c = check_parts.parse_part(part)
    folder = languages / f"seed-{part.seed}"
    assert c.data.sources == f"{folder}/text.txt"
    assert c.data.vocab == f"{folder}/vocab.txt"
    name = {"a": "lexicon-100-100.tsv", "b": "other.tsv"}[part.arm]
    assert c.negatives.sources == f"pairs path={folder}/{name}"
  assert trained[0].config == trained[2].config
  measured = [part for part in study if part.name == plan.MEASURES]
  assert f"--folder={languages}/seed-1" in measured[-1].command
  assert measured[-1].needs_key == trained[-1].key
  start(tmp_path, **changes)
  dry_run(tmp_path, console, **changes)
  with pytest.raises(CheckpointError, match="synonyms-50.*synonyms-60"):
    dry_run(tmp_path, console, **{**changes, "synonyms": "60"})


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"arms": "a=hcc"}, "study.arms, 'a'.*'hcc' is unknown"),
    ({"arms": "a=hc,sr"}, "several recipes"),
    ({"arms": "a=hc,masking.rate=0.2"}, "no flag --config.masking.rate"),
    ({"arms": "a=hc,masking.prob=2"}, "'a'.*masking.prob=2.0 is out of range"),
    ({"arms": "a=hc,steps=many"}, "'a'.*steps='many' must be"),
    ({"arms": "a=hc,seed=1"}, "arms: a: seed cannot be set"),
    ({"arms": "a=hc A=sr"}, "has 'a' twice"),
    ({"arms": "../a=hc"}, "not of the form NAME=WORDS"),
    ({"arms": "hc"}, "not of the form NAME=WORDS"),
    ({"arms": ""}, "has no arm"),
    ({"arms": "a='hc"}, "quote"),
    ({"base": "electra"}, "no packaged config"),
    ({"base": "corrections"}, "study.base has task='corrections'"),
    ({"overrides": "steps"}, "study.overrides: 'steps' is not of the form"),
    ({"overrides": "minutes=3"}, "minutes cannot be set"),
    ({"overrides": "init=no/such/one"}, "'baseline'.*no folder 'no/such"),
    ({"overrides": "optim.warmup_steps=99"}, "as long as the run"),
    ({"tasks": "mrpc wnli"}, "study.tasks: 'wnli' is unknown.*squad1"),
    ({"tasks": "mrpc rte"}, "fine-tuned on squad1, which is not in study.ta"),
    ({"finetune": "finetune.stride=9"}, "study.finetune: There is no flag"),
    ({"finetune": "finetune.patience=1"}, "study.finetune: finetune.patience"),
    ({"finetune": "finetune.files=a.dev=b"}, "study.finetune: finetune.files"),
    ({"corrections": "length=0"}, "study.corrections: "),
    ({"robustness": "robustness.rows=-1"}, "study.robustness: robustness.rows"),
    ({"robustness": "robustness.task=rte"}, "fine-tuned on rte"),
    ({"synonyms": "half"}, "study.synonyms='half' is not a percentage"),
    ({"synonyms": "101"}, "study.synonyms='101' is not a percentage"),
    ({"seeds": 0}, "study.seeds=0 is out of range"),
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
    record = {"config": part.config, "secs": 0.0}
    (root / part.key / parts.RECORD).write_text(json.dumps(record))


@pytest.mark.parametrize(
  "changes, expected",
  [
    ({"overrides": "masking.prob=0.3"}, "masking.prob: 0.25 -> 0.3"),
    ({"base": "electra_demo"}, "steps: 20 -> 1500"),
    ({"overrides": "init=weights"}, "init: '' -> 'weights'"),
    ({"finetune": "finetune.data=glue"}, "finetune.data: 'hf:.*' -> 'glue'"),
    ({"arms": "baseline=hc"}, "hard_correction: False -> True"),
    ({"robustness": "robustness.rows=9"}, "robustness.rows: 300 -> 9"),
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
    arms="baseline=baseline new=sr",
    tasks="squad1 rte",
  )
  # mrpc of two seeds, and the 5 parts of both seeds of an arm.
  assert "left as they are: 12 folders" in text
  assert f"'{tmp_path}/runs/baseline/seed-0/mrpc'" in text


def test_a_dry_run_prints_flops_counts_and_the_next_part(tmp_path, console):
  text = dry_run(tmp_path, console, shard="1/4")
  assert not list(tmp_path.iterdir())
  rows = [x.replace("│", " ").split() for x in text.splitlines()]
  cells = {x[0]: x[1:] for x in rows if x and x[0] in ("baseline", "mask")}
  for steps, trained, tuned, all_seeds, _ in cells.values():
    assert steps == "20" and float(trained) > 1e6
    total = 2 * (float(trained) + float(tuned))
    assert float(all_seeds) == pytest.approx(total, rel=1e-2)
  assert "pretrain 0/4, mrpc 0/4, squad1 0/4" in text
  assert "all jobs" in text and "20 parts: 20 missing" in text
  assert "5 parts: 5 missing" in text
  assert "runs/mask/seed-0/pretrain" in text


def test_the_compute_of_fine_tunings_is_that_of_their_rows(tmp_path):
  study = make_parts(tmp_path, tasks="mrpc rte squad1", finetune_seeds=2)
  configs = [check_parts.parse_part(x) for x in study if x.seed == 0]
  run_of_arm = flops.resolve_run(configs[0])
  mrpc, rte, questions = (
    flops.count_finetuning(c, run_of_arm) for c in configs[2:8:2]
  )
  # 3 epochs of both orders, 10 epochs; 4 times the length costs more than that.
  assert mrpc / rte == pytest.approx(3 * 2 * 3_668 / (10 * 2_490))
  assert questions / mrpc > 4 * 2 * 87_599 / (3 * 2 * 3_668)
  config = next(iter(run_of_arm.model.roles.values()))
  parameters = config.layers * (
    4 * config.width**2 + 2 * config.width * config.ffn
  )
  least = 6 * parameters * 128 * 2 * 10 * 2_490  # 6 per parameter and token
  assert least < rte < 3 * least  # attention is much of a tiny network


def test_the_packaged_study_has_the_papers_tables(tmp_path):
  options = plan.StudyOptions.from_config(parse_config(["--config=study"]))
  study = plan.make_parts(options, tmp_path)
  assert len(study) == 3 * 4 * 10
  assert [arm.name for arm in options.arms] == ["baseline", "hc", "sr", "hc+sr"]
  for name, count in {
    "study:runlocal": 2 * 2 * 2,
    "study_small": 10 * 6 * 12,
    "study_small:len512": 10 * 6 * 3,
  }.items():
    options = plan.StudyOptions.from_config(parse_config([f"--config={name}"]))
    assert len(plan.make_parts(options, tmp_path)) == count
