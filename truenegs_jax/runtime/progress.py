"""Progress on standard error: a live bar, or a line every few seconds."""

import contextlib
import time
from collections.abc import Callable, Iterator

import rich.console
import rich.progress

LINE_SECS = 10.0  # between lines where there is no terminal


class Display:
  """Writes to standard error; standard output is for results."""

  def __init__(self) -> None:
    # markup: a path or a glob may hold brackets.
    self._console = rich.console.Console(
      stderr=True, markup=False, highlight=False
    )

  def say(self, line: str) -> None:
    """Prints a line."""
    self._console.print(line, soft_wrap=True)

  @contextlib.contextmanager
  def bar(self, stage: str) -> Iterator[Callable[..., None]]:
    """Yields a function `show(text_bytes, done, detail, at_once=False)`.

    It takes the bytes of text so far, the share that is done (None where not
    known), and words of detail. With `at_once` they are shown even if others
    were a moment ago.
    """
    start = last = time.monotonic()
    columns = (
      rich.progress.TextColumn("{task.description}"),
      rich.progress.BarColumn(),
      rich.progress.TextColumn("{task.fields[line]}"),
    )
    with rich.progress.Progress(
      *columns,
      console=self._console,
      transient=True,
      disable=not self._console.is_terminal,
    ) as bar:
      task = bar.add_task(stage, total=None, line="")

      def show(
        text_bytes: int,
        done: float | None,
        detail: str,
        *,
        at_once: bool = False,
      ) -> None:
        nonlocal last
        now = time.monotonic()
        line = f"{_pace(text_bytes, done, now - start)}, {detail}"
        total = None if done is None else 1.0
        bar.update(task, completed=done or 0.0, total=total, line=line)
        is_due = at_once or now - last >= LINE_SECS
        if is_due and not self._console.is_terminal:
          last = now
          self.say(f"{stage}: {line}")

      yield show


def _pace(text_bytes: int, done: float | None, seconds: float) -> str:
  """Size, rate and time to come, such as "35.6 MB, 9.8 MB/s, 0:12 left"."""
  megabytes = text_bytes / 1e6
  pace = f"{megabytes:,.1f} MB, {megabytes / max(seconds, 1e-9):.1f} MB/s"
  if not done:
    return pace
  left = round(seconds * (1 - done) / done)
  hours, minutes = left // 3600, left % 3600 // 60
  clock = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
  return f"{pace}, {clock}:{left % 60:02d} left"
