"""Runs the task "finetune": every fine-tuning task with every seed.

weights -> for each task: rows -> for each seed: train, answer, score, export
-> medians over seeds next to published results, comparison with another workdir

Finished runs are kept: the same command continues with the missing ones.
"""

import dataclasses
import json
import pathlib
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.finetune import loop, results, task_data
from truenegs_jax.finetune.start import Start, resolve
from truenegs_jax.finetune.task_data import FinetuneOptions, parse_options
from truenegs_jax.report.page import print_table
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import distributed, errors, paths, progress
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.tasks import records
from truenegs_jax.tasks.task import OWN, TASKS
from truenegs_jax.train import guards, optim, sharding
from truenegs_jax.weights import export_model, find, hf_names
from truenegs_jax.workdir import files, lock
from truenegs_jax.workdir.lock import Lease

SUBMISSION = "submission"


@dataclasses.dataclass(frozen=True)
class RunContext:
  """Values that all runs of a workdir share; `config` is in JSON's types."""

  workdir: pathlib.Path
  console: Console
  options: FinetuneOptions
  config: Mapping[str, Any]
  lease: Lease = dataclasses.field(default_factory=Lease)

  def report(self, text: str) -> None:
    """Prints a line."""
    self.console.print(text, soft_wrap=True)

  def missing_seeds(self, task: str) -> list[int]:
    """Returns the seeds of a task without a finished run."""
    missing = []
    for seed in self.options.all_seeds:
      folder = results.run_folder(self.workdir, task, seed)
      if not (folder / files.RESULT).exists():
        missing.append(seed)
    return missing

  def count_missing(self) -> int:
    """Returns the number of runs that are not finished."""
    return sum(len(self.missing_seeds(x)) for x in self.options.task_names)


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Trains the missing runs and prints all; returns the exit code."""
  options = parse_options(c.to_dict())
  config = json.loads(c.to_json())
  is_dry = config.pop("dry_run", False)  # not saved
  task_data.check_files(options)
  others: results.RunsByTask = {}
  if against := options.finetune.against:
    others = results.load_all(paths.open_path("finetune.against", against))
    if not others:
      raise errors.InputError(
        f"finetune.against={against!r} has no finished fine-tuning run. Pass"
        " the workdir of a fine-tuning."
      )
  files.check_no_run(workdir, c.task)
  context = RunContext(workdir, console, options, config)
  optim.report_high_rate(options.optim.lr, context.report)
  finished = results.load_all(workdir)
  results.check_unchanged(workdir, finished, {files.CONFIG: config})
  if is_dry:
    console.print(progress.make_table(_describe_plan(context)))
    return 0
  for line in _list_lacking(context, finished):
    context.report(line)
  with lock.lock(workdir) as lease:
    stopped_by = _train_missing(dataclasses.replace(context, lease=lease))
    if distributed.is_first_process():
      reported = {}
      for name, runs in results.load_all(workdir).items():
        own = [run for run in runs if run.seed in options.all_seeds]
        if own and name in options.task_names:
          reported[name] = own
      if reported:
        _report_results(context, reported, others)
  if stopped_by is None:
    return 0
  context.report(
    f"Stopped with {context.count_missing()} missing runs. To continue:"
    f" {errors.rerun_command()}"
  )
  return errors.SIGNAL_CODES[stopped_by]


def _list_lacking(
  context: RunContext, finished: results.RunsByTask
) -> Iterator[str]:
  """Yields what finished runs lack, which is made at the end of a run."""
  o = context.options
  for name in o.task_names:
    splits = o.list_splits(o.find_task(name))
    tests = {x for x in splits if x.startswith("test")}
    runs = [x for x in finished.get(name, []) if x.seed in o.all_seeds]
    for run in runs:
      folder = results.run_folder(context.workdir, name, run.seed)
      is_exported = bool(run.failure) or (folder / results.MODEL).exists()
      lacking = []
      if not tests <= run.answers.keys():
        lacking.append("answers to the test set")
      if o.finetune.export == "all" and not is_exported:
        lacking.append("an export")
      if lacking:
        yield (
          f"{name}, seed {run.seed} was finished without"
          f" {' and '.join(lacking)}. To repeat it, remove '{folder}'."
        )


def _describe_plan(context: RunContext) -> dict[str, str]:
  """Describes weights, data and seeds; reads no arrays and no rows."""
  o = context.options
  tasks = [o.find_task(name) for name in o.task_names]
  mesh = sharding.make_mesh(o.mesh_spec)
  lines = {
    "dry run": "reads no rows; writes and compiles nothing",
    "devices": sharding.describe_devices(o.mesh.preset, mesh),
    "weights": find.describe(o.init) if o.init else "drawn at random",
  }
  if not o.init or find.is_local(o.init):
    start = resolve(o, context.report)
    for task in tasks:
      if task.name != OWN:  # which has classes when its file is read
        start.match_task(task)
    config = start.make_model(tasks[0]).config
    lines["network"] = (
      f"{start.role}, {config.layers} layers of {config.width} units,"
      f" vocabulary of {config.vocab_size:,} entries"
    )
  lines["batches"] = f"{o.batch_size} rows of at most {o.length} tokens"
  seeds = o.all_seeds
  lines["runs"] = (
    f"seeds {seeds[0]} to {seeds[-1]}; {context.count_missing():,} of"
    f" {len(seeds) * len(tasks):,} runs are to train"
  )
  for task in tasks:
    texts = [f"{o.finetune.epochs or task.epochs:g} epochs"]
    for split in o.list_splits(task):
      where, exists = o.find_source(task, split)
      texts.append(f"{split}: {where}{'' if exists else ' (missing)'}")
    lines[task.name] = "; ".join(texts)
  return lines


def _train_missing(context: RunContext) -> signal.Signals | None:
  """Trains the missing runs; returns the signal that stopped them, if any."""
  with distributed.raise_everywhere("weights"):
    start = resolve(context.options, context.report)
  setups = _read_tasks(context, start)
  if distributed.is_first_process():
    files.save_json(context.workdir / files.CONFIG, context.config)
  runs = [
    (x, seed)
    for x in setups
    for seed in context.missing_seeds(x.data.task.name)
  ]
  described = None
  with guards.StopSignals(context.console) as signals:
    mesh = sharding.make_mesh(context.options.mesh_spec)
    vote = guards.StopVote(signals, mesh, lambda: context.lease.error)

    def check() -> None:
      if number := vote.poll():
        raise loop.Stopped(number)

    for number, (setup, seed) in enumerate(runs, start=1):
      if setup is not described:
        context.report(setup.describe())
        described = setup
      context.report(
        f"{setup.data.task.title}, seed {seed}: run {number} of {len(runs)}"
      )
      try:
        _train_run(context, start, setup, seed, check)
      except loop.Stopped as e:
        return e.args[0]
  return None


def _read_tasks(context: RunContext, start: Start) -> list[loop.TrainingSetup]:
  """Reads all tasks before the first run; compares them with finished runs."""
  options = context.options
  tasks = []
  with distributed.raise_everywhere("inputs"):
    finished = results.load_all(context.workdir)
    for name in options.task_names:
      with progress.working(context.console, f"Reading {name}"):
        data = task_data.read_task_data(options, name, start.tokenizer)
        provenance = start.provenance(data.task)
        provenance["data"] = data.fingerprints()
      results.check_unchanged(context.workdir, finished, provenance, task=name)
      provenance[files.CONFIG] = context.config
      tasks.append((data, provenance))
  same = [(x, context.missing_seeds(data.task.name)) for data, x in tasks]
  distributed.check_same("runs", json.dumps(same))
  return [
    loop.TrainingSetup(options, start.make_model(data.task), data, provenance)
    for data, provenance in tasks
  ]


def _train_run(
  context: RunContext,
  start: Start,
  setup: loop.TrainingSetup,
  seed: int,
  check: Callable[[], None],
) -> None:
  """Trains, answers, scores, saves and exports one run."""
  task = setup.data.task
  folder = results.run_folder(context.workdir, task.name, seed)
  with distributed.raise_everywhere("folder"):
    if distributed.is_first_process():
      with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
  seed_run = loop.SeedRun(setup, seed, folder, check, context.console)
  params, result = seed_run.fine_tune(
    lambda: start.make_params(task, seed), context.lease.check
  )
  failure = f"FAILED: {result.failure}; " if result.failure else ""
  scores = results.format_scores(result.scores["dev"])
  context.report(
    f"  {failure}{scores}; step {result.step:,}, {result.secs:,.0f} s"
  )
  params = distributed.to_host(params)
  with distributed.raise_everywhere("save"):
    if distributed.is_first_process():
      if context.options.finetune.export == "all":
        with progress.working(context.console, "Exporting"):
          exported = _export(start, setup, params, result, folder)
        context.report(f"  {exported}")
      results.save(context.workdir, result)


def _export(
  start: Start,
  setup: loop.TrainingSetup,
  params: Mapping[str, Any],
  result: results.Result,
  folder: pathlib.Path,
) -> str:
  """Exports the model for Hugging Face; returns the outcome."""
  if result.failure:
    return "not exported: the run failed"
  if reason := hf_names.unsupported_reason(setup.model):
    return reason
  output = folder / results.MODEL
  shutil.rmtree(output, ignore_errors=True)  # of a kill before the result
  try:
    return export_model.export_task(
      params,
      setup.model,
      start.tokenizer,
      output,
      task=setup.data.task,
      about=_describe_origin(setup, result),
    )
  except errors.DiskError:
    raise
  except errors.TrueNegsError as e:
    return f"NOT EXPORTED: {errors.printable(e)}"


def _describe_origin(setup: loop.TrainingSetup, result: results.Result) -> str:
  """Describes a run for its model card, without paths of this machine."""
  o = setup.options
  data = setup.data
  names = " ".join(filter(None, [o.finetune.data, *o.files.values()]))
  scores = results.format_scores(result.scores["dev"])
  hide = find.hide_folders
  start = hide(o.init) or "weights drawn at random"
  return f"""\
* Task: {data.task.title}, {len(data.train.tokens):,} rows of `{hide(names)}`
* Fine-tuned from: `{start}`
* Recipe: {result.step:,} steps of {o.batch_size} rows of at most
  {o.length} tokens, head `{setup.model.head}`, seed {result.seed}
* Dev set: {len(data.dev.examples):,} examples, in percent: {scores}. Other
  seeds have other scores; compare models by the mean of several."""


def _report_results(
  context: RunContext,
  finished: results.RunsByTask,
  others: results.RunsByTask,
) -> None:
  """Prints the tables; writes results.json and GLUE's submissions."""
  with progress.working(context.console, "Comparing scores", brief=True):
    compared, remarks = results.compare_results(finished, others)
  tables = results.make_tables(finished, compared)
  for table in tables:
    print_table(table, context.console)
  for remark in remarks:
    context.report(remark)
  to_dict = dataclasses.asdict
  tasks = {
    name: {
      "summary": results.summarize_runs(runs),
      "runs": [*map(to_dict, runs)],
    }
    for name, runs in finished.items()
  }
  value = {
    "command": errors.rerun_command(),
    "config": context.config,
    "tasks": tasks,
    "compared": {name: [*map(to_dict, x)] for name, x in compared.items()},
    "tables": [*map(to_dict, tables)],
  }
  path = context.workdir / files.RESULTS
  files.save_json(path, value, indent=None)
  write_own_report(context.workdir, context.report)
  if written := _write_submissions(context.workdir / SUBMISSION, finished):
    context.report(
      "Submissions for GLUE, from the run of each task with the median dev"
      f" score: {', '.join(map(str, written))}"
    )


def _write_submissions(
  folder: pathlib.Path, finished: results.RunsByTask
) -> list[pathlib.Path]:
  """Writes GLUE's files of the test sets, from the median run that has them."""
  paths = []
  for name in TASKS.keys() & finished.keys():
    splits = {split for x in finished[name] for split in x.answers}
    for split in splits:
      if not split.startswith("test"):
        continue
      runs = [x for x in finished[name] if split in x.answers]
      x = results.median_run(runs).answers[split]
      with disk_errors(folder):
        folder.mkdir(exist_ok=True)
      path = records.write_submission(
        folder, TASKS[name], split, x["keys"], x["answers"]
      )
      paths.append(path)
  return sorted(paths)
