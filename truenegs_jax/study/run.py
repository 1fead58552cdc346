"""Runs the task "study": pre-trains, fine-tunes and measures several recipes.

config -> parts -> each part as a process of `truenegs_jax.main` -> scores
-> tables and curves

A part writes to WORKDIR/runs/ARM/seed-S/PART, whose files say what is done.
Scores are the same whether parts were stopped and resumed or not; seconds and
paths are not among them.
"""

import collections
import dataclasses
import functools
import json
import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.configs.common_keys import rules
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import distributed, errors
from truenegs_jax.runtime.config_files import flatten
from truenegs_jax.runtime.files import atomic_file, disk_errors
from truenegs_jax.runtime.flags import parse_job, rerun_command
from truenegs_jax.study import drive, layout, plan, scores, tables
from truenegs_jax.study.drive import Part, State, States
from truenegs_jax.train import check_values
from truenegs_jax.train.plan import report_table
from truenegs_jax.workdir import files, metrics_file


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Runs the missing parts of a study, prints its scores, saves results.json.

  Returns:
    75 or 130 if it was stopped, else the exit code of the first part that
    failed, or 0.

  Raises:
    TrueNegsError: its class has the exit code.
  """
  say = functools.partial(console.print, soft_wrap=True)
  check_values.check_values(flatten(c.to_dict()), rules("study"))
  job = parse_job("--config.study.shard", c.study.shard)
  options = plan.StudyOptions.from_config(c)
  if distributed.process_count() > 1:
    raise errors.InputError(
      "A study runs in one process on each machine. Start it without the flags"
      " of several processes, with --config.study.shard=0/2, 1/2 and so on."
    )
  if files.has_pretraining(workdir):
    raise errors.InputError(
      f"--workdir='{workdir}' is the workdir of a run. Choose another, such as"
      " --workdir=runs/study."
    )
  parts = plan.make_parts(options, workdir)
  states = drive.read_states(parts, workdir)
  plan.check_unchanged(parts, workdir)
  own = plan.select_shard(parts, job)
  if c.dry_run:
    print_plan(parts, own, states, console)
    return 0
  save_config(c, workdir)
  code = drive.run_parts(own, workdir, console)
  states = drive.read_states(parts, workdir)
  say(drive.describe_progress(states))
  if code in (errors.SAVED_RESTART, errors.SAVED_INTERRUPT):
    say(f"To continue, run the same command again: {rerun_command()}")
  else:
    report(options, parts, states, workdir, console)
  return code


def print_plan(
  parts: Sequence[Part], own: Sequence[Part], states: States, console: Console
) -> None:
  """Prints what is done, and which part is the next of this job."""
  counts = collections.Counter(part.name for part in parts)
  done = collections.Counter(
    part.name for part in parts if states[part.key] == State.DONE
  )
  lines = {
    "dry run": "reads no text; writes and runs nothing",
    "done": ", ".join(f"{x} {done[x]}/{count}" for x, count in counts.items()),
    "all jobs": drive.describe_progress(states),
    "this job": drive.describe_progress({x.key: states[x.key] for x in own}),
  }
  if part := drive.next_part(own, states):
    lines["next"] = part.key
  console.print(report_table(lines))


def save_config(c: ConfigDict, workdir: pathlib.Path) -> None:
  """Saves a config, without values of one machine."""
  config = json.loads(c.to_json())
  config["dry_run"], config["study"]["shard"] = False, "0/1"
  with disk_errors(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
  save_text(workdir / files.CONFIG, f"{json.dumps(config, indent=2)}\n")


def save_text(path: pathlib.Path, text: str) -> None:
  """Writes a file that processes of other jobs may write, too."""
  with atomic_file(path, several_writers=True) as file:
    file.write(text.encode())


def report(
  options: plan.StudyOptions,
  parts: Sequence[Part],
  states: States,
  workdir: pathlib.Path,
  console: Console,
) -> None:
  """Prints the tables; saves them and all scores in results.json."""
  say = functools.partial(console.print, soft_wrap=True)
  done = [part for part in parts if states[part.key] == State.DONE]
  collected, network = scores.collect_scores(done, workdir)
  study = scores.Study(
    scores=collected,
    arms=[arm.name for arm in options.arms],
    seeds=range(options.seeds),
    tasks=[plan.TASKS[name][1] for name in options.tasks],
    finetune_seeds=range(options.finetune_seeds),
    **network,
  )
  layouts = tables.make_tables(study)
  for x in layouts:
    console.print(layout.to_terminal(x))
  failures = [
    drive.describe_failure(part, workdir)
    for part in parts
    if states[part.key] in (State.FAILED, State.DIVERGED)
  ]
  for text in failures:
    say(text)
  value = {
    "command": rerun_command(),
    # Without the scores of examples: the parts' folders have the answers.
    "scores": [
      dataclasses.asdict(dataclasses.replace(x, correct_N=None))
      for x in collected
    ],
    "tables": [*map(dataclasses.asdict, layouts)],
    "failures": failures,
  }
  text = json.dumps(metrics_file.finite_or_null(value), indent=2)
  save_text(workdir / files.RESULTS, f"{text}\n")
  save_text(workdir / "tables.csv", layout.to_csv(layouts))
  write_own_report(workdir, say)
  say(f"saved: {workdir / files.RESULTS}, tables.csv, {files.REPORT}")
