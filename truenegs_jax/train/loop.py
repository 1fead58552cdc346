"""Repeats a training step: records, evaluations, checkpoints, signals.

Pre-training and fine-tuning use the same loop. A batch and all random draws are
functions of the step, and a checkpoint has the terms since the last record, so
a resumed run equals an uninterrupted one bit for bit.
"""

import dataclasses
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import DiskError, NonFiniteError
from truenegs_jax.train import guards, metrics, optim
from truenegs_jax.train import step as step_lib
from truenegs_jax.workdir import checkpoints as checkpoints_lib

PROGRESS = "loop"  # key of a checkpoint's description
StepResult = tuple[step_lib.TrainState, dict[str, Any]]


@dataclasses.dataclass
class Loop:
  """The training steps of a run.

  `done` is the number of steps of a state.
  `is_evaluated`, `is_saved` and `poll` are called once per step.
  """

  state: step_lib.TrainState  # before the next step
  # (state, done) -> (state, terms)
  take_step: Callable[[step_lib.TrainState, int], StepResult]
  loss_weights: Mapping[str, float]
  learning_rate: optim.Schedule
  log_every: int  # steps of a record
  log: Callable[[dict[str, Any]], None]
  flush_log: Callable[[], None]  # before a save; raises DiskError
  is_evaluated: Callable[[int], bool]  # after `done` steps
  evaluate: Callable[[int, step_lib.TrainState], None]
  poll: Callable[[], signal.Signals | None]  # the signal to stop for
  report: Callable[[str], None]
  guard: guards.SkipGuard
  clock: guards.Clock  # has the number of steps
  # It has `state`, unless of step 0. None: the run is never saved.
  checkpoints: checkpoints_lib.Checkpoints | None = None
  is_saved: Callable[[int], bool] = lambda _: False  # after `done` steps
  # Arrays and description to save.
  content: Callable[[step_lib.TrainState], tuple[dict[str, Any], Mapping]] = (
    lambda _: ({}, {})
  )

  def __post_init__(self) -> None:
    self.done = int(self.state.step)
    saved: dict[str, Any] = {}
    if self.checkpoints and self.done:
      description = self.checkpoints.read_description(self.done)
      saved = description.get(PROGRESS, {})
    self.guard.consecutive = saved.get("skips", 0)
    self._recent: list[metrics.Terms] = [saved.get("terms", {})]
    # Values of one record, still on the devices.
    self._pending: list[tuple] = []

  def run(self) -> signal.Signals | None:
    """Takes the remaining steps; returns the signal that stopped it, if any."""
    stopped_by = None
    self.clock.start(self.done)
    while self.clock.share < 1:
      with distributed.watch_step():
        stopped_by = self.poll()
        if stopped_by:
          break
        self.state, terms = self.take_step(self.state, self.done)
        # Metrics are read one step late, so that no device waits for the host.
        self._flush()
        self.guard.add(self.done, terms["skipped"][0])
      self._recent.append(terms)
      self.done += 1
      self.clock.update(self.done)
      if self.clock.share == 1 or not self.done % self.log_every:
        self._end_record()
      if self.is_evaluated(self.done):
        self._flush()
        with self.clock.paused():
          self.evaluate(self.done, self.state)
      if self.is_saved(self.done):
        self.save()
    with distributed.watch_step():
      self._flush()
      self.guard.check_pending()
    return stopped_by

  def save(self, *, last: bool = False) -> None:
    """Starts saving a checkpoint of the last step; completes it if `last`.

    If the disk is full, it reports a warning, and the run goes on.

    Raises:
      NonFiniteError: too many updates were skipped, or a parameter is not
        finite.
      DiskError: the last step, or one of many processes, could not be saved,
        or another run uses the workdir.
    """
    if self.checkpoints is None:
      return
    with distributed.watch_step():
      self._flush()
      self.guard.check_pending()
      is_finite = bool(_all_finite(self.state.params))
    if not is_finite:
      raise NonFiniteError(
        f"The parameters are not finite after step {self.done:,} and were not"
        f" saved. Last saved step: {self.checkpoints.latest_step() or 'none'}."
        " Start a new run with a lower --config.optim.lr=NUMBER."
      )
    terms = metrics.merge_terms(jax.device_get(self._recent))
    progress = {
      "terms": {
        name: [x.tolist() for x in pair] for name, pair in terms.items()
      },
      "skips": self.guard.consecutive,
    }
    arrays, description = self.content(self.state)
    description = {**description, PROGRESS: progress}
    try:
      self.flush_log()  # else a resumed run would lack records
      self.checkpoints.save(self.done, arrays, description, wait=last)
    except DiskError as e:
      is_lost = self.checkpoints.lease.error is not None
      if last or is_lost or distributed.process_count() > 1:
        raise
      self.report(
        f"warning: {e} The run goes on and tries again at its next save."
      )

  def _end_record(self) -> None:
    # The last update was that of step done - 1.
    rate = self.learning_rate(self.done - 1)
    self._pending.append((self.done, self._recent, rate))
    self._recent = []

  def _flush(self) -> None:
    """Logs the record that is still on the devices."""
    while self._pending:
      done, terms, rate = jax.device_get(self._pending.pop())
      record = make_record(done, "train", terms, self.loss_weights)
      self.log(record | {"lr": float(rate)})


def make_record(
  done: int, split: str, terms: Sequence[metrics.Terms], weights: Mapping
) -> dict[str, Any]:
  """Returns the means of terms and their weighted sum `total`."""
  values = metrics.compute_ratios(metrics.merge_terms(terms))
  total = sum(weights[name] * values[name] for name in sorted(weights))
  fields = {"step": done, "time": round(time.time(), 3), "split": split}
  return fields | {"total": total} | values


@jax.jit
def _all_finite(params: dict) -> jax.Array:
  finite = [jnp.isfinite(x).all() for x in jax.tree.leaves(params)]
  return jnp.stack(finite).all()
