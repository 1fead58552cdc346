"""Runs the task "finetune": every fine-tuning task with every seed.

weights -> for each task: rows -> for each seed: train, answer, score, export
-> medians over seeds next to published results, comparison with another workdir

Finished runs are kept: the same command continues with the missing ones. A dry
run prints the plan in seconds, without reading rows:

  python -m truenegs_jax.main --config=finetune_glue:mrpc \\
    --config.init=runs/mine --config.dry_run=True
"""

import dataclasses
import json
import pathlib
import signal
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.finetune import (
  initial_weights,
  leaderboard,
  results,
  seed_runs,
  task_data,
)
from truenegs_jax.finetune.config_checks import FinetuneOptions, check
from truenegs_jax.finetune.seed_runs import RunContext
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import distributed, errors, progress
from truenegs_jax.runtime.cache import enable_compilation_cache
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.tasks import batches, glue
from truenegs_jax.tasks.task import CLASSES, SPANS, TASKS, Task
from truenegs_jax.train import plan, sharding
from truenegs_jax.weights import find, hf_folder
from truenegs_jax.workdir import files, lock

SUBMISSION = "submission"
Runs = Mapping[str, Sequence[results.Result]]  # by task


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Trains the missing runs and prints all; returns the exit code."""
  check(c)
  options, config = FinetuneOptions.from_config(c), json.loads(c.to_json())
  is_dry = config.pop("dry_run", False)  # not saved
  task_data.check_files(options)
  others: Runs = {}
  if options.against:
    others = results.load_all(pathlib.Path(options.against).expanduser())
    if not others:
      raise errors.InputError(
        f"finetune.against={options.against!r} has no finished fine-tuning run."
        " Pass the workdir of a fine-tuning."
      )
  context = RunContext(workdir, console, options, config)
  if is_dry:
    results.check_config(workdir, config)
    console.print(plan.report_table(_describe_plan(context)))
    return 0
  enable_compilation_cache(distributed.warn)
  with lock.lock(workdir):
    results.check_config(workdir, config)
    stopped_by = _train_missing(context)
    if distributed.is_first_process():
      finished = {
        name: [run for run in runs if run.seed in options.all_seeds]
        for name, runs in results.load_all(workdir).items()
        if name in options.task_names
      }
      if finished := {name: runs for name, runs in finished.items() if runs}:
        _report_results(context, finished, others)
  if stopped_by is None:
    return 0
  context.report(
    f"Stopped with {context.count_missing()} missing runs. To continue:"
    f" {errors.rerun_command()}"
  )
  if stopped_by == signal.SIGINT:
    return errors.SAVED_INTERRUPT
  return errors.SAVED_RESTART


def _train_missing(context: RunContext) -> signal.Signals | None:
  """Trains the missing runs, with the weights and data of the finished ones.

  If no run is missing, weights and data may be gone. Returns the signal that
  stopped the training, if any.
  """
  workdir, config = context.workdir, context.config
  try:
    with distributed.raise_everywhere("weights"):
      initial = initial_weights.open_weights(
        context.options, report=context.report
      )
    plans = seed_runs.plan_runs(context, initial)
  except (errors.InputError, errors.DataError) as e:
    if context.count_missing() or not results.has_same_sources(workdir, config):
      raise
    context.report(
      "All runs are finished. Not checked whether weights or data changed:"
      f" {errors.printable(e)}"
    )
    return None
  if distributed.is_first_process():
    files.save_json(workdir / results.CONFIG, config)
  return seed_runs.train_missing(context, initial, plans)


def _describe_plan(context: RunContext) -> dict[str, str]:
  """Describes weights, data, seeds and steps; reads no arrays."""
  options, seeds = context.options, context.options.all_seeds
  mesh = sharding.make_mesh(options.mesh)
  lines = {
    "dry run": "reads no rows; writes and compiles nothing",
    "devices": plan.describe_devices(options.preset, mesh),
    "weights": find.describe(options.init)
    if options.init
    else "drawn at random",
  }
  if not options.init or find.is_local(options.init):
    initial = initial_weights.open_weights(options, report=context.report)
    for name in options.task_names:
      task = TASKS.get(name)
      model = initial.make_model(task or Task(name, name, CLASSES))
      if task:  # the user's own task has classes when its file is read
        initial.fit(model, task)
    config = model.config
    lines |= {
      "network": f"{initial.role}, {config.layers} layers of {config.width}"
      f" units, vocabulary of {config.vocab_size:,} entries",
      "optimizer": f"peak learning rate {options.peak_rate(config.width):g},"
      f" layer decay {options.decay(config.width):g}",
      "export": hf_folder.unsupported_reason(model) or options.export,
    }
  lines["batches"] = (
    f"{options.batch_size} rows of at most {options.length} tokens"
  )
  lines["runs"] = (
    f"seeds {seeds[0]} to {seeds[-1]}; {context.count_missing():,} of"
    f" {len(seeds) * len(options.task_names):,} runs are to train"
  )
  return lines | {
    name: _describe_task(options, name) for name in options.task_names
  }


def _describe_task(options: FinetuneOptions, name: str) -> str:
  """Describes the files of a task and, for the published ones, its steps."""
  splits = ["train", "dev", *["test"] * options.predict_test]
  text = "; ".join(
    f"{split}: {task_data.find_split(options, name, split)}" for split in splits
  )
  task = TASKS.get(name)
  epochs = options.epochs or (task.epochs if task else 0)
  if task is None or "train" in task_data.parse_files(options, name):
    return f"{text}; {epochs:g} epochs"
  rows = task_data.count_rows(options, task)
  steps = batches.num_steps(rows, options.batch_size, epochs)
  least = "at least " * (task.kind == SPANS)  # a long context has several rows
  return f"{text}; {epochs:g} epochs of {least}{rows:,} rows, {steps:,} steps"


def _report_results(context: RunContext, finished: Runs, others: Runs) -> None:
  """Prints the tables; writes results.json and GLUE's submissions."""
  with progress.working(context.console, "Comparing scores", brief=True):
    compared, remarks = leaderboard.compare_results(finished, others)
  leaderboard.print_tables(finished, compared, context.console)
  for remark in remarks:
    context.report(remark)
  _save_results(context, compared)
  write_own_report(context.workdir, context.report)
  if paths := _write_submissions(context.workdir, finished):
    context.report(
      "Submissions for GLUE, from the run of each task with the median dev"
      f" score: {', '.join(map(str, paths))}"
    )


def _save_results(
  context: RunContext, compared: Mapping[str, Sequence[leaderboard.Comparison]]
) -> None:
  """Writes results.json with all finished runs, of any task and seed."""
  options, runs_by_task = context.options, results.load_all(context.workdir)
  tasks = {}
  for name, runs in runs_by_task.items():
    summaries = leaderboard.summarize_runs(runs)
    tasks[name] = {
      "summary": {m: dataclasses.asdict(s) for m, s in summaries.items()},
      "runs": [dataclasses.asdict(run) for run in runs],
    }
  value = {
    "command": errors.rerun_command(),
    "config": context.config,
    "seeds": sorted({x.seed for runs in runs_by_task.values() for x in runs}),
    "tasks": tasks,
    "published": [
      dataclasses.asdict(model)
      for model in leaderboard.find_comparable(runs_by_task)
    ],
    "compared": {
      "against": options.against,
      "seeds": list(options.all_seeds),
      "tasks": {
        name: [dataclasses.asdict(x) for x in comparisons]
        for name, comparisons in compared.items()
      },
    },
  }
  path = context.workdir / results.RESULTS
  files.save_json(path, files.finite_or_null(value), indent=None)


def _write_submissions(
  workdir: pathlib.Path, finished: Runs
) -> list[pathlib.Path]:
  """Writes GLUE's files of the test sets, from each task's median run."""
  paths, folder = [], workdir / SUBMISSION
  for name in TASKS.keys() & finished.keys():
    for split, x in leaderboard.median_run(finished[name]).answers.items():
      if split.startswith("test"):
        with disk_errors(folder):
          folder.mkdir(exist_ok=True)
        path = glue.write_submission(
          folder, TASKS[name], split, x["keys"], x["answers"]
        )
        paths.append(path)
  return sorted(paths)
