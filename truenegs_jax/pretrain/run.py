"""Runs the task "pretrain": from text to a model in Hugging Face format.

config -> plan -> start -> training -> evaluate, export, report
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.data import batches as batches_lib
from truenegs_jax.pretrain import describe, evaluate, export_run, plan, resolve
from truenegs_jax.pretrain import start as start_lib
from truenegs_jax.pretrain.plan import Trained
from truenegs_jax.pretrain.start import Started
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import distributed, errors, progress
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.train import guards, loggers, metrics, optim, sharding
from truenegs_jax.train import loop as loop_lib
from truenegs_jax.train import step as step_lib
from truenegs_jax.weights import export_model, find
from truenegs_jax.workdir import files, lock
from truenegs_jax.workdir.checkpoints import Checkpoints


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Starts or resumes a pre-training; returns the exit code."""
  say = functools.partial(console.print, soft_wrap=True)
  config = PretrainConfig.read(c)
  clock = guards.Clock(config.steps, 60 * config.minutes, errors.BEGAN)
  weights = find.Weights(config.init, say)
  folder = workdir / files.CHECKPOINTS
  files.check_checkpoint_folder(folder)
  sharding.device_memory()  # asks process 0, and keeps the answer
  with distributed.raise_everywhere("config"):
    export_model.check_replaceable(workdir / files.EXPORT)
    saved = start_lib.read_saved_config(workdir, config.branch)
    config = resolve.resolve_config(
      config, weights, saved=saved, has_table=files.has_checkpoint(workdir)
    )
    optim.report_high_rate(config.optim.lr, say)
    is_new = saved is None and not config.dry_run
    trial = plan.try_run(config, weights, is_new=is_new)
  if config.dry_run:
    describe.dry_run(trial, console)
    return 0
  with lock.lock(workdir) as lease:
    with distributed.raise_everywhere("rows"):
      rows, tokenizer = start_lib.prepare_rows(
        config.data, config.length, console
      )
    planned = plan.make_run(config, tokenizer, weights, check=True)
    with distributed.raise_everywhere("inputs"):
      inputs = start_lib.read_inputs(planned, rows, workdir, console)
    checkpoints = Checkpoints(
      folder,
      keep=config.checkpoint.keep,
      keep_steps=start_lib.find_kept_steps(config, folder),
      lease=lease,
    )
    with contextlib.closing(checkpoints):
      started = start_lib.start(
        planned, inputs, workdir, checkpoints, clock, console
      )
      trained = train(started, workdir, checkpoints, clock, console)
    with distributed.raise_everywhere("lease"):
      lease.check()  # before results of a successor are replaced
    if trained.stopped_by is None:
      _finish(trained, workdir, clock, console)
      return 0
    say(
      f"Saved at step {trained.steps:,}. To continue, run the same command"
      f" again: {errors.rerun_command()}"
    )
    if distributed.is_first_process():
      write_own_report(workdir, say)
    return errors.SIGNAL_CODES[trained.stopped_by]


def train(
  started: Started,
  workdir: pathlib.Path,
  checkpoints: Checkpoints,
  clock: guards.Clock,
  console: Console,
) -> Trained:
  """Trains until the last step, SIGTERM or Ctrl-C, and saves a checkpoint."""
  run = started.run
  c = run.config
  first_step = int(started.state.step)
  total = 0 if c.minutes else c.steps
  line = loggers.ProgressLine(console, total, first_step=first_step)
  config = started.description["config"]
  lease = checkpoints.lease
  logged = loggers.LoggedRun(workdir, first_step, config, lease.check)
  with (
    loggers.open_writers(c.log.writers, logged, line) as (write, flush_log),
    guards.StopSignals(console) as signals,
  ):
    vote = guards.StopVote(signals, run.mesh, lambda: lease.error)
    training = Training(started, workdir, write, clock, console)
    loop = loop_lib.Loop(
      state=started.state,
      take_step=training.take_step,
      loss_weights=run.loss_weights,
      learning_rate=lambda _: run.learning_rate(training.schedule_step),
      log_every=c.log.every_steps,
      log=training.log,
      flush_log=flush_log,
      is_evaluated=training.is_evaluated,
      evaluate=training.evaluate,
      poll=vote.poll,
      is_saved=training.is_saved,
      content=training.content,
      checkpoints=checkpoints,
      report=functools.partial(console.print, soft_wrap=True),
      guard=guards.SkipGuard(c.optim.max_skips),
      clock=clock,
    )
    stopped_by = loop.run()
    loop.save(last=True)
    if not (training.held_out or stopped_by):  # all steps were done before
      training.compute_held_out(loop.state)
    with distributed.watch_step():
      # In many processes, each vote has the result of the one before.
      stopped_by = stopped_by or vote.poll() or vote.poll()
  return Trained(
    run,
    started.inputs,
    loop.state,
    loop.done,
    training.held_out,
    started.description["fingerprints"],
    stopped_by,
  )


@dataclasses.dataclass
class Training:
  """Functions of the training loop."""

  started: Started
  workdir: pathlib.Path
  write: Callable[[dict], None]
  clock: guards.Clock
  console: Console

  def __post_init__(self) -> None:
    """Prepares counts and batches."""
    self.held_out: list[metrics.Terms] = []  # of the last evaluation's batches
    self.schedule_step = 0  # of the last update's learning rate
    run = self.started.run
    self._config = run.config
    self._mesh = run.mesh
    self._first_step = int(self.started.state.step)
    self._row_flops = {  # by the parts of a row
      parts: describe.row_flops(run, parts)
      for parts in self.started.train_steps
    }
    self._flops = 0.0  # of a row, summed over steps
    size = self._config.batch_size
    self._slice: dict[str, Any] = {
      "batch_size": size,
      "process": sharding.process_slice(self._mesh, size),
    }

  def is_evaluated(self, done: int) -> bool:
    """Returns whether held-out rows are evaluated after `done` steps."""
    return self.clock.share == 1 or not done % self._config.eval.every_steps

  def is_saved(self, done: int) -> bool:
    """Returns whether a checkpoint is saved after `done` steps."""
    is_due = not done % self._config.checkpoint.every_steps
    return is_due or done in plan.list_kept_steps(self._config)

  def content(self, state: step_lib.TrainState) -> tuple[dict, dict]:
    """Returns arrays and description of a checkpoint."""
    description = self.started.description
    return vars(state), {**description, guards.TIME: self.clock.to_json()}

  def take_step(
    self, state: step_lib.TrainState, done: int
  ) -> loop_lib.StepResult:
    """Trains on the batch of a step."""
    if done == self._first_step and distributed.is_first_process():
      for name in (files.RESULTS, files.CASES):  # of fewer steps
        path = self.workdir / name
        with disk_errors(path):
          path.unlink(missing_ok=True)
    self.schedule_step = self.clock.schedule_step
    if self.schedule_step != done:
      array = jax.make_array_from_callback(
        (), state.step.sharding, lambda _: np.int32(self.schedule_step)
      )
      state = step_lib.set_schedule_step(state, array)
    started = self.started
    state = started.refresh(state, done)
    rows = started.inputs.train_rows
    seed = self._config.seed
    batch = batches_lib.batch_at(rows, done, seed=seed, **self._slice)
    parts = plan.count_parts(self._config, self.schedule_step)
    self._flops += self._row_flops[parts]
    short_rows = batches_lib.split_rows(batch, parts)
    on_device = sharding.shard_batch(short_rows, self._mesh)
    train_step = started.train_steps[parts]
    state, terms = train_step(state, on_device, started.aux)
    documents_BxL = batch["documents"]  # 0 is padding
    num_tokens = int(np.count_nonzero(documents_BxL)), len(documents_BxL)
    return state, {**terms, "row_tokens": num_tokens}

  def log(self, record: dict[str, Any]) -> None:
    """Writes a record of training, with speed and memory."""
    done = record["step"]
    kind = self._mesh.devices.flat[0].device_kind
    record |= metrics.throughput_fields(
      self._config.batch_size / self.clock.secs_per_step(done),
      tokens=record["row_tokens"],
      flops=self._flops / max(done - self._first_step, 1),
      devices=self._mesh.devices.size,
      peak=metrics.peak_flops(kind, self._config.model.dtype),
    )
    record |= metrics.memory_fields(self._mesh.local_devices[0])
    record["eta_s"] = self.clock.eta_secs(done)
    if self._config.minutes:
      record["total_steps"] = self.clock.expected_steps(done)
    self.write(record)

  def evaluate(self, done: int, state: step_lib.TrainState) -> None:
    """Evaluates held-out rows and writes a record."""
    self.compute_held_out(state)
    weights = self.started.run.loss_weights
    record = loop_lib.make_record(done, "held_out", self.held_out, weights)
    if rate_pairs := self.started.inputs.rate_pairs:
      rates = rate_pairs(state.params, self.console)
      record["blimp"] = float(np.mean([*rates.values()]))
      record["blimp_paradigms"] = len(rates)
    self.write(record)

  def compute_held_out(self, state: step_lib.TrainState) -> None:
    """Computes `held_out` of `eval.rows` rows, rounded up to whole batches."""
    started = self.started
    held_out = []
    rows = started.inputs.held_out_rows
    aux = {**started.aux, **state.aux}
    c = self._config
    num_batches = math.ceil(min(c.eval.rows, len(rows)) / c.batch_size)
    batches = batches_lib.held_out_batches(rows, **self._slice)
    with progress.counting(
      self.console, "Evaluating, batches", num_batches, brief=True
    ) as advance:
      for batch in itertools.islice(batches, num_batches):
        with distributed.watch_step():
          on_device = sharding.shard_batch(batch, self._mesh)
          terms = started.eval_step(state.params, on_device, aux)
          held_out.append(jax.device_get(terms))
        advance()
    self.held_out = held_out


def _finish(
  trained: Trained,
  workdir: pathlib.Path,
  clock: guards.Clock,
  console: Console,
) -> None:
  """Evaluates, exports and reports a finished run.

  Each part is on disk before the next begins. After an error, which ends the
  command, the same command does all parts again.
  """
  say = functools.partial(console.print, soft_wrap=True)
  c = trained.run.config
  try:
    with distributed.raise_everywhere("evaluation"):
      verdict = evaluate.evaluate(trained, workdir, console)
    with distributed.raise_everywhere("export"):
      export_run.export_trained(trained, workdir, console)
    if trained.run.table_request:
      with distributed.raise_everywhere("search for corrections"):
        evaluate.save_cases(trained, workdir, clock, console)
  finally:
    if distributed.is_first_process():
      write_own_report(workdir, say)
  say(evaluate.describe_outcome(verdict, c, trained.steps, workdir))
  say(evaluate.describe_results(verdict, workdir))
