"""Runs the pre-training loop: steps, logs, evaluations, checkpoints.

A batch and all random draws are functions of the step, so a resumed run equals
an uninterrupted one bit for bit.
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
from truenegs_jax.runtime.errors import DiskError, NonFiniteError
from truenegs_jax.train import guards, metrics, plan, sharding, speed, step
from truenegs_jax.train import setup as setup_lib
from truenegs_jax.train.build_run import Run
from truenegs_jax.workdir import checkpoints as checkpoints_lib


@dataclasses.dataclass(frozen=True)
class TrainResult:
  """State and held-out terms at the end of `train`."""

  setup: setup_lib.PretrainSetup  # with the last state
  held_out: list[metrics.Terms]  # of each batch of the last evaluation
  stopped_by: signal.Signals | None  # None if all steps are done


@dataclasses.dataclass(frozen=True)
class Monitors:
  """Objects that observe a run without changing it."""

  write: Callable[[dict], None]  # writes a record with every writer
  profiler: speed.Profiler
  host_wait: speed.HostWait
  clock: speed.Clock
  signals: guards.StopSignals
  console: Console


def train(
  run: Run, workdir: pathlib.Path, inputs: setup_lib.RunInputs, console: Console
) -> TrainResult:
  """Trains until `run.steps`, SIGTERM or Ctrl-C, and saves a checkpoint.

  Raises:
    InputError, CheckpointError: the run cannot start; nothing is written.
    DiskError: a file could not be written; earlier checkpoints are intact.
    NonFiniteError: more than `run.max_skips` updates in a row were skipped, or
      the parameters are not finite.
  """
  with contextlib.ExitStack() as stack:
    checkpoints = setup_lib.open_checkpoints(run, workdir)
    stack.callback(checkpoints.close)
    setup = setup_lib.set_up_training(
      run, workdir, inputs, checkpoints, console
    )
    first_step = int(setup.state.step)
    is_writer = distributed.is_first_process()
    profiler = speed.Profiler(
      run.traced_steps if is_writer else None,
      workdir,
      functools.partial(console.print, soft_wrap=True),
      first_step=first_step,
    )
    writers: list[Any] = []
    if is_writer:
      writers = [
        *metrics.make_writers(run.writers, workdir, first_step=first_step),
        metrics.ProgressLine(console, run.steps, first_step=first_step),
      ]
    for closable in (*writers, profiler):
      stack.callback(closable.close)
    signals = stack.enter_context(guards.StopSignals(console))

    def write(record: dict) -> None:
      for writer in writers:
        writer.write(record)

    clock = speed.Clock(run.steps)
    host_wait = speed.HostWait(clock.running)
    monitors = Monitors(write, profiler, host_wait, clock, signals, console)
    return _train_steps(workdir, inputs, setup, checkpoints, monitors)


def _train_steps(
  workdir: pathlib.Path,
  inputs: setup_lib.RunInputs,
  setup: setup_lib.PretrainSetup,
  checkpoints: checkpoints_lib.Checkpoints,
  monitors: Monitors,
) -> TrainResult:
  run, state, done = setup.run, setup.state, int(setup.state.step)
  guard = guards.SkipGuard(workdir, run.max_skips)
  vote = guards.StopVote(monitors.signals, setup.mesh)
  process = sharding.process_slice(setup.mesh, run.batch_size)
  flops, stopped_by = plan.row_flops(run), None
  monitors.clock.start(done)
  recent, held_out = [], []
  pending: list[tuple] = []  # values of one record, still on the devices

  def flush() -> None:
    while pending:
      logged_step, terms, weights, rate = jax.device_get(pending.pop())
      record = _make_record(logged_step, "train", terms, weights)
      record["lr"] = float(rate)
      monitors.write(record | _speed_fields(setup, monitors, record, flops))

  def save(*, last: bool = False) -> None:
    saved = setup.description, state
    if warning := _save_state(checkpoints, done, *saved, last=last):
      monitors.console.print(warning, soft_wrap=True)

  while done < run.steps and not (stopped_by := vote.poll()):
    state = setup.refresh(state, done)
    batch = batches_lib.batch_at(
      inputs.train_rows,
      done,
      batch_size=run.batch_size,
      seed=run.seed,
      process=process,
    )
    on_device = sharding.shard_batch(batch, setup.mesh)
    monitors.profiler.update(done, state.step)
    state, terms = monitors.host_wait.dispatch(
      setup.train_step, state, on_device, setup.aux
    )
    # Metrics are read one step late, so that no device waits for the host.
    flush()
    guard.add(done, terms["skipped"][0], on_device["row"])
    recent.append(terms | {"row_tokens": _count_tokens(batch["documents"])})
    done += 1
    is_last = done == run.steps
    if is_last or not done % run.log_every:
      # The last update was that of step done - 1.
      weights = step.loss_weights_at(run.loss_weights, done - 1)
      pending.append((done, recent, weights, run.learning_rate(done - 1)))
      recent = []
    if is_last or not done % run.eval_every:
      flush()
      with monitors.clock.paused(), monitors.console.status("evaluating ..."):
        held_out = evaluate(setup, state, inputs.held_out_rows)
        weights = jax.device_get(step.loss_weights_at(run.loss_weights, done))
        monitors.write(_make_record(done, "held_out", held_out, weights))
    if done in checkpoints.keep_steps or not done % run.save_every:
      flush()
      guard.check_pending()
      save()
  flush()
  guard.check_pending()
  monitors.profiler.close(done)
  save(last=True)
  if done == run.steps and not held_out:  # all steps were done before
    with monitors.console.status("evaluating ..."):
      held_out = evaluate(setup, state, inputs.held_out_rows)
  setup = dataclasses.replace(setup, state=state)
  return TrainResult(setup, held_out, stopped_by)


def _save_state(
  checkpoints: checkpoints_lib.Checkpoints,
  done: int,
  description: Mapping[str, Any],
  state: step.TrainState,
  *,
  last: bool,
) -> str:
  """Saves a step; returns "" or, if the disk is full, a warning.

  Raises:
    NonFiniteError: the parameters are not finite.
    DiskError: the last step, or one of many processes, could not be saved.
  """
  if not _all_finite(state.params):
    raise NonFiniteError(
      f"The parameters are not finite after step {done:,} and were not"
      f" saved. Last saved step: {checkpoints.latest_step() or 'none'}."
    )
  try:
    return checkpoints.save(done, vars(state), description, wait=last)
  except DiskError as e:
    if last or distributed.process_count() > 1:
      raise
    return f"warning: {e} The run goes on and tries again at its next save."


def evaluate(
  setup: setup_lib.PretrainSetup, state: step.TrainState, held_out_rows: Rows
) -> list[metrics.Terms]:
  """Returns the terms of each held-out batch.

  Uses `eval_rows` rows, rounded up to whole batches, or all if there are fewer.
  """
  batch_size = setup.run.batch_size
  batches = itertools.islice(
    batches_lib.held_out_batches(
      held_out_rows,
      batch_size=batch_size,
      process=sharding.process_slice(setup.mesh, batch_size),
    ),
    math.ceil(setup.run.eval_rows / batch_size),
  )
  aux, held_out = {**setup.aux, **state.aux}, []
  for batch in batches:
    on_device = sharding.shard_batch(batch, setup.mesh)
    terms = setup.eval_step(state.params, on_device, aux)
    held_out.append(jax.device_get(terms))
  return held_out


def _count_tokens(documents_BxL: np.ndarray) -> tuple[int, int]:
  """Returns the numbers of tokens without padding and of rows, as a term."""
  return int(np.count_nonzero(documents_BxL)), len(documents_BxL)


def _speed_fields(
  setup: setup_lib.PretrainSetup,
  monitors: Monitors,
  record: Mapping,
  flops: float,
) -> dict:
  """Returns the fields of a training record about time and memory."""
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
    **monitors.host_wait.pop_fields(),
  }


def _make_record(
  done: int, split: str, terms: list[metrics.Terms], weights: Mapping
) -> dict:
  values = metrics.compute_ratios(metrics.merge_terms(terms))
  total = sum(float(w) * values[name] for name, w in weights.items())
  fields = {"step": done, "time": round(time.time(), 3), "split": split}
  return fields | {"total": total} | values


@jax.jit
def _all_finite(params: dict) -> jax.Array:
  finite = [jnp.isfinite(x).all() for x in jax.tree.leaves(params)]
  return jnp.stack(finite).all()
