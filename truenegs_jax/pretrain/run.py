"""Runs the task "pretrain": from text to a model in Hugging Face format.

config -> plan -> start -> training -> evaluate, export, report
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.data import batches as batches_lib
from truenegs_jax.pretrain import (
  branch,
  describe,
  evaluate,
  export_run,
  plan,
  search,
)
from truenegs_jax.pretrain import start as start_lib
from truenegs_jax.pretrain.evaluate import Trained
from truenegs_jax.pretrain.start import Started
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import distributed, errors, progress
from truenegs_jax.train import (
  console_line,
  guards,
  loggers,
  metrics,
  sharding,
  speed,
)
from truenegs_jax.train import loop as loop_lib
from truenegs_jax.train import step as step_lib
from truenegs_jax.weights import find
from truenegs_jax.workdir import files, lock
from truenegs_jax.workdir.checkpoints import Checkpoints

ROWS_VERIFIED = "rows_verified"  # key of a checkpoint's description
SAVE_MEMORY = (
  "Run the same command again with --config.model.vocabulary_chunk=1024, which"
  " needs less."
)


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Starts or resumes a pre-training; returns the exit code."""
  say = functools.partial(console.print, soft_wrap=True)
  config = PretrainConfig.read(c)
  clock = speed.TimeLimit(
    config.steps, limit_secs=60 * config.minutes, began=errors.BEGAN
  )
  weights = find.Weights(config.init, say)
  folder = workdir / files.CHECKPOINTS
  files.check_checkpoint_folder(folder)
  memory = speed.device_memory()
  with distributed.raise_everywhere("config"):
    saved = branch.read_config(workdir, config.branch)
    config = plan.resolve_config(config, weights, saved=saved, say=say)
    is_new = saved is None and not config.dry_run
    trial = plan.try_run(config, weights, memory=memory, is_new=is_new)
  if config.dry_run:
    describe.dry_run(trial, console)
    return 0
  with lock.lock(workdir) as lease:
    with distributed.raise_everywhere("rows"):
      rows, tokenizer = start_lib.prepare_rows(
        config.data, config.length, console
      )
    planned = plan.make_run(
      config, tokenizer, weights, memory=memory, check=True
    )
    with distributed.raise_everywhere("inputs"):
      inputs = start_lib.read_inputs(planned, rows, workdir, console)
    checkpoints = Checkpoints(
      folder,
      keep=config.checkpoint.keep,
      keep_steps=planned.kept_steps,
      lease=lease,
    )
    with _name_suspect_steps(workdir):
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
  clock: speed.TimeLimit,
  console: Console,
) -> Trained:
  """Trains until the last step, SIGTERM or Ctrl-C, and saves a checkpoint."""
  run = started.run
  c = run.config
  first_step = int(started.state.step)
  say = functools.partial(console.print, soft_wrap=True)
  profile = c.log.profile if distributed.is_first_process() else ""
  traced_steps = speed.parse_profile(profile, c.steps)
  profiler = speed.Profiler(traced_steps, workdir, say)
  total = 0 if c.minutes else c.steps
  line = console_line.ProgressLine(console, total, first_step=first_step)
  config = started.description["config"]
  lease = checkpoints.lease
  logged = loggers.LoggedRun(workdir, first_step, config, lease.check)
  with (
    loggers.open_writers(c.log.writers, logged, line) as (write, flush_log),
    contextlib.closing(profiler),
    guards.StopSignals(console) as signals,
  ):
    verification = started.inputs.verification
    vote = guards.StopVote(
      signals, run.mesh, lambda: verification.error or lease.error
    )
    training = Training(started, workdir, write, profiler, clock, console)
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
      report=say,
      guard=guards.SkipGuard(workdir, c.optim.max_skips),
      clock=clock,
    )
    stopped_by = loop.run()
    profiler.close(loop.done)
    loop.save(last=True)
    if not (training.held_out or stopped_by):  # all steps were done before
      training.compute_held_out(loop.state)
    return Trained(
      run,
      started.inputs,
      loop.state,
      loop.done,
      training.held_out,
      started.description["fingerprints"],
      stopped_by,
      clock.estimate_secs(loop.done),
    )


@dataclasses.dataclass
class Training:
  """Functions of the training loop."""

  started: Started
  workdir: pathlib.Path
  write: Callable[[dict], None]
  profiler: speed.Profiler
  clock: speed.TimeLimit
  console: Console
  # Terms of each batch of the last evaluation.
  held_out: list[metrics.Terms] = dataclasses.field(default_factory=list)
  schedule_step: int = 0  # of the last update's learning rate

  def __post_init__(self) -> None:
    run = self.started.run
    self._config = run.config
    self._mesh = run.mesh
    self._first_step = int(self.started.state.step)
    self._warned = False
    self._saves = itertools.count()
    self._host_wait = speed.HostWait(self.clock.running)
    self._flops = describe.row_flops(run)
    size = run.config.batch_size
    self._slice: dict[str, Any] = {
      "batch_size": size,
      "process": sharding.process_slice(run.mesh, size),
    }

  def is_evaluated(self, done: int) -> bool:
    """Returns whether held-out rows are evaluated after `done` steps."""
    return self.clock.share == 1 or not done % self._config.eval.every_steps

  def is_saved(self, done: int) -> bool:
    """Returns whether a checkpoint is saved after `done` steps."""
    is_due = not done % self._config.checkpoint.every_steps
    return is_due or done in self.started.run.kept_steps

  def content(self, state: step_lib.TrainState) -> tuple[dict, dict]:
    """Returns arrays and description of a checkpoint."""
    is_verified = distributed.is_true_everywhere(
      f"save {next(self._saves)}",
      value=self.started.inputs.verification.is_complete,
    )
    return vars(state), {
      **self.started.description,
      ROWS_VERIFIED: is_verified,
      speed.TIME: self.clock.to_json(),
    }

  def take_step(
    self, state: step_lib.TrainState, done: int
  ) -> loop_lib.StepResult:
    """Trains on the batch of a step."""
    if done == self._first_step:
      self._remove_outdated()
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
    on_device = sharding.shard_batch(batch, self._mesh)
    self.profiler.update(done, state.step)
    state, terms = self._host_wait.dispatch(
      started.train_step, state, on_device, started.aux
    )
    documents_BxL = batch["documents"]  # 0 is padding
    num_tokens = int(np.count_nonzero(documents_BxL)), len(documents_BxL)
    return state, {**terms, "row_tokens": num_tokens}, on_device["row"]

  def _remove_outdated(self) -> None:
    """Removes the results of fewer steps."""
    if distributed.is_first_process():
      for name in (files.RESULTS, files.CASES):
        files.remove_outdated(self.workdir / name)

  def log(self, record: dict[str, Any]) -> None:
    """Writes a record of training, with speed and memory."""
    done = record["step"]
    kind = self._mesh.devices.flat[0].device_kind
    throughput = speed.throughput_fields(
      self._config.batch_size / self.clock.secs_per_step(done),
      tokens=record["row_tokens"],
      flops=self._flops,
      devices=self._mesh.devices.size,
      peak=speed.peak_flops(kind, self._config.model.dtype),
    )
    memory = speed.memory_fields(self._mesh.local_devices[0])
    record |= throughput | memory | {"eta_s": self.clock.eta_secs(done)}
    if self._config.minutes:
      record["total_steps"] = self.clock.expected_steps(done)
    self.write(record | self._host_wait.pop_fields())

  def evaluate(self, done: int, state: step_lib.TrainState) -> None:
    """Evaluates held-out rows and writes a record."""
    self.compute_held_out(state)
    record = loop_lib.make_record(
      done, "held_out", self.held_out, self.started.run.loss_weights
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
  clock: speed.TimeLimit,
  console: Console,
) -> None:
  """Evaluates, exports and reports a finished run.

  Each part is on disk before the next begins. After an error, which ends the
  command, the same command does all parts again.
  """
  say = functools.partial(console.print, soft_wrap=True)
  with _part("verification of the rows"):
    with progress.working(console, "Verifying the rest of the rows"):
      trained.inputs.verification.finish()
  try:
    with _part("evaluation"):
      verdict = evaluate.evaluate(trained, workdir, console)
    with _part("export"):
      export_run.export_trained(trained, workdir, console)
    with _part("search for examples"):
      evaluate.save_fills(trained, workdir, console)
      if trained.run.config.negatives.hard_correction:
        search.save_cases(trained, workdir, clock, console)
  finally:
    if distributed.is_first_process():
      write_own_report(workdir, say)
  c = trained.run.config
  say(evaluate.describe_outcome(verdict, c, trained.steps, trained.all_secs))
  if verdict.passed:
    say(evaluate.describe_next_steps(workdir))
  else:
    say(evaluate.describe_results(workdir))


@contextlib.contextmanager
def _part(name: str) -> Iterator[None]:
  """Raises an error of the body in all processes, and says when it came."""
  with distributed.raise_everywhere(name):
    try:
      yield
    except Exception as e:
      error = errors.explain(distributed.explain_loss(e), memory=SAVE_MEMORY)
      if error is None or isinstance(error, errors.LostError):
        raise
      text = f"After the last step, the {name} failed: {error}"
      raise type(error)(text) from e


@contextlib.contextmanager
def _name_suspect_steps(workdir: pathlib.Path) -> Iterator[None]:
  """Adds the steps that may have learned from damaged rows to a DataError."""
  try:
    yield
  except errors.DataError as e:
    suspects: list[int] = []
    folder = workdir / files.CHECKPOINTS
    if files.has_checkpoint(workdir):
      saved = Checkpoints(folder, read_only=True)
      with contextlib.closing(saved):
        for step in saved.steps():
          suspects.append(step)
          with contextlib.suppress(errors.DamagedStepError):
            if saved.read_description(step).get(ROWS_VERIFIED):
              suspects = []
    if not suspects:
      raise
    raise errors.DataError(
      f"{e} Steps {', '.join(map(str, suspects))} in '{folder}' were saved"
      " before all rows were verified and may have learned from them: remove"
      " these steps, too."
    ) from e
