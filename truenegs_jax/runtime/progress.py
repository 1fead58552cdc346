"""What a person sees of a preparation: a live line, or a line now and then."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import rich.console
import rich.progress

LINE_SECS = 10.0  # between lines where there is no terminal


class Display:
  """Tells on standard error; standard output is for results."""

  def __init__(self) -> None:
    # markup: a path or a glob may hold brackets.
    self._console = rich.console.Console(
      stderr=True, markup=False, highlight=False
    )

  def say(self, line: str) -> None:
    """Prints a line."""
    self._console.print(line, soft_wrap=True)

  @contextlib.contextmanager
  def bar(self, stage: str) -> Iterator[Callable[[Any], None]]:
    """Yields what shows a value with `text_bytes`, `done` and `detail`."""
    start = last = time.monotonic()
    stage_shown = ""
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

      def show(value: Any) -> None:
        nonlocal last, stage_shown
        now = time.monotonic()
        line = _line(value, now - start)
        total = None if value.done is None else 1.0
        bar.update(task, completed=value.done or 0.0, total=total, line=line)
        begins = getattr(value, "stage", "") != stage_shown  # a silent one?
        if not self._console.is_terminal and (
          begins or now - last >= LINE_SECS
        ):
          last, stage_shown = now, getattr(value, "stage", "")
          self.say(f"{stage}: {line}")

      yield show

  def summary(
    self, manifest: dict[str, Any], part_names: Sequence[str]
  ) -> None:
    """Prints the size of the rows, their sources and oddities of the text."""
    splits, parts = manifest["splits"], manifest["parts"]
    self.say(
      f"{splits['train']['rows']:,} rows of {manifest['options']['length']}"
      f" tokens to train on ({splits['train']['padding_share']:.1%} padding),"
      f" {splits['held_out']['rows']:,} held out."
    )
    if lost := manifest["lost_share"]:
      self.say(f"  {lost:.1%} of the tokens are in no row (data.overflow)")
    if len(parts) > 1:
      whole = max(1, sum(part["text_bytes"] for part in parts))
      for name, part in zip(part_names, parts, strict=True):
        share = part["text_bytes"] / whole
        times = part["passes"]
        often = f", read up to {times} times" if times > 1 else ""
        self.say(f"  {share:6.1%} of the text: {name}{often}")
    for name, count in manifest["oddities"].items():
      self.say(f"  {count:,} {name}")


def _line(value: Any, seconds: float) -> str:
  """Size, rate and time to come, such as "35.6 MB, 9.8 MB/s, 0:12 left"."""
  megabytes = value.text_bytes / 1e6
  parts = [f"{megabytes:,.1f} MB", f"{megabytes / max(seconds, 1e-9):.1f} MB/s"]
  if value.done:
    left = round(seconds * (1 - value.done) / value.done)
    hours, minutes = left // 3600, left % 3600 // 60
    clock = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    parts.append(f"{clock}:{left % 60:02d} left")
  return ", ".join([*parts, value.detail])
