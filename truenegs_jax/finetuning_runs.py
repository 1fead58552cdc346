"""The runs of a fine-tuning, one by one: train, answer, score, save, export."""

import contextlib
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
from truenegs_jax.errors import disk_errors
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

Say = Callable[[str], Any]
MODEL = "model"


def make(
  c: ConfigDict,
  workdir: pathlib.Path,
  missing: Mapping[str, Sequence[int]],
  console: Console,
  stopped: Callable[[], Any],
) -> None:
  """Makes runs, by task, until all are made or a signal comes."""
  say = functools.partial(console.print, soft_wrap=True)
  of = origin.open_origin(c, say=say)
  todo = []
  for name, seeds_left in missing.items():  # bad data before hours of work
    with console.status(f"reading {name} ..."):
      data = gather.gather(of.c, name, of.tokenizer)
    model = of.model(data.num_outputs)
    of.check(model, data.task)
    todo.append((tuning_lib.make_tuning(of.c, model, data), seeds_left))
  left = _Left([(t, len(n)) for t, n in todo])
  for tuning, seeds_left in todo:
    _introduce(tuning, say)
    for seed in seeds_left:
      if stopped():
        return
      say(f"{tuning.material.task.title}, seed {seed}: {left.begin()}")
      result = _make_run(of, tuning, seed, workdir, console, stopped)
      if result is not None:
        left.end(result.secs)


def _introduce(tuning: tuning_lib.Tuning, say: Say) -> None:
  data, c = tuning.material, tuning.c
  config = tuning.model.config
  say(
    f"{data.task.title}: {len(data.train.tokens):,} rows to train on,"
    f" {len(data.dev.keys):,} to judge by; {tuning.steps:,} steps of"
    f" {c.batch_size}, peak rate {recipe.peak_rate(c, config):g}, layer decay"
    f" {recipe.layer_decay(c, config):g}, head {c.finetune.head!r}"
    + "".join(f"; {note}" for note in data.notes)
  )


def _make_run(
  of: origin.Origin,
  tuning: tuning_lib.Tuning,
  seed: int,
  workdir: pathlib.Path,
  console: Console,
  stopped: Callable[[], Any],
) -> results.Result | None:
  """Trains, answers, scores and saves; None where a signal came before."""
  data = tuning.material
  say = functools.partial(console.print, soft_wrap=True)
  folder = results.folder(workdir, data.task.name, seed)
  params = of.params(tuning.model, data.task, seed, say=say)
  made = origin.made_of(of, params, data)
  results.check_alike(workdir, data.task.name, made)
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
    made=made,
    notes=data.notes,
  )
  say(f"  {leaderboard.sentence(result)}")
  if of.c.finetune.export == "all":
    say(f"  {_export(of, tuning, tuned, result, folder / MODEL)}")
  results.save(workdir, result)
  return result


def _export(
  of: origin.Origin,
  tuning: tuning_lib.Tuning,
  tuned: tuning_lib.Tuned,
  result: results.Result,
  output: pathlib.Path,
) -> str:
  """Writes the model for Hugging Face; says so, or why not."""
  if reason := task_export.problem(tuning.model):
    return reason
  exported = task_export.export_task(
    jax.device_get(tuned.params),
    tuning.model,
    of.tokenizer,
    output,
    task=tuning.material.task,
    card=_card(of, result),
  )
  return f"exported to {exported.output}: {exported.statement}"


def _card(of: origin.Origin, result: results.Result) -> str:
  """How a model was fine-tuned, for its README."""
  c = of.c
  return (
    f"* Fine-tuned from: `{c.init or 'weights drawn at random'}`\n"
    f"* Recipe: {result.step:,} steps of {c.batch_size} rows of at most"
    f" {c.length} tokens, seed {result.seed}"
    f"\n* Dev set: {leaderboard.sentence(result)}"
    f"\n* Made by: `{command()}`"
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

  def __init__(self, runs: Sequence[tuple[tuning_lib.Tuning, int]]):
    self._tokens = {id(t): _tokens(t) for t, _ in runs}
    self._all = [id(t) for t, number in runs for _ in range(number)]
    self._done, self._secs = 0, 0.0

  def begin(self) -> str:
    text = f"run {self._done + 1} of {len(self._all)}"
    if not self._secs:
      return text
    before = sum(self._tokens[t] for t in self._all[: self._done])
    after = sum(self._tokens[t] for t in self._all[self._done :])
    left = datetime.timedelta(seconds=round(self._secs * after / before))
    return f"{text}, about {left} left for all"

  def end(self, secs: float) -> None:
    self._done, self._secs = self._done + 1, self._secs + secs


def _tokens(t: tuning_lib.Tuning) -> float:
  """Tokens that a run trains on, padding aside."""
  return float(t.material.train.lengths_N.mean()) * t.steps
