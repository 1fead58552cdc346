"""Stops a run: after a signal, too many bad updates, or all of its time."""

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import NonFiniteError

STOPPED_UNSAVED = 137  # as after SIGKILL; 75 and 130 promise a checkpoint
TIME = "time"  # key of a checkpoint's description
# Verdict, export and report import and compile, too: they take about as long as
# so many times the imports of the command.
END_STARTS = 6
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
  """Counts the updates in a row that were skipped."""

  consecutive = 0  # up to the last step that was checked

  def __init__(self, max_skips: int):
    self._max_skips = max_skips
    self._pending: tuple[int, jax.Array] | None = None

  def add(self, step: int, skipped: jax.Array) -> None:
    """Checks the previous step and keeps this one for the next check.

    `skipped` is f32 [], 0 or 1.
    """
    self.check_pending()
    self._pending = step, skipped

  def check_pending(self) -> None:
    """Raises NonFiniteError after more than `max_skips` skips in a row."""
    if self._pending is None:
      return
    step, skipped = self._pending
    self._pending = None
    self.consecutive = self.consecutive + 1 if float(skipped) else 0
    if self.consecutive > self._max_skips:
      raise NonFiniteError(
        f"The loss or the gradient of step {step:,} is not finite"
        f" ({self.consecutive:,} in a row,"
        f" optim.max_skips={self._max_skips:,}). Start a new run with a lower"
        " --config.optim.lr=NUMBER. If this is rare, run the same command"
        " with a higher --config.optim.max_skips=NUMBER."
      )


@dataclasses.dataclass
class Clock:
  """Measures the step time, and the share of a run that has passed.

  Steps count without the time before `start` (compiling, restoring) and that in
  `paused` (evaluation). `share`, which the learning rate follows, is that of
  the steps that are done. If `limit_secs` is not 0, it may be larger: the share
  of the time for training that has passed. That time is what the start leaves
  of the limit, without the last evaluation and END_STARTS times the imports of
  the command, for what follows the training.
  """

  total_steps: int
  limit_secs: float = 0.0
  began: float = 0.0  # start of the command, by `now`; earlier if it resumes
  now: Callable[[], float] = time.perf_counter
  share: float = 0.0  # of the run that has passed, up to 1

  def __post_init__(self) -> None:
    self._started = 0.0
    self._first_step = 0
    self._paused_secs = 0.0
    self._last_pause_secs = 0.0
    self._trained_secs = 0.0  # by earlier commands
    self._end_secs = END_STARTS * self.used_secs()
    self._next_step = 1  # after which the time is measured
    self._has_ended = False

  def resume(self, saved: Mapping[str, float]) -> None:
    """Continues after what `to_json` has returned.

    A run that has ended trains on if it gets more minutes or steps.
    """
    self.began -= saved["secs"]
    self._trained_secs = saved["training_secs"]
    gets_more = self.total_steps > saved["total_steps"]
    gets_more |= not 0 < self.limit_secs <= saved["limit_secs"]
    self._has_ended = saved["share"] == 1 and not gets_more

  def to_json(self) -> dict[str, float]:
    """Returns what `resume` needs."""
    return {
      "secs": self.used_secs(),
      "training_secs": self._trained_secs + self.now() - self._started,
      "share": self.share,
      "total_steps": self.total_steps,
      "limit_secs": self.limit_secs,
    }

  def start(self, step: int) -> None:
    """Starts measuring at `step`."""
    self._first_step = step
    self._started = self.now()
    self._paused_secs = 0.0
    self.update(step)

  def update(self, done: int) -> None:
    """Measures `share`, and the time some 50 times; at least a step is taken.

    The first process decides, which the others have to wait for.
    """
    self.share = max(self.share, min(done / self.total_steps, 1.0))
    if self._has_ended:
      self.share = 1.0
    if not self.limit_secs or self.share == 1 or done < self._next_step:
      return
    secs = self.to_json()["training_secs"]
    end_secs = self._end_secs + self._last_pause_secs
    left_secs = self.limit_secs - end_secs - self.used_secs()
    share = max(self.share, secs / max(secs + left_secs, 1e-9))
    text = distributed.from_first("share", str(min(share, 1.0)))
    self.share = float(text)
    self._next_step = done + max(1, (self.expected_steps(done) - done) // 50)

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Stops the measuring of steps while the context is open."""
    began = self.now()
    yield
    self._last_pause_secs = self.now() - began
    self._paused_secs += self._last_pause_secs

  @property
  def schedule_step(self) -> int:
    """The step of the learning rate's schedule at `share`."""
    return round(self.share * self.total_steps)

  def used_secs(self) -> float:
    """Returns the seconds of the run, of all its commands."""
    return self.now() - self.began

  def is_over(self) -> bool:
    """Whether there is a limit, and its time is over; call it everywhere."""
    if not self.limit_secs:
      return False
    answer = "over" if self.used_secs() > self.limit_secs else ""
    return bool(distributed.from_first("is over", answer))

  def secs_per_step(self, step: int) -> float:
    """Returns the mean seconds per step since `start`."""
    steps = max(step - self._first_step, 1)
    secs = self.now() - self._paused_secs - self._started
    return max(secs, 1e-9) / steps

  def expected_steps(self, done: int) -> int:
    """Estimates the number of all steps, at `share` after `done` steps."""
    return round(done / self.share) if self.share else self.total_steps

  def eta_secs(self, done: int) -> float:
    """Estimates the seconds of the remaining steps."""
    return (self.expected_steps(done) - done) * self.secs_per_step(done)
