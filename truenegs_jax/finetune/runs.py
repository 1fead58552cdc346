"""The runs of a fine-tuning, one by one: train, answer, score, save, export."""

import contextlib
import dataclasses
import datetime
import functools
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax import task_export
from truenegs_jax.errors import (
  DiskError,
  TrueNegsError,
  disk_errors,
  printable,
)
from truenegs_jax.finetune import (
  gather,
  leaderboard,
  material,
  origin,
  recipe,
  results,
)
from truenegs_jax.finetune import tuning as tuning_lib
from truenegs_jax.pretraining import command
from truenegs_jax.train import writers


@dataclasses.dataclass(frozen=True)
class Plan:
  """A task and the seeds that are missing.

  Attributes:
    made: as of `results.Result`.
  """

  tuning: tuning_lib.Tuning
  made: Mapping[str, Any]
  missing: Sequence[int]


def prepare(
  c: ConfigDict,
  workdir: pathlib.Path,
  seeds: Sequence[int],
  console: Console,
) -> tuple[origin.Origin, list[Plan]]:
  """Opens the weights, reads all tasks, and sees that they are as before.

  All of it: what is bad is said before hours of work.

  Raises:
    InputError, DataError: weights, files or values that cannot be used.
    CheckpointError: the runs that are there are of other weights or data.
  """
  of = origin.open_origin(c, say=functools.partial(_say, console))
  plans, known = [], results.ended(workdir)
  for name in recipe.task_names(c):
    with console.status(f"reading {name} ..."):
      data = gather.gather(of.c, name, of.tokenizer)
      made = origin.made_of(of, data)
    results.check_alike(known, name, made)
    tuning = tuning_lib.make_tuning(of.c, of.model(data.num_outputs), data)
    missing = results.missing(workdir, name, seeds)
    plans.append(Plan(tuning, made, missing))
  return of, plans


def make(
  of: origin.Origin,
  plans: Sequence[Plan],
  workdir: pathlib.Path,
  console: Console,
  stopped: Callable[[], Any],
) -> None:
  """Makes the runs that are missing, until a signal comes."""
  left = _Left(plans)
  for plan in plans:
    if plan.missing:
      _introduce(plan.tuning, console)
    for seed in plan.missing:
      if stopped():
        return
      title = plan.tuning.material.task.title
      _say(console, f"{title}, seed {seed}: {left.begin()}")
      result = _make_run(of, plan, seed, workdir, console, stopped)
      if result is not None:
        left.end(result.secs)


def _say(console: Console, text: str) -> None:
  console.print(text, soft_wrap=True)


def _introduce(tuning: tuning_lib.Tuning, console: Console) -> None:
  data, c = tuning.material, tuning.c
  config = tuning.model.config
  _say(
    console,
    f"{data.task.title}: {len(data.train.tokens):,} rows to train on,"
    f" {len(data.dev.keys):,} to judge by; {tuning.steps:,} steps of"
    f" {c.batch_size}, peak rate {recipe.peak_rate(c, config):g}, layer decay"
    f" {recipe.layer_decay(c, config):g}, head {c.finetune.head!r}"
    + "".join(f"; {note}" for note in data.notes),
  )


def _make_run(
  of: origin.Origin,
  plan: Plan,
  seed: int,
  workdir: pathlib.Path,
  console: Console,
  stopped: Callable[[], Any],
) -> results.Result | None:
  """Trains, answers, scores and saves; None where a signal came before."""
  tuning, data = plan.tuning, plan.tuning.material
  say = functools.partial(_say, console)
  folder = results.folder(workdir, data.task.name, seed)
  params = of.params(tuning.model, data.task, seed, say=say)
  with disk_errors(folder):
    shutil.rmtree(folder, ignore_errors=True)  # of one that was stopped
    folder.mkdir(parents=True)
  with _writers(of.c, folder, console, tuning.steps) as write:
    tuned = tuning_lib.fine_tune(
      tuning, params, seed, folder, write=write, stopped=stopped
    )
  if tuned is None:
    return None
  said = {
    name: split.answers(tuning_lib.predict(tuning, tuned.params, split.encoded))
    for name, split in data.splits.items()
  }
  result = results.Result(
    task=data.task.name,
    seed=seed,
    failure=tuned.failure or data.dev.failure(said["dev"]),
    scores={
      name: split.scores(said[name])
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
      name: material.predictions(split, said[name])
      for name, split in data.splits.items()
    },
    made=plan.made,
    notes=[*data.notes, *_chosen(of.c, tuned)],
  )
  say(f"  {leaderboard.sentence(result)}")
  if of.c.finetune.export == "all":
    say(f"  {_export(of, tuning, tuned, result, folder / results.MODEL)}")
  results.save(workdir, result)
  return result


def _chosen(c: ConfigDict, tuned: tuning_lib.Tuned) -> list[str]:
  """Says so where the dev set has chosen what it scores."""
  if c.finetune.keep == "last":
    return []
  return [f"the best of {len(tuned.evaluations)} evaluations on this dev set"]


def _export(
  of: origin.Origin,
  tuning: tuning_lib.Tuning,
  tuned: tuning_lib.Tuned,
  result: results.Result,
  output: pathlib.Path,
) -> str:
  """Writes the model for Hugging Face; says so, or why not."""
  if result.failure:
    return "not exported: the run failed"
  if reason := task_export.problem(tuning.model):
    return reason
  try:
    exported = task_export.export_task(
      jax.device_get(tuned.params),
      tuning.model,
      of.tokenizer,
      output,
      task=tuning.material.task,
      card=_card(of, result),
    )
  except DiskError:
    raise  # with some space freed the same command makes the run again
  except TrueNegsError as e:
    return f"NOT EXPORTED: {printable(e)}"
  return f"exported to {exported.output}: {exported.statement}"


def _card(of: origin.Origin, result: results.Result) -> str:
  """How a model was fine-tuned, for its README."""
  c = of.c
  return (
    f"* Fine-tuned from: `{c.init or 'weights drawn at random'}`\n"
    f"* Recipe: {result.step:,} steps of {c.batch_size} rows of at most"
    f" {c.length} tokens, seed {result.seed}"
    f"\n* Dev set: {leaderboard.sentence(result)}"
    + "".join(f"; {note}" for note in result.notes)
    + f"\n* Made by: `{command()}`"
  )


@contextlib.contextmanager
def _writers(
  c: ConfigDict, folder: pathlib.Path, console: Console, steps: int
) -> Iterator[Callable[[dict[str, Any]], Any]]:
  """Yields what takes the records of a run."""
  opened = writers.make_writers(c.log.writers, folder, first_step=0)
  line = writers.ProgressLine(console, total_steps=steps, first_step=0)
  with contextlib.ExitStack() as stack:
    for writer in (*opened, line):
      stack.callback(writer.close)

    def write(record):
      for writer in opened:
        writer.write(record)
      if record["split"] == "train":
        line.write(record)
      else:
        said = leaderboard.listed(record)
        console.print(f"dev at {record['step']:,}: {said}", soft_wrap=True)

    yield write


class _Left:
  """How long the runs that are left will take, by the tokens of each."""

  def __init__(self, plans: Sequence[Plan]):
    self._tokens = [_tokens(p.tuning) for p in plans for _ in p.missing]
    self._done, self._secs = 0, 0.0

  def begin(self) -> str:
    text = f"run {self._done + 1} of {len(self._tokens)}"
    if not self._secs:
      return text
    before = sum(self._tokens[: self._done])
    after = sum(self._tokens[self._done :])
    left = datetime.timedelta(seconds=round(self._secs * after / before))
    return f"{text}, about {left} left for all"

  def end(self, secs: float) -> None:
    self._done, self._secs = self._done + 1, self._secs + secs


def _tokens(t: tuning_lib.Tuning) -> float:
  """Tokens that a run trains on, padding aside."""
  return float(t.material.train.lengths_N.mean()) * t.steps
