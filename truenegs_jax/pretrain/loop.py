"""Pre-trains: gives the training loop its batches, evaluations and records."""

import contextlib
import dataclasses
import functools
import itertools
import math
import pathlib
import signal
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from rich.console import Console

from truenegs_jax.data import batches as batches_lib
from truenegs_jax.runtime import distributed, progress
from truenegs_jax.train import (
  console_line,
  guards,
  loggers,
  metrics,
  plan,
  sharding,
  speed,
  step,
)
from truenegs_jax.train import loop as loop_lib
from truenegs_jax.workdir import checkpoints as checkpoints_lib

ROWS_VERIFIED = "rows_verified"  # key of a checkpoint's description


def train(
  setup: plan.PretrainSetup,
  workdir: pathlib.Path,
  checkpoints: checkpoints_lib.Checkpoints,
  console: Console,
) -> "Training":
  """Trains until the last step, SIGTERM or Ctrl-C, and saves a checkpoint."""
  run = setup.run
  c = setup.run.config
  eval_every = c.eval.every_steps
  save_every = c.checkpoint.every_steps
  with contextlib.ExitStack() as stack:
    first_step = int(setup.state.step)
    clock = setup.clock
    say = functools.partial(console.print, soft_wrap=True)
    profile = c.log.profile if distributed.is_first_process() else ""
    traced_steps = speed.parse_profile(profile, c.steps)
    profiler = speed.Profiler(traced_steps, workdir, say)
    total = 0 if c.minutes else c.steps
    line = console_line.ProgressLine(console, total, first_step=first_step)
    logged = loggers.LoggedRun(
      workdir,
      first_step,
      setup.description["config"],
      checkpoints.lease.check,
    )
    write, flush_log = stack.enter_context(
      loggers.open_writers(c.log.writers, logged, line)
    )
    stack.callback(profiler.close)
    signals = stack.enter_context(guards.StopSignals(console))
    training = Training(setup, write, profiler, clock, console)
    loop = loop_lib.Loop(
      state=setup.state,
      take_step=training.take_step,
      loss_weights=run.loss_weights,
      learning_rate=lambda n: run.learning_rate(clock.schedule_step(int(n))),
      log_every=c.log.every_steps,
      log=training.log,
      flush_log=flush_log,
      is_evaluated=lambda n: n == clock.total_steps or not n % eval_every,
      evaluate=training.evaluate,
      poll=guards.StopVote(
        signals,
        setup.mesh,
        lambda: setup.inputs.verification.error or checkpoints.lease.error,
      ).poll,
      is_saved=lambda n: n in run.kept_steps or not n % save_every,
      content=training.content,
      checkpoints=checkpoints,
      report=say,
      guard=guards.SkipGuard(workdir, c.optim.max_skips),
      clock=clock,
    )
    training.stopped_by = loop.run()
    profiler.close(loop.done)
    loop.save(last=True)
    training.finish(loop)
    return training


@dataclasses.dataclass
class Training:
  """Functions of the training loop; at its end, `setup` has the last state."""

  setup: plan.PretrainSetup
  write: Callable[[dict], None]
  profiler: speed.Profiler
  clock: speed.TimeLimit
  console: Console
  # Terms of each batch of the last evaluation.
  held_out: list[metrics.Terms] = dataclasses.field(default_factory=list)
  stopped_by: signal.Signals | None = None  # None if all steps are done
  steps: int = 0  # that are done, at the end

  def __post_init__(self) -> None:
    self._warned = False
    self._saves = itertools.count()
    self._host_wait = speed.HostWait(self.clock.running)
    self._flops = plan.row_flops(self.setup.run)
    c = self.setup.run.config
    self._slice: dict[str, Any] = {
      "batch_size": c.batch_size,
      "process": sharding.process_slice(self.setup.mesh, c.batch_size),
    }

  def finish(self, loop: loop_lib.Loop) -> None:
    """Keeps the last state; evaluates it if all steps were done before."""
    self.setup = dataclasses.replace(self.setup, state=loop.state)
    self.steps = loop.done
    c = self.setup.run.config
    if self.stopped_by is not None:
      return
    if loop.done < c.steps:
      few = "warning: Only " if 2 * loop.done < c.steps else ""
      loop.report(
        f"{few}{self.steps:,} of {c.steps:,} steps fit into"
        f" minutes={c.minutes:g}."
      )
    if not self.held_out:
      self.compute_held_out(loop.state)

  def content(self, state: step.TrainState) -> tuple[dict, dict]:
    """Returns arrays and description of a checkpoint."""
    verification = self.setup.inputs.verification
    number = next(self._saves)
    is_verified = distributed.is_true_everywhere(
      f"save {number}", value=verification.is_complete
    )
    description = self.setup.description | {
      ROWS_VERIFIED: is_verified,
      speed.TIME: self.clock.to_json(),
    }
    return vars(state), description

  def take_step(self, state: step.TrainState, done: int) -> loop_lib.StepResult:
    """Trains on the batch of a step."""
    setup = self.setup
    self.clock.correct(done)
    if (place := self.clock.schedule_step(done)) != done:
      array = jax.make_array_from_callback(
        (), state.step.sharding, lambda _: np.int32(place)
      )
      state = step.set_schedule_step(state, array)
    state = setup.refresh(state, done)
    rows = setup.inputs.train_rows
    seed = setup.run.config.seed
    batch = batches_lib.batch_at(rows, done, seed=seed, **self._slice)
    on_device = sharding.shard_batch(batch, setup.mesh)
    self.profiler.update(done, state.step)
    state, terms = self._host_wait.dispatch(
      setup.train_step, state, on_device, setup.aux
    )
    documents_BxL = batch["documents"]  # 0 is padding
    num_tokens = int(np.count_nonzero(documents_BxL)), len(documents_BxL)
    return state, {**terms, "row_tokens": num_tokens}, on_device["row"]

  def log(self, record: dict[str, Any]) -> None:
    """Writes a record of training, with speed and memory."""
    run = self.setup.run
    mesh = self.setup.mesh
    done = record["step"]
    kind = mesh.devices.flat[0].device_kind
    throughput = speed.throughput_fields(
      run.config.batch_size / self.clock.secs_per_step(done),
      tokens=record["row_tokens"],
      flops=self._flops,
      devices=mesh.devices.size,
      peak=speed.peak_flops(kind, run.config.model.dtype),
    )
    memory = speed.memory_fields(mesh.local_devices[0])
    record |= throughput | memory | {"eta_s": self.clock.eta_secs(done)}
    if run.config.minutes:
      record["total_steps"] = self.clock.total_steps
    self.write(record | self._host_wait.pop_fields())

  def evaluate(self, done: int, state: step.TrainState) -> None:
    """Evaluates held-out rows and writes a record."""
    self.compute_held_out(state)
    record = loop_lib.make_record(
      done, "held_out", self.held_out, self.setup.run.loss_weights
    )
    self.write(record)
    if not (self._warned or math.isfinite(record["total"])):
      self._warned = True
      self.console.print(
        f"warning: The held-out loss after step {done:,} is not finite"
        f" (total={record['total']}). Training goes on. If its loss does not"
        " fall, start a new run with a lower --config.optim.lr=NUMBER.",
        soft_wrap=True,
      )

  def compute_held_out(self, state: step.TrainState) -> None:
    """Computes `held_out` of `eval.rows` rows, rounded up to whole batches."""
    setup = self.setup
    held_out = []
    rows = setup.inputs.held_out_rows
    aux = {**setup.aux, **state.aux}
    c = setup.run.config
    num_batches = math.ceil(min(c.eval.rows, len(rows)) / c.batch_size)
    batches = batches_lib.held_out_batches(rows, **self._slice)
    with progress.counting(
      self.console, "Evaluating, batches", num_batches, brief=True
    ) as advance:
      for batch in itertools.islice(batches, num_batches):
        with distributed.watch_step():
          on_device = sharding.shard_batch(batch, setup.mesh)
          terms = setup.eval_step(state.params, on_device, aux)
          held_out.append(jax.device_get(terms))
        advance()
    self.held_out = held_out
