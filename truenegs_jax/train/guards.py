"""Reasons to stop a run: signals, and gradients that are not finite."""

import json
import os
import pathlib
import signal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.workdir import files

SAVING = "finishing this step, then saving (once more to stop without saving)"
STOPPED_UNSAVED = 137  # as after SIGKILL; 75 and 130 promise a checkpoint


class StopSignals:
  """While entered, remembers the first SIGTERM or SIGINT in `received`.

  A second one ends the process at once: whatever hangs must not be able to
  swallow it. The steps saved before are on disk. `then` says what comes next.
  """

  def __init__(self, console: Console, *, then: str = SAVING):
    self._console, self._then = console, then
    self.received: signal.Signals | None = None

  def __enter__(self) -> "StopSignals":
    watched = (signal.SIGTERM, signal.SIGINT)
    self._before = {s: signal.signal(s, self._remember) for s in watched}
    return self

  def __exit__(self, *exc: object) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _remember(self, number: int, frame: object) -> None:
    del frame
    if self.received is not None:
      self._console.show_cursor()
      os._exit(STOPPED_UNSAVED)
    self.received = signal.Signals(number)
    self._console.print(
      f"{self.received.name}: {self._then} ...",
      soft_wrap=True,
    )


class StopVote:
  """Lets all processes stop after the same step, whichever got the signal.

  The answer of a step is asked for when the next has been dispatched, so that
  no device waits for it.
  """

  def __init__(self, signals: StopSignals, mesh: jax.sharding.Mesh):
    self._signals = signals
    self._waiting: jax.Array | None = None
    self._num = mesh.devices.size
    self._split = NamedSharding(mesh, P(mesh.axis_names))
    everywhere = NamedSharding(mesh, P())
    self._highest = jax.jit(jnp.max, out_shardings=everywhere)

  def poll(self) -> signal.Signals | None:
    """Votes once a step, and says what stops the run now.

    SIGTERM goes before SIGINT where there are both.
    """
    if distributed.process_count() == 1:
      return self._signals.received
    before, self._waiting = self._waiting, self._cast()
    number = 0 if before is None else int(before)
    return signal.Signals(number) if number else None

  def _cast(self) -> jax.Array:
    vote = np.full(1, self._signals.received or 0, np.int32)
    return self._highest(
      jax.make_array_from_callback((self._num,), self._split, lambda _: vote)
    )


class SkipGuard:
  """Counts non-finite updates in a row and names the rows that made them."""

  def __init__(self, workdir: pathlib.Path, max_skips: int):
    self._path = workdir / files.BAD_ROWS
    self._max = max_skips
    self._waiting: tuple | None = None
    self._in_a_row = 0

  def add(
    self, step: int, skipped: jax.Array, row_B: jax.Array | np.ndarray
  ) -> None:
    """Takes note of a step just dispatched and judges the one before it.

    Args:
      step: the step.
      skipped: f32 [], 1 where its update was skipped.
      row_B: int32, its rows, in all processes.
    """
    self.check_pending()
    self._waiting = (step, skipped, row_B)

  def check_pending(self) -> None:
    """Judges the step in waiting; NonFiniteError when it is one too many."""
    if self._waiting is None:
      return
    step, skipped, row_B = self._waiting
    self._waiting = None
    if not float(skipped):
      self._in_a_row = 0
      return
    self._in_a_row += 1
    rows = distributed.to_host(row_B).tolist()
    if distributed.is_first_process():
      with disk_errors(self._path), self._path.open("a") as f:
        f.write(json.dumps({"step": step, "rows": rows}) + "\n")
    if self._in_a_row > self._max:
      raise NonFiniteError(
        f"the gradient of step {step} is not finite ({self._in_a_row} in a"
        f" row, optim.max_skips is {self._max}). The update was skipped; its"
        f" rows are in {self._path}. The checkpoints are intact: go on from"
        " the last one with a higher optim.max_skips, or start afresh with a"
        " lower optim.lr."
      )
