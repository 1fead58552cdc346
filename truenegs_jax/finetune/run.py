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
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.finetune import (
  bootstrap,
  initial_weights,
  leaderboard,
  results,
  seed_runs,
  task_data,
)
from truenegs_jax.finetune.config_checks import FinetuneOptions, check
from truenegs_jax.runtime import distributed, errors
from truenegs_jax.runtime.cache import enable_compilation_cache
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.runtime.flags import rerun_command
from truenegs_jax.tasks import glue
from truenegs_jax.train import guards
from truenegs_jax.workdir import files, lock

SUBMISSION = "submission"
STOPPING = "stopping; the same command redoes the unfinished run"
Runs = Mapping[str, Sequence[results.Result]]  # by task


class _Stopped(Exception):
  """A signal has come: the run at hand ends here."""


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Makes the runs that are missing, and prints all; returns the exit code.

  Raises:
    TrueNegsError: with the exit code that belongs to it.
  """
  if distributed.process_count() > 1:
    raise InputError(
      "fine-tuning runs in one process, on all devices that it sees; start one,"
      " or one for each task, each with its --workdir."
    )
  check(c)
  recipe, config = FinetuneOptions.from_config(c), json.loads(c.to_json())
  task_data.check_files(recipe)
  against = c.finetune.against
  others = results.load_other_workdir(pathlib.Path(against)) if against else {}
  enable_compilation_cache()
  seeds = range(c.seed, c.seed + c.finetune.seeds)
  with lock.lock(workdir):
    results.check_config(workdir, config)
    with guards.StopSignals(console, then=STOPPING) as signals:

      def stop_if_asked():
        if signals.received:
          raise _Stopped

      export = c.finetune.export == "all"
      place = seed_runs.RunContext(workdir, console, stop_if_asked, export)
      with contextlib.suppress(_Stopped):
        _make_missing(c, recipe, config, place, seeds)
    by_task = {
      name: [run for run in runs if run.seed in seeds]
      for name, runs in results.load_all(workdir).items()
    }
    shown = {name: by_task[name] for name in recipe.tasks if by_task.get(name)}
    if shown:
      _finish(config, place, shown, others)
  left = sum(
    len(results.missing_seeds(workdir, name, seeds)) for name in recipe.tasks
  )
  if not left:
    return 0
  place.say(
    f"stopped; to make the {left} runs that are missing: {rerun_command()}"
  )
  is_interrupt = signals.received == signal.SIGINT
  return errors.SAVED_INTERRUPT if is_interrupt else errors.SAVED_RESTART


def _make_missing(
  c: ConfigDict,
  recipe: FinetuneOptions,
  config: Mapping[str, Any],
  place: seed_runs.RunContext,
  seeds: Sequence[int],
) -> None:
  """Makes what is missing; weights and data have to be as before.

  Where nothing is missing they may be gone, if they go by the same names.
  """
  missing = [
    results.missing_seeds(place.workdir, x, seeds) for x in recipe.tasks
  ]
  try:
    initial = initial_weights.open_weights(c, say=place.say)
    plans = seed_runs.plan_runs(
      place, initial, recipe, seeds=seeds, config=config
    )
  except (InputError, DataError) as e:
    if any(missing) or not results.has_same_sources(place.workdir, config):
      raise
    place.say(
      "all runs are there; not seen whether weights and data are as they were:"
      f" {errors.printable(e)}"
    )
    return
  files.save_json(place.workdir / results.CONFIG, config)
  seed_runs.train_missing(place, initial, plans)


def _finish(
  config: Mapping[str, Any],
  place: seed_runs.RunContext,
  shown: Runs,
  others: Runs,
) -> None:
  """Prints the tables and writes what is for other programs."""
  compared, remarks = bootstrap.compare_results(shown, others)
  leaderboard.print_tables(shown, compared, place.console)
  for line in (*remarks, *_lacking(config["finetune"], place, shown)):
    place.say(line)
  _save_all(config, place.workdir, compared)
  if written := _submit(place.workdir, shown):
    place.say(
      "test sets, answered by the run of each task whose dev score is the"
      f" median: {', '.join(map(str, written))}"
    )


def _lacking(
  wanted: Mapping[str, Any], place: seed_runs.RunContext, shown: Runs
) -> list[str]:
  """Lines on what earlier runs do not have, and how to come by it."""
  lines = []
  for run in (run for runs in shown.values() for run in runs):
    lacks = []
    if wanted["predict_test"] and "test" not in run.answers:
      lacks.append("answers to the test set")
    can_be = not run.failure and wanted["head"] != "joint"
    if place.export and can_be and not run.exported:
      lacks.append("model for Hugging Face")
    if lacks:
      folder = results.run_folder(place.workdir, run.task, run.seed)
      lines.append(
        f"{folder} has no {' and no '.join(lacks)}; remove it, and the same"
        " command makes that run again"
      )
  return lines


def _save_all(
  config: Mapping[str, Any],
  workdir: pathlib.Path,
  compared: Mapping[str, Sequence[bootstrap.Comparison]],
) -> None:
  """Writes all runs that have ended, of whatever seed, in one file."""
  ended, seed, f = results.load_all(workdir), config["seed"], config["finetune"]
  value = {
    "command": rerun_command(),
    "config": config,
    "seeds": sorted({run.seed for runs in ended.values() for run in runs}),
    "tasks": {
      name: {
        "summary": {
          metric: dataclasses.asdict(summary)
          for metric, summary in leaderboard.summarize_runs(runs).items()
        },
        "runs": [dataclasses.asdict(run) for run in runs],
      }
      for name, runs in ended.items()
    },
    "compared": {
      "against": f["against"],
      "seeds": list(range(seed, seed + f["seeds"])),
      "tasks": {
        name: [dataclasses.asdict(x) for x in rows]
        for name, rows in compared.items()
      },
    },
  }
  files.save_json(
    workdir / results.RESULTS, results.to_json_types(value), indent=None
  )


def _submit(workdir: pathlib.Path, shown: Runs) -> list[pathlib.Path]:
  """GLUE's files of the test sets, of each task's median run."""
  written = []
  for name in glue.TASKS.keys() & shown.keys():
    run, folder = leaderboard.median_run(shown[name]), workdir / SUBMISSION
    for split in (s for s in run.answers if s.startswith("test")):
      with disk_errors(folder):
        folder.mkdir(exist_ok=True)
      saved = run.answers[split]
      path = glue.write_submission(
        folder, glue.TASKS[name], split, saved["keys"], saved["answers"]
      )
      written.append(path)
  return sorted(written)
