"""The runs of a fine-tuning, one by one: train, answer, score, save, export."""

import contextlib
import dataclasses
import datetime
import functools
import json
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.finetune import (
  config_checks,
  initial_weights,
  leaderboard,
  loop,
  read_tasks,
  results,
  task_data,
)
from truenegs_jax.runtime.errors import (
  DiskError,
  InputError,
  TrueNegsError,
  printable,
)
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.runtime.flags import command
from truenegs_jax.train import metrics
from truenegs_jax.weights.export import finetuned
from truenegs_jax.workdir import files, metrics_file


@dataclasses.dataclass(frozen=True)
class Plan:
  """A task and the seeds that are missing.

  Attributes:
    made: as of `results.Result`.
  """

  tuning: loop.Tuning
  made: Mapping[str, Any]
  missing: Sequence[int]


def prepare(
  c: ConfigDict,
  workdir: pathlib.Path,
  seeds: Sequence[int],
  console: Console,
  check: Callable[[], Any],
) -> tuple[initial_weights.Origin, list[Plan]]:
  """Opens the weights, reads all tasks, and sees that they are as before.

  All of it: what is bad is said before hours of work.

  Raises:
    InputError, DataError: weights, files or values that cannot be used.
    CheckpointError: the runs that are there are of other weights or data.
  """
  say = functools.partial(console.print, soft_wrap=True)
  of = initial_weights.open_origin(c, say=say)
  plans, known = [], results.ended(workdir)
  for name in config_checks.task_names(c):
    check()
    with console.status(f"reading {name} ..."):
      data = read_tasks.gather(of.c, name, of.tokenizer)
      made = initial_weights.made_of(of, data)
    made[results.CONFIG] = json.loads(c.to_json())
    results.check_alike(known, name, made)
    tuning = loop.make_tuning(of.c, of.model(data.num_outputs), data)
    missing = results.missing(workdir, name, seeds)
    plans.append(Plan(tuning, made, missing))
  return of, plans


# What a run has in its folder, some of it for a moment.
OURS = {
  metrics_file.METRICS,
  f"{metrics_file.METRICS}.tmp",
  files.BAD_ROWS,
  "result.json.tmp",
  files.TENSORBOARD,
  results.MODEL,
  f".{results.MODEL}.partial",
}


def make(
  of: initial_weights.Origin,
  plans: Sequence[Plan],
  workdir: pathlib.Path,
  console: Console,
  check: Callable[[], Any],
) -> None:
  """Makes the runs that are missing.

  Args:
    check: called before every batch; what it raises ends all.

  Raises:
    DiskError: what could not be written. Runs that have ended are kept.
  """
  left = _Left(plans)
  for plan in plans:
    if plan.missing:
      _introduce(plan.tuning, console)
    for seed in plan.missing:
      title = plan.tuning.material.task.title
      _say(console, f"{title}, seed {seed}: {left.begin()}")
      began = time.monotonic()
      _make_run(of, plan, seed, workdir, console, check)
      left.end(time.monotonic() - began)


def _say(console: Console, text: str) -> None:
  console.print(text, soft_wrap=True)


def _introduce(tuning: loop.Tuning, console: Console) -> None:
  data, c = tuning.material, tuning.c
  config = tuning.model.config
  cut = data.train.num_cut
  _say(
    console,
    f"{data.task.title}: {len(data.train.tokens):,} rows to train on,"
    f" {len(data.dev.keys):,} to judge by; {tuning.steps:,} steps of"
    f" {c.batch_size}, peak rate {config_checks.peak_rate(c, config):g}, layer"
    f" decay {config_checks.layer_decay(c, config):g}, head"
    f" {tuning.model.head!r}, attention"
    f" {tuning.attention}"
    + (f"; {cut:,} of the rows are cut" if cut else "")
    + "".join(f"; {note}" for note in data.notes),
  )
  if c.finetune.export == "all" and (why := finetuned.problem(tuning.model)):
    _say(console, why)


def _make_run(
  of: initial_weights.Origin,
  plan: Plan,
  seed: int,
  workdir: pathlib.Path,
  console: Console,
  check: Callable[[], Any],
) -> None:
  """Trains, answers, scores, saves and exports."""
  tuning, data = plan.tuning, plan.tuning.material
  say = functools.partial(_say, console)
  folder = results.folder(workdir, data.task.name, seed)
  params = of.params(tuning.model, data.task, seed, say=say)
  _clear(folder)
  with _writers(of.c, folder, console, tuning.steps) as write:
    tuned = loop.fine_tune(
      tuning, params, seed, folder, write=write, check=check
    )
  said = {}
  for name, split in data.splits.items():
    with console.status(f"answering {len(split.keys):,} of {name} ..."):
      said[name] = split.answers(
        loop.predict(tuning, tuned.params, split.encoded, check=check)
      )
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
      name: task_data.predictions(split, said[name])
      for name, split in data.splits.items()
    },
    made=plan.made,
    notes=[*data.notes, *_chosen(tuning, tuned)],
  )
  say(f"  {leaderboard.sentence(result)}")
  results.save(workdir, result)  # first: an export may fail
  if of.c.finetune.export == "all":
    exported = _export(of, tuning, tuned, result, folder / results.MODEL)
    say(f"  {exported}")
    results.save(workdir, dataclasses.replace(result, exported=exported))


def _clear(folder: pathlib.Path) -> None:
  """Makes room for a run, where one that was stopped has left something.

  Raises:
    InputError: there is something else.
    DiskError: it cannot be written to.
  """
  there = {x.name for x in folder.iterdir()} if folder.exists() else set()
  if strange := sorted(there - OURS):
    raise InputError(
      f"{folder} holds {', '.join(strange[:5])}, which no run has left there;"
      " move that away."
    )
  with disk_errors(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _chosen(t: loop.Tuning, tuned: loop.Tuned) -> list[str]:
  """Says so where the dev set has chosen what it scores."""
  if t.c.finetune.keep == "best":
    return [f"the best of {len(tuned.evaluations)} evaluations on this dev set"]
  if tuned.step < t.steps and not tuned.failure:
    return [f"ended at step {tuned.step:,} of {t.steps:,} by this dev set"]
  return []


def _export(
  of: initial_weights.Origin,
  tuning: loop.Tuning,
  tuned: loop.Tuned,
  result: results.Result,
  output: pathlib.Path,
) -> str:
  """Writes the model for Hugging Face; says so, or why not."""
  if result.failure:
    return "not exported: the run failed"
  if reason := finetuned.problem(tuning.model):
    return reason
  try:
    exported = finetuned.export_task(
      jax.device_get(tuned.params),
      tuning.model,
      of.tokenizer,
      output,
      task=tuning.material.task,
      card=_card(of, result),
    )
  except DiskError as e:
    raise DiskError(
      f"{output} could not be written ({e.__cause__ or e}). What the run scored"
      " is saved; to have its model, too, free some space, remove"
      f" {output.parent} and give the same command again: it is made anew."
    ) from e
  except TrueNegsError as e:
    return f"NOT EXPORTED: {printable(e)}"
  return f"exported to {exported.output}: {exported.statement}"


def _card(of: initial_weights.Origin, result: results.Result) -> str:
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
  opened = metrics.make_writers(c.log.writers, folder, first_step=0)
  line = metrics.ProgressLine(console, total_steps=steps, first_step=0)
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


def _tokens(t: loop.Tuning) -> float:
  """Tokens that a run trains on, padding aside."""
  return float(t.material.train.lengths_N.mean()) * t.steps
