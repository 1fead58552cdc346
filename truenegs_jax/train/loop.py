"""The pre-training loop: step, log, evaluate, save, and stop when asked to.

A batch and every random draw are functions of the step, so a run that was
stopped anywhere goes on as if it never had been.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.data.rows import batches as batches_lib
from truenegs_jax.data.rows.rows_folder import Rows
from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.train import (
  guards,
  metrics,
  plan,
  sharding,
  speed,
  step,
  writers,
)
from truenegs_jax.train import start as start_lib
from truenegs_jax.workdir import checkpoints as checkpoints_lib


@dataclasses.dataclass(frozen=True)
class Outcome:
  """A run that has ended: all steps done, unless a signal stopped it."""

  start: start_lib.Start  # with the last state
  held_out: list[metrics.Terms]  # by batch, of the last evaluation
  stopped_by: signal.Signals | None


@dataclasses.dataclass(frozen=True)
class Watched:
  """What watches a run from beside it."""

  write: Callable[[dict], Any]  # takes a record to every writer
  profile: speed.Profile
  host_wait: speed.HostWait
  clock: metrics.Clock
  signals: guards.StopSignals


def train(
  c: ConfigDict,
  workdir: pathlib.Path,
  inputs: start_lib.Inputs,
  console: Console,
) -> Outcome:
  """Trains to `c.steps`, or until SIGTERM or Ctrl-C, and saves.

  Raises:
    InputError, CheckpointError: before anything is compiled or written.
    DiskError: a checkpoint could not be written; those before are intact.
    NonFiniteError: more than `c.optim.max_skips` skipped updates in a row.
  """
  with contextlib.closing(
    start_lib.open_checkpoints(c, workdir)
  ) as checkpoints:
    start = start_lib.prepare_start(c, workdir, inputs, checkpoints, console)
    clock, first_step = metrics.Clock(c.steps), int(start.state.step)
    with (
      _open_writers(c, workdir, console, first_step) as write,
      contextlib.closing(_profile(c, workdir, console, first_step)) as profile,
      contextlib.closing(speed.HostWait(clock.running)) as host_wait,
      guards.StopSignals(console) as signals,
    ):
      watched = Watched(write, profile, host_wait, clock, signals)
      return _loop(c, workdir, inputs, start, checkpoints, watched)


def _loop(
  c: ConfigDict,
  workdir: pathlib.Path,
  inputs: start_lib.Inputs,
  start: start_lib.Start,
  checkpoints: checkpoints_lib.Checkpoints,
  watched: Watched,
) -> Outcome:
  state, done = start.state, int(start.state.step)
  guard = guards.SkipGuard(workdir, c.optim.max_skips)
  vote = guards.StopVote(watched.signals, start.mesh)
  share = sharding.process_share(start.mesh, c.batch_size)
  stopped_by = None
  clock = watched.clock
  clock.start(done)
  recent, held_out = [], []
  late: list[tuple] = []  # what a record is made from, until it is written

  def write_late():
    while late:
      record = _train_record(c, start, clock, *jax.device_get(late.pop()))
      watched.write(record | watched.host_wait.share())

  def save():
    if not _all_finite(state.params):
      raise NonFiniteError(
        f"the parameters are not finite after step {done}; they were not"
        f" saved. Last saved step: {checkpoints.latest()}."
      )
    checkpoints.save(done, vars(state), start.description)

  while done < c.steps and not (stopped_by := vote.stopped_by()):
    state = start.refresh(state, done)
    batch = batches_lib.batch_at(
      inputs.train_rows,
      done,
      batch_size=c.batch_size,
      seed=c.seed,
      process=share,
    )
    on_device = sharding.to_device(batch, start.mesh)
    watched.profile.at(done, state.step)
    state, terms = watched.host_wait.dispatch(
      start.train_step, state, on_device, start.aux
    )
    # Looked at one step late, so that the device never waits for the host.
    write_late()
    guard.see(done, terms["skipped"][0], on_device["row"])
    recent.append(terms | {"row_tokens": _real_tokens(batch)})
    done += 1
    if _due(done, c.log.every_steps, c.steps):
      # The weights and the rate are those of the update just made.
      weights = step.weights_at(start.run.weights, done - 1)
      late.append((done, recent, weights, start.run.rate(done - 1)))
      recent = []
    if _due(done, c.eval.every_steps, c.steps):
      write_late()
      with clock.paused():
        held_out = evaluate(c, start, state, inputs.held_out_rows)
        weights = jax.device_get(step.weights_at(start.run.weights, done))
        watched.write(_record(done, "held_out", held_out, weights))
    if done in checkpoints.keep_steps or not done % c.checkpoint.every_steps:
      write_late()
      guard.settle()
      save()
  write_late()
  guard.settle()
  watched.profile.close(done)
  save()
  checkpoints.wait()
  if done == c.steps and not held_out:  # resumed when all was done
    held_out = evaluate(c, start, state, inputs.held_out_rows)
  start = dataclasses.replace(start, state=state)
  return Outcome(start, held_out, stopped_by)


def evaluate(
  c: ConfigDict,
  start: start_lib.Start,
  state: step.TrainState,
  held_out_rows: Rows,
) -> list[metrics.Terms]:
  """The terms of each held-out batch: `c.eval.rows` rows, in whole batches."""
  batches = itertools.islice(
    batches_lib.held_out_batches(
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


def _profile(
  c: ConfigDict, workdir: pathlib.Path, console: Console, first_step: int
) -> speed.Profile:
  """What `log.profile` asks for; only the first process of a run traces."""
  steps = speed.traced_steps(c.log.profile, c.steps)
  return speed.Profile(
    steps if distributed.is_first() else None,
    workdir,
    functools.partial(console.print, soft_wrap=True),
    first_step=first_step,
  )


def _real_tokens(batch: Mapping[str, np.ndarray]) -> tuple[int, int]:
  """How many tokens of this process's rows are no padding, and the rows."""
  documents_BxL = batch["documents"]
  return int(np.count_nonzero(documents_BxL)), len(documents_BxL)


def _due(done: int, every: int, total: int) -> bool:
  return done % every == 0 or done == total


def _train_record(
  c: ConfigDict,
  start: start_lib.Start,
  clock: metrics.Clock,
  done: int,
  terms: list[metrics.Terms],
  weights: Mapping[str, float],
  rate: float,
) -> dict:
  record = _record(done, "train", terms, weights)
  mesh = start.mesh
  return {
    **record,
    "lr": float(rate),
    **speed.rates(
      c.batch_size / clock.secs_per_step(done),
      tokens=record["row_tokens"],
      flops=plan.row_flops(c, start.run.model),
      devices=mesh.devices.size,
      peak=speed.peak_flops(mesh.devices.flat[0].device_kind, c.model.dtype),
    ),
    **speed.memory(mesh.local_devices[0]),
    "eta_s": clock.eta_secs(done),
  }


def _record(
  done: int,
  split: str,
  terms: list[metrics.Terms],
  weights: Mapping[str, float],
) -> dict:
  values = metrics.ratios(metrics.merge(terms))
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
