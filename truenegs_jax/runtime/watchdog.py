"""Ends a process that hangs in a step of training or evaluation.

  watchdog.start(300)
  with watchdog.step():
    state, terms = train_step(state, batch)

jax notices partners that are dead, but waits forever for one that hangs, and so
does a process for its own devices. A thread adds up the seconds of the step,
but not those in which the machine sleeps or the process is stopped (SIGSTOP).
"""

import collections
import contextlib
import faulthandler
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator

from truenegs_jax.runtime.errors import HANGS

VARIABLE = "TRUENEGS_STALL_SECS"  # least seconds that a step may take
MEDIANS = 20  # a step may also take as many medians of the steps before
FIRST = 12  # times VARIABLE for the first step
TICK_SECS = 0.5
STDERR = 2
# Modules in which a step may wait: XLA compiles, the user stopped a terminal.
EXEMPT = ("jax._src.compiler", "rich.console")


class _Watchdog:
  """The seconds of the last steps, and of the one that is being taken."""

  def __init__(self) -> None:
    self._secs = collections.deque[float](maxlen=99)
    self._thread: int | None = None  # that takes a step
    self._waited = 0.0

  @contextlib.contextmanager
  def step(self) -> Iterator[None]:
    """Watches the body, a step. Waiting for devices belongs to it."""
    began, self._waited = time.monotonic(), 0.0
    self._thread = threading.get_ident()
    try:
      yield
    finally:
      self._thread = None
      self._secs.append(time.monotonic() - began)

  def start(self, stall_secs: float) -> None:
    """Ends the process if, from now on, a step takes too long.

    Prints the stacks of all threads. The exit code is `errors.HANGS`.
    """
    thread = threading.Thread(target=self._watch, args=[stall_secs])
    thread.daemon = True
    thread.start()

  def _watch(self, stall_secs: float) -> None:
    while self._waited < self._limit(stall_secs):
      time.sleep(TICK_SECS)
      thread = self._thread
      if thread is None or is_exempt(thread):
        self._waited = 0.0
      else:
        self._waited += TICK_SECS
    text = (
      f"\nerror: A step has taken {self._waited:,.0f} s; the median of those"
      f" before is {statistics.median([*self._secs] or [0]):.2g} s."
      " This process or another of its run hangs. Run the same command again,"
      f" or set {VARIABLE}=SECONDS if steps may take longer. Stacks:\n"
    )
    os.write(STDERR, text.encode())
    faulthandler.dump_traceback(STDERR)
    os._exit(HANGS)

  def _limit(self, stall_secs: float) -> float:
    if not self._secs:
      return FIRST * stall_secs
    return max(stall_secs, MEDIANS * statistics.median([*self._secs]))


def is_exempt(thread: int) -> bool:
  """Returns whether a function of EXEMPT is on the stack of a thread."""
  frame = sys._current_frames().get(thread)
  while frame and frame.f_globals.get("__name__") not in EXEMPT:
    frame = frame.f_back
  return frame is not None


_watchdog = _Watchdog()  # of this process
start, step = _watchdog.start, _watchdog.step
