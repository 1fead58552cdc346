"""The runs of a fine-tuning, one by one: train, answer, score, save, export."""

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
from truenegs_jax.runtime.errors import (
  DiskError,
  InputError,
  TrueNegsError,
  printable,
)
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.runtime.flags import rerun_command
from truenegs_jax.train import metrics
from truenegs_jax.weights.export import finetuned
from truenegs_jax.workdir import files, metrics_file

# The files in the folder of a run that was stopped.
UNFINISHED = {
  metrics_file.METRICS,
  f"{metrics_file.METRICS}.tmp",
  files.BAD_ROWS,
  f"{results.RESULT}.tmp",
  files.TENSORBOARD,
  results.MODEL,
  f".{results.MODEL}.partial",
}


@dataclasses.dataclass(frozen=True)
class TaskPlan:
  """A task and the seeds that are missing.

  Attributes:
    provenance: `Result.made` of these runs.
  """

  tuning: loop.TrainingSetup
  provenance: Mapping[str, Any]
  missing: Sequence[int]

  @property
  def num_tokens(self) -> float:
    """Tokens that a run trains on, padding aside."""
    lengths_N = self.tuning.data.train.lengths_N
    return float(lengths_N.mean()) * self.tuning.steps


@dataclasses.dataclass(frozen=True)
class RunContext:
  """Where runs are made.

  Attributes:
    console: for people; what a run scored is in its files, too.
    check: called before every batch; an exception that it raises ends all.
    export: each run's model is written for Hugging Face.
  """

  workdir: pathlib.Path
  console: Console
  check: Callable[[], Any]
  export: bool

  def say(self, text: str) -> None:
    """Prints a line."""
    self.console.print(text, soft_wrap=True)


def plan_runs(
  place: RunContext,
  initial: InitialWeights,
  recipe: FinetuneOptions,
  *,
  seeds: Sequence[int],
  config: Mapping[str, Any],
) -> list[TaskPlan]:
  """Reads all tasks, and sees that weights and data are as before.

  Bad files are refused here, before hours of work.

  Args:
    config: of all the runs, in JSON's types.

  Raises:
    InputError, DataError: weights, files or values that cannot be used.
    CheckpointError: the runs that are there are of other weights or data.
  """
  plans, known = [], results.load_all(place.workdir)
  for name in recipe.tasks:
    place.check()
    with place.console.status(f"reading {name} ..."):
      data = task_data.read_task_data(recipe, name, initial.tokenizer)
      model = initial.make_model(data.num_outputs)
      provenance = initial.provenance(model, data.task, data.fingerprints())
    provenance[results.CONFIG] = config
    results.check_provenance(known, name, provenance)
    tuning = loop.make_setup(recipe, model, data)
    missing = results.missing_seeds(place.workdir, name, seeds)
    plans.append(TaskPlan(tuning, provenance, missing))
  return plans


def train_missing(
  place: RunContext, initial: InitialWeights, plans: Sequence[TaskPlan]
) -> None:
  """Makes the runs that are missing.

  Raises:
    DiskError: a file could not be written. Runs that have ended are kept.
  """
  todo = [(plan, seed) for plan in plans for seed in plan.missing]
  sizes = [plan.num_tokens for plan, _ in todo]
  secs, introduced = 0.0, None
  for number, (plan, seed) in enumerate(todo):
    if plan is not introduced:
      _introduce(place, plan.tuning)
      introduced = plan
    left = ""
    if number:  # by the tokens of each
      rest = round(secs * sum(sizes[number:]) / sum(sizes[:number]))
      left = f", about {datetime.timedelta(seconds=rest)} left for all"
    place.say(
      f"{plan.tuning.data.task.title}, seed {seed}: run {number + 1} of"
      f" {len(todo)}{left}"
    )
    began = time.monotonic()
    _make_run(place, initial, plan, seed)
    secs += time.monotonic() - began


def _introduce(place: RunContext, tuning: loop.TrainingSetup) -> None:
  data, recipe, model = tuning.data, tuning.recipe, tuning.model
  width, cut = model.config.width, data.train.num_cut
  place.say(
    f"{data.task.title}: {len(data.train.tokens):,} rows to train on,"
    f" {len(data.dev.keys):,} to judge by; {tuning.steps:,} steps of"
    f" {recipe.batch_size}, peak rate {recipe.peak_rate(width):g}, layer"
    f" decay {recipe.decay(width):g}, head {model.head!r}, attention"
    f" {tuning.attention}"
    + (f"; {cut:,} of the rows are cut" if cut else "")
    + "".join(f"; {note}" for note in data.notes),
  )
  if place.export and (reason := finetuned.unsupported_reason(model)):
    place.say(reason)


def _make_run(
  place: RunContext, initial: InitialWeights, plan: TaskPlan, seed: int
) -> None:
  """Trains, answers, scores, saves and exports."""
  tuning, data = plan.tuning, plan.tuning.data
  folder = results.run_folder(place.workdir, data.task.name, seed)
  params = initial.make_params(tuning.model, data.task, seed, say=place.say)
  _clear(folder)
  with _writers(place.console, tuning, folder) as write:
    tuned = loop.fine_tune(
      tuning, params, seed, folder, write=write, check=place.check
    )
  answers = {}
  for name, split in data.splits.items():
    with place.console.status(f"answering {len(split.keys):,} of {name} ..."):
      answers[name] = split.decode_answers(
        loop.predict(tuning, tuned.params, split.encoded, check=place.check)
      )
  result = results.Result(
    task=data.task.name,
    seed=seed,
    failure=tuned.failure or data.dev.find_failure(answers["dev"]),
    scores={
      name: split.score(answers[name])
      for name, split in data.splits.items()
      if split.golds
    },
    step=tuned.step,
    steps=tuning.steps,
    evaluations={str(step): x for step, x in tuned.evaluations.items()},
    losses=tuned.losses,
    secs=tuned.secs,
    rows_per_s=tuned.rows_per_s,
    answers={
      name: split.to_json(answers[name]) for name, split in data.splits.items()
    },
    made=plan.provenance,
    notes=[*data.notes, *_chosen(tuning, tuned)],
  )
  place.say(f"  {leaderboard.describe_run(result)}")
  results.save(place.workdir, result)  # first: an export may fail
  if place.export:
    exported = _export(initial, tuning, tuned, result, folder / results.MODEL)
    place.say(f"  {exported}")
    results.save(place.workdir, dataclasses.replace(result, exported=exported))


def _clear(folder: pathlib.Path) -> None:
  """Makes room for a run, where one that was stopped has left something.

  Raises:
    InputError: there is something else.
    DiskError: it cannot be written to.
  """
  there = {x.name for x in folder.iterdir()} if folder.exists() else set()
  if strange := sorted(there - UNFINISHED):
    raise InputError(
      f"{folder} holds {', '.join(strange[:5])}, which no run has left there;"
      " move that away."
    )
  with disk_errors(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _chosen(t: loop.TrainingSetup, tuned: loop.TrainedRun) -> list[str]:
  """A note where the dev set has chosen what it scores."""
  if t.recipe.keep == "best":
    return [f"the best of {len(tuned.evaluations)} evaluations on this dev set"]
  if tuned.step < t.steps and not tuned.failure:
    return [f"ended at step {tuned.step:,} of {t.steps:,} by this dev set"]
  return []


def _export(
  initial: InitialWeights,
  tuning: loop.TrainingSetup,
  tuned: loop.TrainedRun,
  result: results.Result,
  output: pathlib.Path,
) -> str:
  """Writes the model for Hugging Face; returns what became of it."""
  if result.failure:
    return "not exported: the run failed"
  if reason := finetuned.unsupported_reason(tuning.model):
    return reason
  init = initial.weights.init if initial.weights else "weights drawn at random"
  card = (
    f"* Fine-tuned from: `{init}`\n"
    f"* Recipe: {result.step:,} steps of {tuning.recipe.batch_size} rows of at"
    f" most {tuning.recipe.length} tokens, seed {result.seed}\n"
    f"* Dev set: {leaderboard.describe_run(result)}"
    + "".join(f"; {note}" for note in result.notes)
    + f"\n* Made by: `{rerun_command()}`"
  )
  try:
    exported = finetuned.export_task(
      jax.device_get(tuned.params),
      tuning.model,
      initial.tokenizer,
      output,
      task=tuning.data.task,
      details=card,
    )
  except DiskError as e:
    raise DiskError(
      f"{output} could not be written ({e.__cause__ or e}). What the run scored"
      " is saved; to have its model, too, free some space, remove"
      f" {output.parent} and give the same command again: it is made anew."
    ) from e
  except TrueNegsError as e:
    return f"NOT EXPORTED: {printable(e)}"
  return f"exported to {exported.output}: {exported.summary}"


@contextlib.contextmanager
def _writers(
  console: Console, tuning: loop.TrainingSetup, folder: pathlib.Path
) -> Iterator[Callable[[dict[str, Any]], Any]]:
  """Yields what takes the records of a run."""
  opened = metrics.make_writers(tuning.recipe.writers, folder, first_step=0)
  line = metrics.ProgressLine(console, tuning.steps, first_step=0)
  with contextlib.ExitStack() as stack:
    for writer in (*opened, line):
      stack.callback(writer.close)

    def write(record):
      for writer in opened:
        writer.write(record)
      if record["split"] == "train":
        line.write(record)
      else:
        scores = leaderboard.format_scores(record)
        console.print(f"dev at {record['step']:,}: {scores}", soft_wrap=True)

    yield write
