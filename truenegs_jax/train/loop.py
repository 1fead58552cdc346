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
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from truenegs_jax.data.rows import batches as batches_lib
from truenegs_jax.data.rows.rows_folder import Rows
from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.train import guards, metrics, plan, sharding, speed, step
from truenegs_jax.train import setup as setup_lib
from truenegs_jax.train.build_run import Run
from truenegs_jax.workdir import checkpoints as checkpoints_lib


@dataclasses.dataclass(frozen=True)
class TrainResult:
  """A run that has ended: all steps done, unless a signal stopped it."""

  setup: setup_lib.TrainSetup  # with the last state
  held_out: list[metrics.Terms]  # by batch, of the last evaluation
  stopped_by: signal.Signals | None


@dataclasses.dataclass(frozen=True)
class Monitors:
  """Everything that follows a run without changing it."""

  write: Callable[[dict], Any]  # takes a record to every writer
  profile: speed.Profiler
  host_wait: speed.HostWait
  clock: speed.Clock
  signals: guards.StopSignals


def train(
  run: Run, workdir: pathlib.Path, inputs: setup_lib.RunInputs, console: Console
) -> TrainResult:
  """Trains to `run.steps`, or until SIGTERM or Ctrl-C, and saves.

  Raises:
    InputError, CheckpointError: before anything is compiled or written.
    DiskError: a checkpoint could not be written; those before are intact.
    NonFiniteError: more than `run.max_skips` skipped updates in a row.
  """
  with contextlib.closing(
    setup_lib.open_checkpoints(run.output, workdir)
  ) as checkpoints:
    setup = setup_lib.set_up_training(
      run, workdir, inputs, checkpoints, console
    )
    clock, first_step = speed.Clock(run.steps), int(setup.state.step)
    first = distributed.is_first_process()  # the one process that writes
    profile = speed.Profiler(
      run.output.traced_steps if first else None,
      workdir,
      functools.partial(console.print, soft_wrap=True),
      first_step=first_step,
    )
    writers = (
      metrics.make_writers(run.output.writers, workdir, first_step=first_step)
      + [metrics.ProgressLine(console, run.steps, first_step=first_step)]
      if first
      else []
    )
    with contextlib.ExitStack() as stack:
      for opened in (*writers, profile):
        stack.callback(opened.close)
      signals = stack.enter_context(guards.StopSignals(console))
      write = lambda record: [writer.write(record) for writer in writers]
      host_wait = speed.HostWait(clock.running)
      monitors = Monitors(write, profile, host_wait, clock, signals)
      return _loop(workdir, inputs, setup, checkpoints, monitors)


def _loop(
  workdir: pathlib.Path,
  inputs: setup_lib.RunInputs,
  setup: setup_lib.TrainSetup,
  checkpoints: checkpoints_lib.Checkpoints,
  monitors: Monitors,
) -> TrainResult:
  run, output = setup.run, setup.run.output
  state, done = setup.state, int(setup.state.step)
  guard = guards.SkipGuard(workdir, run.max_skips)
  vote = guards.StopVote(monitors.signals, setup.mesh)
  share = sharding.process_slice(setup.mesh, run.batch_size)
  flops, stopped_by = plan.row_flops(run), None
  monitors.clock.start(done)
  recent, held_out = [], []
  pending: list[tuple] = []  # a record's numbers, still on the devices

  def flush():
    while pending:
      step_done, terms, weights, rate = jax.device_get(pending.pop())
      record = _record(step_done, "train", terms, weights)
      record["lr"] = float(rate)
      monitors.write(record | _speeds(setup, monitors, record, flops))

  def save():
    if not _all_finite(state.params):
      raise NonFiniteError(
        f"the parameters are not finite after step {done}; they were not"
        f" saved. Last saved step: {checkpoints.latest_step()}."
      )
    checkpoints.save(done, vars(state), setup.description)

  while done < run.steps and not (stopped_by := vote.poll()):
    state = setup.refresh(state, done)
    batch = batches_lib.batch_at(
      inputs.train_rows,
      done,
      batch_size=run.batch_size,
      seed=run.seed,
      process=share,
    )
    on_device = sharding.shard_batch(batch, setup.mesh)
    monitors.profile.at(done, state.step)
    state, terms = monitors.host_wait.dispatch(
      setup.train_step, state, on_device, setup.aux
    )
    # Read one step late, so that the device never waits for the host.
    flush()
    guard.add(done, terms["skipped"][0], on_device["row"])
    recent.append(terms | {"row_tokens": _real_tokens(batch)})
    done += 1
    if _due(done, output.log_every, run.steps):
      # The weights and the rate are those of the update just made.
      weights = step.loss_weights_at(run.loss_weights, done - 1)
      pending.append((done, recent, weights, run.learning_rate(done - 1)))
      recent = []
    if _due(done, output.eval_every, run.steps):
      flush()
      with monitors.clock.paused():
        held_out = evaluate(setup, state, inputs.held_out_rows)
        weights = jax.device_get(step.loss_weights_at(run.loss_weights, done))
        monitors.write(_record(done, "held_out", held_out, weights))
    if done in checkpoints.keep_steps or not done % output.save_every:
      flush()
      guard.check_pending()
      save()
  flush()
  guard.check_pending()
  monitors.profile.close(done)
  save()
  checkpoints.wait()
  if done == run.steps and not held_out:  # resumed when all was done
    held_out = evaluate(setup, state, inputs.held_out_rows)
  setup = dataclasses.replace(setup, state=state)
  return TrainResult(setup, held_out, stopped_by)


def evaluate(
  setup: setup_lib.TrainSetup, state: step.TrainState, held_out_rows: Rows
) -> list[metrics.Terms]:
  """The terms of each held-out batch: `eval_rows` rows, in whole batches."""
  size = setup.run.batch_size
  batches = itertools.islice(
    batches_lib.held_out_batches(
      held_out_rows,
      batch_size=size,
      process=sharding.process_slice(setup.mesh, size),
    ),
    math.ceil(setup.run.output.eval_rows / size),
  )
  aux = {**setup.aux, **state.aux}
  return [
    jax.device_get(
      setup.eval_step(
        state.params, sharding.shard_batch(batch, setup.mesh), aux
      )
    )
    for batch in batches
  ]


def _real_tokens(batch: Mapping[str, np.ndarray]) -> tuple[int, int]:
  """How many tokens of this process's rows are no padding, and the rows."""
  documents_BxL = batch["documents"]
  return int(np.count_nonzero(documents_BxL)), len(documents_BxL)


def _due(done: int, every: int, total: int) -> bool:
  return done % every == 0 or done == total


def _speeds(
  setup: setup_lib.TrainSetup, monitors: Monitors, record: Mapping, flops: float
) -> dict:
  """The fields of a training record about time and memory."""
  done, devices = record["step"], setup.mesh.devices
  dtype = next(iter(setup.run.model.roles.values())).dtype
  return {
    **speed.throughput_fields(
      setup.run.batch_size / monitors.clock.secs_per_step(done),
      tokens=record["row_tokens"],
      flops=flops,
      devices=devices.size,
      peak=speed.peak_flops(devices.flat[0].device_kind, dtype),
    ),
    **speed.memory_fields(setup.mesh.local_devices[0]),
    "eta_s": monitors.clock.eta_secs(done),
    **monitors.host_wait.share(),
  }


def _record(
  done: int,
  split: str,
  terms: list[metrics.Terms],
  weights: Mapping[str, float],
) -> dict:
  values = metrics.compute_ratios(metrics.merge_terms(terms))
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
