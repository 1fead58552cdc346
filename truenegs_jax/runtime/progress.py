"""Shows work that takes long: a line with a bar, or lines in a log.

with progress.counting(console, "Evaluating", len(batches)) as advance:
  for batch in batches:
    ...
    advance()
"""

import contextlib
import datetime
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from rich import progress
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from truenegs_jax.runtime import errors

# In a log: after which time work gets a line, and between its lines.
FIRST_SECS = 10.0
LINE_SECS = 30.0


@contextlib.contextmanager
def working(
  console: Console, text: str, *, brief: bool = False
) -> Iterator[Callable[..., None]]:
  """Shows what a program does, and for how many seconds.

  On a terminal this is a line that disappears, in a log one line before the
  work and one after it; that of `brief` work begins after FIRST_SECS.

  Yields a function `show(done, note)` of the share that is done, in [0, 1] or
  None, and a note. A log has it after FIRST_SECS, then every LINE_SECS.
  """
  start = time.monotonic()
  in_log = not console.is_terminal
  due = start + FIRST_SECS

  def write(line: str) -> None:
    if in_log and not brief:
      console.print(line, soft_wrap=True)

  def show(done: float | None, note: str) -> None:
    nonlocal brief, due
    now = time.monotonic()
    line = note
    total = None if done is None else 1.0
    if done:
      secs = round((now - start) * (1 - done) / done)
      line = f"{done:.0%}, {datetime.timedelta(seconds=secs)} left, {note}"
    bar.update(task, completed=done or 0.0, total=total, line=line)
    if now >= due:
      brief = False
      due = now + LINE_SECS
      write(f"{text}: {line}")

  bar = progress.Progress(
    progress.SpinnerColumn(),
    "{task.description}",
    progress.TimeElapsedColumn(),
    progress.BarColumn(20),
    progress.TextColumn(
      "{task.fields[line]}", table_column=Column(ratio=1, no_wrap=True)
    ),
    console=console,
    transient=True,
    expand=True,
    disable=in_log or console.quiet,  # it would drop what is printed to stderr
  )
  task = bar.add_task(text, total=None, line="")  # the start shows it at once
  write(f"{text} ...")
  with bar:
    yield show
  write(f"... {time.monotonic() - start:.1f} s")


@contextlib.contextmanager
def counting(
  console: Console, text: str, total: int, *, brief: bool = False
) -> Iterator[Callable[..., None]]:
  """Shows work on `total` items; yields `advance(count=1)`."""
  count = 0
  with working(console, text, brief=brief) as show:

    def advance(more: int = 1) -> None:
      nonlocal count
      count += more
      show(count / total, f"{count:,} of {total:,}")

    yield advance


class EscapingConsole(Console):
  """A console that shows control characters of texts, but sends none."""

  def render_str(self, text: str, **options: Any) -> Text:
    """Returns a text of the right width."""
    return super().render_str(text.translate(errors.ESCAPES), **options)

  def render(
    self, renderable: RenderableType, options: ConsoleOptions | None = None
  ) -> Iterator[Segment]:
    """Yields the parts of what is printed."""
    for segment in super().render(renderable, options):
      if segment.control:  # of rich itself
        yield segment
      else:
        yield segment._replace(text=segment.text.translate(errors.ESCAPES))


def make_console(
  stream: TextIO | None = None, *, quiet: bool = False
) -> Console:
  """Returns the console of standard output, for results, or of a stream."""
  stream = stream or sys.stdout
  return EscapingConsole(
    file=stream,
    markup=False,  # paths and globs may contain brackets
    emoji=False,  # and texts ":house:"
    highlight=False,
    quiet=quiet,
    # Notebooks set FORCE_COLOR, which makes rich animate lines in a pipe.
    force_terminal=stream.isatty(),
  )


def log_console() -> Console:
  """Returns the console of standard error, which is not for results."""
  return make_console(sys.stderr)


def say(text: str) -> None:
  """Prints a line to standard error."""
  log_console().print(text, soft_wrap=True)


def make_table(lines: Mapping[str, str]) -> Table:
  """Makes a table of a plan or a start from name -> text."""
  table = Table(box=None, show_header=False, pad_edge=False)
  table.add_column(style="bold", no_wrap=True)
  table.add_column(overflow="fold")
  for name, text in lines.items():
    table.add_row(name, text)
  return table
