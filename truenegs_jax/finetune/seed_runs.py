"""Trains, evaluates, saves and exports the runs of a fine-tuning."""

import contextlib
import dataclasses
import datetime
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from rich.console import Console

from truenegs_jax.finetune import leaderboard, loop, results, task_data
from truenegs_jax.finetune.config_checks import FinetuneOptions
from truenegs_jax.finetune.initial_weights import InitialWeights
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.runtime.flags import rerun_command
from truenegs_jax.train import metrics
from truenegs_jax.weights.export import finetuned, model_card, public_names
from truenegs_jax.workdir import files, metrics_file

# Files in the folder of an unfinished run.
UNFINISHED = {
  metrics_file.METRICS,
  f"{metrics_file.METRICS}.tmp",
  metrics_file.DAMAGED,
  files.BAD_ROWS,
  f"{results.RESULT}.tmp",
  files.TENSORBOARD,
  results.MODEL,
  f".{results.MODEL}.partial",
}


@dataclasses.dataclass(frozen=True)
class TaskPlan:
  """A task, the provenance of its runs, and the seeds of unfinished runs."""

  setup: loop.TrainingSetup
  provenance: Mapping[str, Any]
  seeds: Sequence[int]


@dataclasses.dataclass(frozen=True)
class RunContext:
  """Values that all runs of a workdir share.

  Attributes:
    check: called before every batch; an exception from it ends all runs.
    export: whether the model of each run is exported for Hugging Face.
  """

  workdir: pathlib.Path
  console: Console
  check: Callable[[], None]
  export: bool

  def report(self, text: str) -> None:
    """Prints a line."""
    self.console.print(text, soft_wrap=True)


def plan_runs(
  context: RunContext,
  initial: InitialWeights,
  options: FinetuneOptions,
  *,
  seeds: Sequence[int],
  config: Mapping[str, Any],
) -> list[TaskPlan]:
  """Reads all tasks, and compares weights and data with finished runs.

  All files are read before the first run, so that bad ones are found at once.

  Args:
    config: the config of the runs, in JSON's types.

  Raises:
    InputError, DataError: weights, files or options cannot be used.
    CheckpointError: finished runs have other weights or data.
  """
  plans, finished = [], results.load_all(context.workdir)
  for name in options.tasks:
    context.check()
    with context.console.status(f"reading {name} ..."):
      data = task_data.read_task_data(options, name, initial.tokenizer)
      model = initial.make_model(data.num_outputs)
      provenance = initial.provenance(model, data.task, data.fingerprints())
    provenance[results.CONFIG] = config
    results.check_provenance(finished, name, provenance)
    setup = loop.make_setup(options, model, data)
    missing = results.missing_seeds(context.workdir, name, seeds)
    plans.append(TaskPlan(setup, provenance, missing))
  return plans


def train_missing(
  context: RunContext, initial: InitialWeights, plans: Sequence[TaskPlan]
) -> None:
  """Trains and saves the runs of the plans.

  Raises:
    DiskError: a file could not be written; finished runs are kept.
  """
  runs = [(plan.setup, plan, seed) for plan in plans for seed in plan.seeds]
  # The time of a run is proportional to its mean row length and its steps.
  sizes = [x.data.train.lengths_N.mean() * x.steps for x, _, _ in runs]
  start, described = time.monotonic(), None
  for number, (setup, plan, seed) in enumerate(runs):
    if setup is not described:
      _describe_task(context, setup)
      described = setup
    eta = ""
    if number:
      secs = time.monotonic() - start
      left = round(secs * sum(sizes[number:]) / sum(sizes[:number]))
      eta = f", about {datetime.timedelta(seconds=left)} left for all"
    context.report(
      f"{setup.data.task.title}, seed {seed}: run {number + 1} of"
      f" {len(runs)}{eta}"
    )
    _train_run(context, initial, plan, seed)


def _describe_task(context: RunContext, setup: loop.TrainingSetup) -> None:
  data, options, model = setup.data, setup.options, setup.model
  width, num_cut = model.config.width, data.train.num_cut
  context.report(
    f"{data.task.title}: {len(data.train.tokens):,} training rows,"
    f" {len(data.dev.keys):,} dev examples, {setup.steps:,} steps of"
    f" {options.batch_size} rows, peak learning rate"
    f" {options.peak_rate(width):g}, layer decay {options.decay(width):g}, head"
    f" {model.head!r}, attention {setup.predictor.attention}"
    + (f", {num_cut:,} rows truncated" if num_cut else "")
    + "".join(f", {note}" for note in data.notes)
  )
  if context.export and (reason := finetuned.unsupported_reason(model)):
    context.report(reason)


def _train_run(
  context: RunContext, initial: InitialWeights, plan: TaskPlan, seed: int
) -> None:
  """Trains, answers, scores, saves and exports one run."""
  setup, data = plan.setup, plan.setup.data
  folder = results.run_folder(context.workdir, data.task.name, seed)
  params = initial.make_params(
    setup.model, data.task, seed, report=context.report
  )
  _clear_folder(folder)
  with _open_writers(context.console, setup, folder) as write:
    trained = loop.fine_tune(
      setup, params, seed, folder, write=write, check=context.check
    )
  answers, scores = {}, {}
  for name, split in data.splits.items():
    with context.console.status(f"answering {len(split.keys):,} of {name} ..."):
      outputs = setup.predictor.predict(
        trained.params, split.encoded, check=context.check
      )
      answers_Q = split.decode_answers(outputs)
    answers[name] = split.to_json(answers_Q)
    if split.golds:
      scores[name] = split.score(answers_Q)
  failure = trained.failure or task_data.find_failure(
    data.dev.golds, answers["dev"]["answers"]
  )
  result = results.Result(
    task=data.task.name,
    seed=seed,
    failure=failure,
    scores=scores,
    step=trained.step,
    steps=setup.steps,
    evaluations={str(step): x for step, x in trained.evaluations.items()},
    losses=trained.losses,
    secs=trained.secs,
    rows_per_s=trained.rows_per_s,
    answers=answers,
    provenance=plan.provenance,
    notes=[*data.notes, *_selection_notes(setup, trained)],
  )
  context.report(f"  {leaderboard.describe_run(result)}")
  results.save(context.workdir, result)  # before the export, which may fail
  if context.export:
    output = folder / results.MODEL
    with context.console.status("exporting ..."):
      exported = _export(initial, setup, trained, result, output)
    context.report(f"  {exported}")
    result = dataclasses.replace(result, exported=exported)
    results.save(context.workdir, result)


def _clear_folder(folder: pathlib.Path) -> None:
  """Removes what an unfinished run left in the folder, and creates it."""
  names = {x.name for x in folder.iterdir()} if folder.exists() else set()
  if unknown := sorted(names - UNFINISHED):
    raise errors.InputError(
      f"'{folder}' has files that do not belong to a run:"
      f" {', '.join(unknown[:5])}. Move them away."
    )
  with disk_errors(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _selection_notes(
  setup: loop.TrainingSetup, trained: loop.TrainedRun
) -> list[str]:
  """Returns a note if parameters were selected by their dev score."""
  if setup.options.keep == "best":
    count = len(trained.evaluations)
    return [f"the best of {count} evaluations on this dev set"]
  if trained.step < setup.steps and not trained.failure:
    step = f"step {trained.step:,} of {setup.steps:,}"
    return [f"ended at {step} by this dev set"]
  return []


def _export(
  initial: InitialWeights,
  setup: loop.TrainingSetup,
  trained: loop.TrainedRun,
  result: results.Result,
  output: pathlib.Path,
) -> str:
  """Exports the model for Hugging Face; returns the outcome."""
  if result.failure:
    return "not exported: the run failed"
  if reason := finetuned.unsupported_reason(setup.model):
    return reason
  origin = _describe_origin(initial, setup, result)
  try:
    exported = finetuned.export_task(
      jax.device_get(trained.params),
      setup.model,
      initial.tokenizer,
      output,
      task=setup.data.task,
      origin=origin,
    )
  except errors.DiskError as e:
    raise errors.DiskError(
      f"'{output}' could not be written ({e.__cause__ or e}). The scores of the"
      " run are saved. For the model, free some space, remove"
      f" '{output.parent}' and run the same command again."
    ) from e
  except errors.TrueNegsError as e:
    return f"NOT EXPORTED: {errors.printable(e)}"
  return f"Exported to '{exported.output}'. {exported.summary}"


def _describe_origin(
  initial: InitialWeights, setup: loop.TrainingSetup, result: results.Result
) -> model_card.ModelOrigin:
  """Describes a run for its model card, without paths of this machine."""
  options, data, hide = setup.options, setup.data, public_names.hide_folders
  init = initial.weights.init if initial.weights else ""
  files = f"{options.data} {options.files}".strip()
  scores = leaderboard.format_scores(result.scores["dev"])
  notes = "".join(f"; {note}" for note in result.notes)
  return model_card.ModelOrigin(
    report=f"""\
* Fine-tuned from: {f"`{hide(init)}`" if init else "weights drawn at random"}
* Data: {len(data.train.tokens):,} rows of `{hide(files)}`
* Recipe: {result.step:,} steps of {options.batch_size} rows of at most
  {options.length} tokens, head `{setup.model.head}`, seed {result.seed}
* Made by: `{public_names.hide_in_command(rerun_command())}`
* Dev set: {len(data.dev.keys):,} examples, in percent: {scores}{notes}. Other
  seeds have other scores; compare models by the mean of several.""",
    limits=[f"Longer texts than {options.length} tokens were truncated."],
    metadata={
      "language": public_names.read_metadata(init).get("language"),
      "datasets": sorted({*public_names.find_datasets(files)}),
      "base_model": public_names.find_models(init),
    },
  )


@contextlib.contextmanager
def _open_writers(
  console: Console, setup: loop.TrainingSetup, folder: pathlib.Path
) -> Iterator[Callable[[dict[str, Any]], None]]:
  """Yields a function that writes a record to the console and all files."""
  writers = metrics.make_writers(setup.options.writers, folder, first_step=0)
  line = metrics.ProgressLine(console, setup.steps, first_step=0)
  with contextlib.ExitStack() as stack:
    for writer in (*writers, line):
      stack.callback(writer.close)

    def write(record: dict[str, Any]) -> None:
      for writer in writers:
        writer.write(record)
      if record["split"] == "train":
        line.write(record)
      else:
        scores = leaderboard.format_scores(record)
        console.print(f"dev at {record['step']:,}: {scores}", soft_wrap=True)

    yield write
