"""Runs the task "finetune": every fine-tuning task with every seed.

weights -> for each task: rows -> for each seed: train, answer, score, export
-> medians over seeds next to published results, comparison with another workdir

Finished runs are kept: the same command continues with the missing ones.
"""

import dataclasses
import itertools
import json
import pathlib
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.finetune import (
  bootstrap,
  dry_run,
  initial_weights,
  leaderboard,
  results,
  seed_runs,
  task_data,
)
from truenegs_jax.finetune.config_checks import FinetuneOptions, check
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import distributed, errors, progress
from truenegs_jax.runtime.cache import enable_compilation_cache
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.runtime.flags import rerun_command
from truenegs_jax.tasks import glue
from truenegs_jax.workdir import files, lock, metrics_file

SUBMISSION = "submission"
Runs = Mapping[str, Sequence[results.Result]]  # by task


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Trains the missing runs and prints all; returns the exit code.

  Raises:
    TrueNegsError: its class has the exit code.
  """
  check(c)
  options, config = FinetuneOptions.from_config(c), json.loads(c.to_json())
  is_dry = config.pop("dry_run", False)  # not saved
  task_data.check_files(options)
  against = c.finetune.against
  others = results.load_other_workdir(pathlib.Path(against)) if against else {}
  seeds = range(c.seed, c.seed + c.finetune.seeds)
  if is_dry:
    results.check_config(workdir, config)
    return dry_run.dry_run(c, options, seeds, workdir, console)
  enable_compilation_cache()
  with lock.lock(workdir):
    results.check_config(workdir, config)
    context = seed_runs.RunContext(
      workdir, console, export=c.finetune.export == "all"
    )
    stopped_by = _train_missing(c, options, config, context, seeds)
    if distributed.is_first_process():
      by_task, finished = results.load_all(workdir), {}
      for name in options.tasks:
        if runs := [run for run in by_task.get(name, []) if run.seed in seeds]:
          finished[name] = runs
      if finished:
        _report_results(config, context, finished, others)
  if stopped_by is None:
    return 0
  num_missing = results.count_missing(workdir, options.tasks, seeds)
  context.report(
    f"Stopped with {num_missing} missing runs. To continue: {rerun_command()}"
  )
  if stopped_by == signal.SIGINT:
    return errors.SAVED_INTERRUPT
  return errors.SAVED_RESTART


def _train_missing(
  c: ConfigDict,
  options: FinetuneOptions,
  config: Mapping[str, Any],
  context: seed_runs.RunContext,
  seeds: Sequence[int],
) -> signal.Signals | None:
  """Trains the missing runs, with the weights and data of the finished ones.

  If no run is missing, weights and data may be gone. Returns the signal that
  stopped the training, if any.
  """
  try:
    with distributed.raise_everywhere("weights"):
      initial = initial_weights.open_weights(c, report=context.report)
    plans = seed_runs.plan_runs(
      context, initial, options, seeds=seeds, config=config
    )
  except (errors.InputError, errors.DataError) as e:
    has_all = not results.count_missing(context.workdir, options.tasks, seeds)
    if not (has_all and results.has_same_sources(context.workdir, config)):
      raise
    context.report(
      "All runs are finished. Not checked whether weights or data changed:"
      f" {errors.printable(e)}"
    )
    return None
  if distributed.is_first_process():
    files.save_json(context.workdir / results.CONFIG, config)
  return seed_runs.train_missing(context, initial, plans)


def _report_results(
  config: Mapping[str, Any],
  context: seed_runs.RunContext,
  finished: Runs,
  others: Runs,
) -> None:
  """Prints the tables; writes results.json and GLUE's submissions."""
  with progress.working(context.console, "Comparing scores", brief=True):
    compared, remarks = bootstrap.compare_results(finished, others)
  leaderboard.print_tables(finished, compared, context.console)
  remarks += _describe_missing_outputs(config["finetune"], context, finished)
  for remark in remarks:
    context.report(remark)
  _save_results(config, context.workdir, compared)
  write_own_report(context.workdir, context.report)
  if paths := _write_submissions(context.workdir, finished):
    context.report(
      "Submissions for GLUE, from the run of each task with the median dev"
      f" score: {', '.join(map(str, paths))}"
    )


def _describe_missing_outputs(
  section: Mapping[str, Any], context: seed_runs.RunContext, finished: Runs
) -> list[str]:
  """Describes requested outputs that earlier runs did not write."""
  lines = []
  for run in itertools.chain.from_iterable(finished.values()):
    missing = []
    if section["predict_test"] and "test" not in run.answers:
      missing.append("answers to the test set")
    is_exportable = not run.failure and section["head"] != "joint"
    if context.export and is_exportable and not run.exported:
      missing.append("model for Hugging Face")
    if missing:
      folder = results.run_folder(context.workdir, run.task, run.seed)
      lines.append(
        f"'{folder}' has no {' and no '.join(missing)}. Remove it and run the"
        " same command again; it repeats this run."
      )
  return lines


def _save_results(
  config: Mapping[str, Any],
  workdir: pathlib.Path,
  compared: Mapping[str, Sequence[bootstrap.Comparison]],
) -> None:
  """Writes results.json with all finished runs, of any task and seed."""
  section, tasks, seeds = config["finetune"], {}, set[int]()
  runs_by_task = results.load_all(workdir)
  for name, runs in runs_by_task.items():
    seeds |= {run.seed for run in runs}
    summaries = leaderboard.summarize_runs(runs)
    tasks[name] = {
      "summary": {m: dataclasses.asdict(s) for m, s in summaries.items()},
      "runs": [run.to_json() for run in runs],
    }
  value = {
    "command": rerun_command(),
    "config": config,
    "seeds": sorted(seeds),
    "tasks": tasks,
    "published": [
      dataclasses.asdict(model)
      for model in leaderboard.find_comparable(runs_by_task)
    ],
    "compared": {
      "against": section["against"],
      "seeds": list(range(config["seed"], config["seed"] + section["seeds"])),
      "tasks": {
        name: [dataclasses.asdict(x) for x in comparisons]
        for name, comparisons in compared.items()
      },
    },
  }
  path = workdir / results.RESULTS
  files.save_json(path, metrics_file.finite_or_null(value), indent=None)


def _write_submissions(
  workdir: pathlib.Path, finished: Runs
) -> list[pathlib.Path]:
  """Writes GLUE's files of the test sets, from each task's median run."""
  paths, folder = [], workdir / SUBMISSION
  for name in glue.TASKS.keys() & finished.keys():
    for split, x in leaderboard.median_run(finished[name]).answers.items():
      if split.startswith("test"):
        with disk_errors(folder):
          folder.mkdir(exist_ok=True)
        path = glue.write_submission(
          folder, glue.TASKS[name], split, x["keys"], x["answers"]
        )
        paths.append(path)
  return sorted(paths)
