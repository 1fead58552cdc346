"""The task "finetune": tasks x seeds, each run kept, then tables.

weights -> for each task: rows -> for each seed: train, answer, score, export
-> median over seeds, beside published results; compared with another workdir

A run that has ended is never made again: the same command goes on with those
that are missing.
"""

import dataclasses
import functools
import json
import pathlib
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax import distributed, errors, finetuning_runs
from truenegs_jax.errors import InputError
from truenegs_jax.finetune import leaderboard, recipe, results
from truenegs_jax.pretraining import command, enable_compilation_cache
from truenegs_jax.tasks import glue, submission
from truenegs_jax.train import guards, startup

Say = Callable[[str], Any]
SUBMISSION = "submission"


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
  recipe.check(c)
  say = functools.partial(console.print, soft_wrap=True)
  others = (
    results.read_all(pathlib.Path(c.finetune.against).expanduser())
    if c.finetune.against
    else {}
  )
  enable_compilation_cache()
  names = recipe.task_names(c)
  numbers = range(c.seed, c.seed + c.finetune.seeds)
  with guards.lock(workdir):
    results.begin(workdir, c)
    missing = {
      name: [n for n in numbers if results.load(workdir, name, n) is None]
      for name in names
    }
    missing = {name: todo for name, todo in missing.items() if todo}
    with guards.StopSignals(
      console,
      then="stopping; the run at hand is made again by the next command",
    ) as signals:
      if missing:
        received = lambda: signals.received
        finetuning_runs.make(c, workdir, missing, console, received)
    stopped = signals.received
    found = results.collect(workdir, names, numbers)
    if found:
      compared = leaderboard.compare(found, others)
      leaderboard.show(found, compared, console)
      _save_all(c, workdir, found, compared)
      _submit(workdir, found, say)
  if not stopped:
    return 0
  say(f"stopped; to make the runs that are missing: {command()}")
  is_interrupt = stopped == signal.SIGINT
  return errors.SAVED_INTERRUPT if is_interrupt else errors.SAVED_RESTART


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
      "summary": plain(leaderboard.summaries(runs)),
      "runs": [dataclasses.asdict(run) for run in runs],
    }
    for name, runs in found.items()
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
    "compared": {"against": c.finetune.against, "tasks": differences},
  }
  startup.save_json(workdir / results.RESULTS, value)


def _submit(
  workdir: pathlib.Path,
  found: Mapping[str, Sequence[results.Result]],
  say: Say,
) -> None:
  """GLUE's files of the test sets, of each task's median run."""
  written = []
  for name, runs in found.items():
    run = leaderboard.median_run(runs)
    if name not in glue.TASKS:
      continue
    for split in (s for s in run.answers if s.startswith("test")):
      folder = workdir / SUBMISSION
      folder.mkdir(exist_ok=True)
      said = run.answers[split]
      written.append(
        submission.write_submission(
          folder, glue.TASKS[name], split, said["keys"], said["answers"]
        )
      )
  if written:
    say(
      "test sets, answered by the run of each task whose dev score is the"
      f" median: {', '.join(map(str, written))}"
    )
