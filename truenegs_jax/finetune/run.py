"""The task "finetune": tasks x seeds, each run kept, then tables.

weights -> for each task: rows -> for each seed: train, answer, score, export
-> median over seeds, beside published results; compared with another workdir

A run that has ended is never made again: the same command goes on with those
that are missing.
"""

import contextlib
import dataclasses
import json
import pathlib
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.finetune import (
  config_checks,
  leaderboard,
  read_tasks,
  results,
  seed_runs,
)
from truenegs_jax.runtime import distributed, errors
from truenegs_jax.runtime.cache import enable_compilation_cache
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.runtime.flags import command
from truenegs_jax.tasks import glue
from truenegs_jax.train import guards
from truenegs_jax.workdir import files, lock

SUBMISSION = "submission"
STOPPING = "stopping; what is at hand is made again by the same command"


class _Stopped(Exception):
  """A signal has come: what is at hand ends here."""


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Makes the runs that are missing, and prints all; returns the exit code.

  Raises:
    TrueNegsError: with the exit code that belongs to it.
  """
  if distributed.count() > 1:
    raise InputError(
      "fine-tuning runs in one process, on all devices that it sees; start one,"
      " or one for each task, each with its --workdir."
    )
  config_checks.check(c)
  read_tasks.check_files(c)
  against = c.finetune.against
  others = results.read_others(pathlib.Path(against)) if against else {}
  enable_compilation_cache()
  seeds = range(c.seed, c.seed + c.finetune.seeds)
  with lock.lock(workdir):
    results.check_config(workdir, c)
    with guards.StopSignals(console, then=STOPPING) as signals:

      def check():
        if signals.received:
          raise _Stopped

      with contextlib.suppress(_Stopped):
        _make_missing(c, workdir, seeds, console, check)
    names = config_checks.task_names(c)
    ended = results.ended(workdir)
    of_seeds = lambda name: [x for x in ended.get(name, ()) if x.seed in seeds]
    found = {name: of_seeds(name) for name in names if of_seeds(name)}
    if found:
      _tell(c, workdir, found, others, console)
  left = sum(len(results.missing(workdir, name, seeds)) for name in names)
  if not left:
    return 0
  console.print(
    f"stopped; to make the {left} runs that are missing: {command()}",
    soft_wrap=True,
  )
  is_interrupt = signals.received == signal.SIGINT
  return errors.SAVED_INTERRUPT if is_interrupt else errors.SAVED_RESTART


def _make_missing(
  c: ConfigDict,
  workdir: pathlib.Path,
  seeds: Sequence[int],
  console: Console,
  check: Callable[[], Any],
) -> None:
  """Makes what is missing; weights and data have to be as before.

  Where nothing is missing they may be gone, if they go by the same names.
  """
  names = config_checks.task_names(c)
  all_there = not any(results.missing(workdir, name, seeds) for name in names)
  try:
    of, plans = seed_runs.prepare(c, workdir, seeds, console, check)
  except (InputError, DataError) as e:
    if not (all_there and results.is_named_alike(workdir, c)):
      raise
    console.print(
      f"all runs are there; not seen whether weights and data are as they were:"
      f" {errors.printable(e)}",
      soft_wrap=True,
    )
    return
  results.save_config(workdir, c)
  seed_runs.make(of, plans, workdir, console, check)


def _tell(
  c: ConfigDict,
  workdir: pathlib.Path,
  found: Mapping[str, Sequence[results.Result]],
  others: Mapping[str, Sequence[results.Result]],
  console: Console,
) -> None:
  """Prints the tables and writes what is for other programs."""
  compared, remarks = leaderboard.compare(found, others)
  leaderboard.show(found, compared, console)
  for line in (*remarks, *_lacking(c, workdir, found)):
    console.print(line, soft_wrap=True)
  _save_all(c, workdir, results.ended(workdir), compared)
  if written := _submit(workdir, found):
    console.print(
      "test sets, answered by the run of each task whose dev score is the"
      f" median: {', '.join(map(str, written))}",
      soft_wrap=True,
    )


def _lacking(
  c: ConfigDict,
  workdir: pathlib.Path,
  found: Mapping[str, Sequence[results.Result]],
) -> list[str]:
  """What runs that ended earlier were not asked for, and how to come by it."""
  lines = []
  for name, ended in found.items():
    for run in ended:
      folder = results.folder(workdir, name, run.seed)
      lacks = []
      if c.finetune.predict_test and "test" not in run.answers:
        lacks.append("answers to the test set")
      can_be = not run.failure and c.finetune.head != "joint"
      if c.finetune.export == "all" and can_be and not run.exported:
        lacks.append("model for Hugging Face")
      if lacks:
        lines.append(
          f"{folder} has no {' and no '.join(lacks)}; remove it, and the same"
          " command makes that run again"
        )
  return lines


def _save_all(
  c: ConfigDict,
  workdir: pathlib.Path,
  found: Mapping[str, Sequence[results.Result]],
  compared: Mapping[str, Sequence[Any]],
) -> None:
  plain = lambda values: {
    name: dataclasses.asdict(value) for name, value in values.items()
  }
  tasks = {
    name: {
      "summary": plain(leaderboard.summaries(ended)),
      "runs": [dataclasses.asdict(run) for run in ended],
    }
    for name, ended in found.items()
  }
  differences = {
    name: [dataclasses.asdict(x) for x in of_task]
    for name, of_task in compared.items()
  }
  value = {
    "command": command(),
    "config": json.loads(c.to_json()),
    "seeds": sorted({run.seed for runs in found.values() for run in runs}),
    "tasks": tasks,
    "compared": {
      "against": c.finetune.against,
      "seeds": list(range(c.seed, c.seed + c.finetune.seeds)),
      "tasks": differences,
    },
  }
  files.save_json(workdir / results.RESULTS, results.plain(value), indent=None)


def _submit(
  workdir: pathlib.Path, found: Mapping[str, Sequence[results.Result]]
) -> list[pathlib.Path]:
  """GLUE's files of the test sets, of each task's median run."""
  written = []
  for name in glue.TASKS.keys() & found.keys():
    run, folder = leaderboard.median_run(found[name]), workdir / SUBMISSION
    if "test" not in run.answers:
      continue
    with disk_errors(folder):
      folder.mkdir(exist_ok=True)
    for split in (s for s in run.answers if s.startswith("test")):
      said = run.answers[split]
      path = glue.write_submission(
        folder, glue.TASKS[name], split, said["keys"], said["answers"]
      )
      written.append(path)
  return sorted(written)
