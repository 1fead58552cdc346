"""Shows work that takes long: seconds, a bar, or lines in a log."""

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator

from rich import progress
from rich.console import Console

LINE_SECS = 10.0  # between lines if standard error is not a terminal


@contextlib.contextmanager
def working(console: Console, text: str) -> Iterator[None]:
  """Shows what a program without output does, and for how many seconds.

  On a terminal this is a line that disappears, in a log one line before the
  work and one after it.
  """
  columns = "{task.description}", progress.TimeElapsedColumn()
  spinner = progress.SpinnerColumn()
  start, in_log = time.monotonic(), not console.is_terminal
  if in_log:
    console.print(f"{text} ...", soft_wrap=True)
  line = progress.Progress(
    spinner, *columns, console=console, transient=True, disable=in_log
  )
  line.add_task(text, total=None)  # before the start, which shows it at once
  with line:
    yield
  if in_log:
    console.print(f"... {time.monotonic() - start:.1f} s")


class Display:
  """Prints lines and bars to standard error, not to the results."""

  def __init__(self) -> None:
    # No markup: paths and globs may contain brackets.
    self._console = Console(stderr=True, markup=False, highlight=False)

  def say(self, line: str) -> None:
    """Prints a line."""
    self._console.print(line, soft_wrap=True)

  @contextlib.contextmanager
  def bar(self, stage: str) -> Iterator[Callable[..., None]]:
    """Yields a function `show(text_bytes, done, note, at_once=False)`.

    It takes the bytes of text read so far, the finished share in [0, 1] or None
    if unknown, and a note to print. With `at_once` a line is printed even if
    the last one is younger than LINE_SECS.
    """
    start = last = time.monotonic()
    with progress.Progress(
      "{task.description}",
      progress.BarColumn(),
      "{task.fields[line]}",
      console=self._console,
      transient=True,
      disable=not self._console.is_terminal,
    ) as bar:
      task = bar.add_task(stage, total=None, line="")

      def show(
        text_bytes: int, done: float | None, note: str, *, at_once: bool = False
      ) -> None:
        nonlocal last
        now = time.monotonic()
        line = f"{_pace(text_bytes, done, now - start)}, {note}"
        total = None if done is None else 1.0
        bar.update(task, completed=done or 0.0, total=total, line=line)
        is_due = at_once or now - last >= LINE_SECS
        if is_due and not self._console.is_terminal:
          last = now
          self.say(f"{stage}: {line}")

      yield show


def _pace(text_bytes: int, done: float | None, seconds: float) -> str:
  """Returns size, rate and time left: "35.6 MB, 9.8 MB/s, 0:00:12 left"."""
  size_mb = text_bytes / 1e6
  pace = f"{size_mb:,.1f} MB, {size_mb / max(seconds, 1e-9):.1f} MB/s"
  if not done:
    return pace
  left = datetime.timedelta(seconds=round(seconds * (1 - done) / done))
  return f"{pace}, {left} left"
