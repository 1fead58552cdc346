"""Runs the task "study": pre-trains, fine-tunes and measures several recipes.

config -> parts -> each part as a process of `truenegs_jax.main` -> scores
-> tables and curves

Whoever starts the same command does what is missing. Scores are the same
whether parts were stopped and resumed or not; seconds and paths are not among
them.
"""

import collections
import dataclasses
import functools
import json
import pathlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config import grammar
from truenegs_jax.config.tables import Study
from truenegs_jax.corrections.rates import find_table_2
from truenegs_jax.finetune import results
from truenegs_jax.report.page import print_table
from truenegs_jax.report.write import write_own_report
from truenegs_jax.robustness.eval_set import ORIGINAL, TRANSFORMED
from truenegs_jax.robustness.scores import DROP, SIDES
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.files import disk_errors, read_results
from truenegs_jax.study import parts as parts_lib
from truenegs_jax.study import tables
from truenegs_jax.study.compare import Score
from truenegs_jax.study.parts import Part, State, States
from truenegs_jax.study.tables import Comparison
from truenegs_jax.tasks import scoring
from truenegs_jax.tasks.task import SQUAD
from truenegs_jax.workdir import files, metrics_file

MakeScore = Callable[..., Score]  # a Score without `arm` and `seed`


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Runs missing parts, prints and saves scores; returns the exit code."""
  say = functools.partial(console.print, soft_wrap=True)
  files.check_no_run(workdir, c.task)
  files.check_checkpoint_folder(workdir / files.CHECKPOINTS)
  study = Study.read(c.study.to_dict())
  parts = parts_lib.make_parts(study, workdir)
  arms = parts_lib.check_unchanged(study, workdir)
  if c.dry_run:
    _print_plan(parts, parts_lib.read_states(parts, workdir), say)
    return 0
  with disk_errors(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
  config = json.loads(c.to_json())
  # With the arms that are left out now. The same command on other machines may
  # write these files, too.
  section = config["study"] | {"arms": arms | config["study"]["arms"]}
  kept = config | {"study": section}
  files.save_json(workdir / files.CONFIG, kept, several_writers=True)
  code = parts_lib.run_parts(parts, workdir, console)
  states = parts_lib.read_states(parts, workdir)
  say(parts_lib.describe_progress(states))
  if code in errors.SIGNAL_CODES.values():
    say(f"To continue, run the same command again: {errors.rerun_command()}")
  else:
    report(study, parts, states, config, workdir, console)
  return code


def _print_plan(
  parts: Sequence[Part], states: States, say: Callable[..., object]
) -> None:
  """Prints what is done, and the flags of main for each missing part."""
  say("dry run: reads no text; writes and runs nothing")
  say(f"study: {parts_lib.describe_progress(states)}")
  for part in parts:
    if states[part.key] in parts_lib.OPEN:
      flags = shlex.join(part.command[len(parts_lib.MAIN) :])
      say(f"{part.key}: {flags}", markup=False)


def report(
  study: Study,
  parts: Sequence[Part],
  states: States,
  config: Mapping[str, Any],
  workdir: pathlib.Path,
  console: Console,
) -> None:
  """Prints the tables; saves them and all scores in results.json."""
  say = functools.partial(console.print, soft_wrap=True)
  done = [part for part in parts if states[part.key] == State.DONE]
  collected, fields = collect_scores(done, workdir)
  names = grammar.parse_names(study.tasks, key="study.tasks")
  comparison = Comparison(
    scores=collected,
    arms=[*study.arms],
    seeds=range(study.seeds),
    tasks=[parts_lib.TASKS[name][1] for name in names],
    finetune_seeds=range(study.finetune_seeds),
    **fields,
  )
  shown = tables.make_tables(comparison)
  for x in shown:
    print_table(x, console)
  has_failed = (State.FAILED, State.DIVERGED)
  failed = [part for part in parts if states[part.key] in has_failed]
  failures = [parts_lib.describe_failure(x, workdir) for x in failed]
  for text in failures:
    say(text)
  # Without the scores of examples: the parts' folders have the answers.
  scores = [dataclasses.replace(x, correct_N=None) for x in collected]
  value = {
    "command": errors.rerun_command(),
    "config": config,
    "parts": states,
    "scores": [*map(dataclasses.asdict, scores)],
    "tables": [*map(dataclasses.asdict, shown)],
    "failures": failures,
  }
  files.save_json(workdir / files.RESULTS, value, several_writers=True)
  write_own_report(workdir, say)
  say(f"saved: {workdir / files.RESULTS}, {files.REPORT}")


def collect_scores(
  parts: Sequence[Part], root: pathlib.Path
) -> tuple[list[Score], dict[str, Any]]:
  """Reads the scores of finished parts; CheckpointError if one is damaged.

  Also returns `family` and `width` of Comparison, if the parts say so.
  """
  collected: list[Score] = []
  fields: dict[str, Any] = {}
  for part in parts:
    folder = root / part.key
    make = functools.partial(Score, part.arm, part.seed)
    if part.name == parts_lib.PRETRAIN:
      collected += read_pretraining(make, metrics_file.read_records(folder))
    elif part.name in parts_lib.TASKS:
      for n in range(len(part.outputs)):  # one for each seed
        if result := results.load(folder, parts_lib.TASKS[part.name][1], n):
          fields |= {key: result.provenance[key] for key in ("family", "width")}
          collected += read_finetuning(make, result)
    else:
      path = folder / files.RESULTS
      with read_results(path, errors.CheckpointError, parts_lib.FIX) as saved:
        if part.name == parts_lib.CORRECTIONS:
          collected += read_corrections(make, saved)
        else:
          collected += read_robustness(make, saved)
  return collected, fields


def read_pretraining(
  make: MakeScore, logged: Sequence[Mapping[str, Any]]
) -> list[Score]:
  """Returns the last held-out losses in metrics.jsonl, in nats."""
  last = ([x for x in logged if x["split"] == "held_out"] or [{}])[-1]
  mlm = last.get("mlm_uncorrected")  # a loss that corrections do not change
  losses = {
    "MLM loss of all slots": last.get("mlm") if mlm is None else mlm,
    "Detection loss": last.get("detect"),
  }
  return [
    make(tables.HELD_OUT, None, title, loss)
    for title, loss in losses.items()
    if loss is not None
  ]


def read_finetuning(make: MakeScore, run: results.Result) -> list[Score]:
  """Returns the main score of a fine-tuning on the dev set; of SQuAD both."""
  by_metric = run.scores["dev"]
  dev = run.answers["dev"]
  scored = (dev["golds"], dev["answers"], run.provenance["labels"])
  return [
    make(
      *(run.task, run.seed, metric, by_metric[metric]),
      correct_N=scoring.example_scores(metric, *scored),
      failure=run.failure,
    )
    for metric in list(by_metric)[: None if run.task == SQUAD else 1]
  ]


def read_corrections(make: MakeScore, saved: Mapping[str, Any]) -> list[Score]:
  """Returns the rates of table 2, from a results.json."""
  checkpoints = saved["checkpoints"]
  steps = [(x["step"], x["percent"]) for x in checkpoints]
  return [
    make(
      *(tables.CORRECTIONS, None, tables.correction_metric(rate, percent)),
      value=100 * checkpoints[index]["rates"][rate]["rate"],
    )
    for percent, index in find_table_2(steps).items()
    for rate in tables.RATES
  ]


def read_robustness(make: MakeScore, saved: Mapping[str, Any]) -> list[Score]:
  """Returns the scores of each set, side and fine-tuning of a results.json."""
  collected = []
  counts = collections.Counter(x["title"] for x in saved["sets"].values())
  for name, x in saved["sets"].items():
    title = x["title"] if counts[x["title"]] == 1 else name
    for record in saved["runs"].values():
      by_side = _question_scores(record["answers"], name)
      for side in SIDES:
        for metric, value in record["scores"].get(f"{name} {side}", {}).items():
          key = title, record["seed"], f"{metric} {side}"
          collected.append(make(*key, value, by_side[side][metric]))
  return collected


def _question_scores(
  answers: Mapping[str, Any], name: str
) -> dict[str, dict[str, np.ndarray]]:
  """Returns the scores of a set's questions by side or DROP, and by metric."""
  by_side: dict[str, dict[str, np.ndarray]] = {}
  for side in (ORIGINAL, TRANSFORMED):
    if split := answers.get(f"{name} {side}"):
      scores = scoring.question_scores(split["golds"], split["answers"])
      by_side[side] = scores
  if before := by_side.get(ORIGINAL):
    after = by_side[TRANSFORMED]
    by_side[DROP] = {metric: before[metric] - after[metric] for metric in after}
  return by_side
