"""Stops a run after a signal or after too many non-finite updates."""

import json
import math
import os
import pathlib
import signal
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.runtime.files import append, atomic_file, parse_json
from truenegs_jax.workdir import files

STOPPED_UNSAVED = 137  # as after SIGKILL; 75 and 130 promise a checkpoint
FAILED = 128  # the vote of a process with an error; more than any signal


class StopSignals:
  """Remembers the first SIGTERM or SIGINT; a second one ends the process."""

  def __init__(self, console: Console):
    self._console = console
    self.received: signal.Signals | None = None

  def __enter__(self) -> "StopSignals":
    numbers = signal.SIGTERM, signal.SIGINT
    self._handlers = {n: signal.signal(n, self._remember) for n in numbers}
    return self

  def __exit__(self, *exc: object) -> None:
    for number, handler in self._handlers.items():
      signal.signal(number, handler)

  def _remember(self, number: int, frame: object) -> None:
    del frame
    if self.received is not None:
      self._console.show_cursor()
      os._exit(STOPPED_UNSAVED)
    self.received = signal.Signals(number)
    self._console.print(
      f"{self.received.name}: finishing this step, and saving a pre-training;"
      " send the signal again to stop at once ...",
      soft_wrap=True,
    )


class StopVote:
  """Makes all processes stop after the same step when one got a signal.

  `find_error` returns an error of a thread of this process, if there is one.
  """

  def __init__(
    self,
    signals: StopSignals,
    mesh: jax.sharding.Mesh,
    find_error: Callable[[], Exception | None] = lambda: None,
  ):
    self._signals = signals
    self._find_error = find_error
    self._pending: jax.Array | None = None
    self._shape = (mesh.devices.size,)
    self._split = NamedSharding(mesh, P(mesh.axis_names))
    self._max = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, P()))

  def poll(self) -> signal.Signals | None:
    """Votes and returns the signal to stop for, if any; SIGTERM wins.

    All processes call it once per step, and no device waits for it. Raises the
    error that was found in one of the processes.
    """
    error = self._find_error()
    number = self._find_max(FAILED if error else self._signals.received or 0)
    if number == FAILED:
      with distributed.raise_everywhere("vote"):
        if error:
          raise error
    return signal.Signals(number) if number else None

  def _find_max(self, value: int) -> int:
    """Returns the greatest value; of many processes, that of the last call."""
    if distributed.process_count() == 1:
      return value
    own = np.full(1, value, np.int32)
    votes = jax.make_array_from_callback(
      self._shape, self._split, lambda _: own
    )
    previous = self._pending
    self._pending = self._max(votes)
    return 0 if previous is None else int(previous)


class SkipGuard:
  """Counts consecutive skipped updates and logs the rows of their batches."""

  consecutive = 0  # skipped updates up to the last that was checked

  def __init__(self, workdir: pathlib.Path, max_skips: int):
    self._path = workdir / files.BAD_ROWS
    self._max_skips = max_skips
    self._pending: tuple | None = None

  def resume(self, step: int, consecutive: int) -> None:
    """Continues after `step` steps; drops the lines of those to repeat."""
    self.consecutive = consecutive
    if distributed.is_first_process() and self._path.is_file():
      lines = self._path.read_bytes().splitlines(keepends=True)
      with atomic_file(self._path) as file:
        file.writelines(x for x in lines if _read_step(x) < step)

  def add(
    self, step: int, skipped: jax.Array, row_B: jax.Array | np.ndarray
  ) -> None:
    """Checks the previous step and keeps this one for the next check.

    `skipped` is f32 [], 0 or 1; `row_B` has the numbers of all processes' rows.
    """
    self.check_pending()
    self._pending = step, skipped, row_B

  def check_pending(self) -> None:
    """Raises NonFiniteError after more than `max_skips` skips in a row."""
    if self._pending is None:
      return
    (step, skipped, row_B) = self._pending
    self._pending = None
    if not float(skipped):
      self.consecutive = 0
      return
    self.consecutive += 1
    rows = distributed.to_host(row_B).tolist()
    if distributed.is_first_process():
      line = json.dumps({"step": step, "rows": rows})
      append(self._path, f"{line}\n".encode())
    if self.consecutive > self._max_skips:
      raise NonFiniteError(
        f"The loss or the gradient of step {step:,} is not finite"
        f" ({self.consecutive:,} in a row,"
        f" optim.max_skips={self._max_skips:,}). Its rows are listed in"
        f" '{self._path}'. Start a new run with a lower"
        " --config.optim.lr=NUMBER. If this is rare, run the same command"
        " with a higher --config.optim.max_skips=NUMBER."
      )


def _read_step(line: bytes) -> float:
  """Returns the step of a line; infinity if a kill has cut it off."""
  try:
    return int(parse_json(line)["step"])
  except (ValueError, KeyError):
    return math.inf
