"""The pre-training loop: step, log, evaluate, save, and stop when asked to.

A batch and every random draw are functions of the step, so a run that was
stopped anywhere goes on as if it never had been.
"""

import contextlib
import dataclasses
import itertools
import math
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax import distributed
from truenegs_jax.data import pipeline
from truenegs_jax.data.rows import Rows
from truenegs_jax.errors import NonFiniteError
from truenegs_jax.train import (
  build,
  checkpoint,
  guards,
  metrics,
  sharding,
  startup,
  step,
  writers,
)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """A run that has ended: all steps done, unless a signal stopped it."""

  start: startup.Start  # with the last state
  held_out: list[metrics.Terms]  # by batch, of the last evaluation
  stopped_by: signal.Signals | None


def train(
  c: ConfigDict, workdir: pathlib.Path, inputs: startup.Inputs, console: Console
) -> Outcome:
  """Trains to `c.steps`, or until SIGTERM or Ctrl-C, and saves.

  Raises:
    InputError, CheckpointError: before anything is compiled or written.
    DiskError: a checkpoint could not be written; those before are intact.
    NonFiniteError: more than `c.optim.max_skips` skipped updates in a row.
  """
  with contextlib.closing(startup.open_checkpoints(c, workdir)) as checkpoints:
    start = startup.prepare_start(c, workdir, inputs, checkpoints, console)
    with _open_writers(c, workdir, console, int(start.state.step)) as write:
      with guards.StopSignals(console) as signals:
        return _loop(c, workdir, inputs, start, checkpoints, write, signals)


def _loop(
  c: ConfigDict,
  workdir: pathlib.Path,
  inputs: startup.Inputs,
  start: startup.Start,
  checkpoints: checkpoint.Checkpoints,
  write: Callable[[dict], Any],
  signals: guards.StopSignals,
) -> Outcome:
  state, done = start.state, int(start.state.step)
  guard = guards.SkipGuard(workdir, c.optim.max_skips)
  vote = guards.StopVote(signals, start.mesh)
  share = sharding.process_share(start.mesh, c.batch_size)
  stopped_by = None
  clock = metrics.Clock(c.steps)
  clock.start(done)
  recent, held_out = [], []

  def save():
    if not _all_finite(state.params):
      raise NonFiniteError(
        f"the parameters are not finite after step {done}; they were not"
        f" saved. Last saved step: {checkpoints.latest()}."
      )
    checkpoints.save(done, vars(state), start.description)

  while done < c.steps and not (stopped_by := vote.stopped_by()):
    state = start.refresh(state, done)
    batch = pipeline.batch_at(
      inputs.train_rows,
      done,
      batch_size=c.batch_size,
      seed=c.seed,
      process=share,
    )
    on_device = sharding.to_device(batch, start.mesh)
    state, terms = start.train_step(state, on_device, start.aux)
    # Looked at one step late, so that the device never waits for the host.
    guard.see(done, terms["skipped"][0], on_device["row"])
    recent.append(terms)
    done += 1
    if _due(done, c.log.every_steps, c.steps):
      merged = metrics.merge(jax.device_get(recent))
      write(_train_record(c, start.run, clock, done, merged))
      recent = []
    if _due(done, c.eval.every_steps, c.steps):
      with clock.paused():
        held_out = evaluate(c, start, state, inputs.held_out_rows)
        merged = metrics.merge(held_out)
        write(_record(start.run, done, "held_out", merged, at=done))
    if done in checkpoints.keep_steps or not done % c.checkpoint.every_steps:
      guard.settle()
      save()
  guard.settle()
  save()
  checkpoints.wait()
  if done == c.steps and not held_out:  # resumed when all was done
    held_out = evaluate(c, start, state, inputs.held_out_rows)
  start = dataclasses.replace(start, state=state)
  return Outcome(start, held_out, stopped_by)


def evaluate(
  c: ConfigDict,
  start: startup.Start,
  state: step.TrainState,
  held_out_rows: Rows,
) -> list[metrics.Terms]:
  """The terms of each held-out batch: `c.eval.rows` rows, in whole batches."""
  batches = itertools.islice(
    pipeline.held_out_batches(
      held_out_rows,
      batch_size=c.batch_size,
      process=sharding.process_share(start.mesh, c.batch_size),
    ),
    math.ceil(c.eval.rows / c.batch_size),
  )
  aux = {**start.aux, **state.aux}
  return [
    jax.device_get(
      start.eval_step(state.params, sharding.to_device(batch, start.mesh), aux)
    )
    for batch in batches
  ]


@contextlib.contextmanager
def _open_writers(
  c: ConfigDict, workdir: pathlib.Path, console: Console, first_step: int
) -> Iterator[Callable[[dict], Any]]:
  """Yields `write(record)`, which hands a record to every writer.

  Only the first process of a run has any.
  """
  if not distributed.is_first():
    yield lambda record: None
    return
  opened = [
    *writers.make_writers(c.log.writers, workdir, first_step=first_step),
    writers.ProgressLine(console, total_steps=c.steps, first_step=first_step),
  ]
  with contextlib.ExitStack() as stack:
    for writer in opened:
      stack.callback(writer.close)
    yield lambda record: [writer.write(record) for writer in opened]


def _due(done: int, every: int, total: int) -> bool:
  return done % every == 0 or done == total


def _train_record(
  c: ConfigDict,
  run: build.Run,
  clock: metrics.Clock,
  done: int,
  terms: metrics.Terms,
) -> dict:
  # The weights and the rate are those of the update just made.
  return _record(run, done, "train", terms, at=done - 1) | {
    "lr": float(run.rate(done - 1)),
    "rows_per_s": c.batch_size / clock.secs_per_step(done),
    "eta_s": clock.eta_secs(done),
  }


def _record(
  run: build.Run, done: int, split: str, terms: metrics.Terms, *, at: int
) -> dict:
  values = metrics.ratios(terms)
  weights = step.weights_at(run.weights, at)
  total = sum(float(w) * values[name] for name, w in weights.items())
  return {
    "step": done,
    "time": round(time.time(), 3),
    "split": split,
    "total": total,
    **values,
  }


@jax.jit
def _all_finite(params: Any) -> jax.Array:
  leaves = [jnp.isfinite(x).all() for x in jax.tree.leaves(params)]
  return jnp.stack(leaves).all()
