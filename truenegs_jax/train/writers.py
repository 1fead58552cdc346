"""Where the numbers of a run go: the terminal, metrics.jsonl, TensorBoard.

A writer is an object with `write(record)` and `close()`; a record is a flat
dict with `step` and `split` ("train" or "held_out") among its entries.
"""

import datetime
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from truenegs_jax.errors import InputError

Record = Mapping[str, Any]

# Order and short names of what the progress line shows, where there is it.
SHOWN = {
  "total": "loss {:.3f}",
  "mlm": "mlm {:.3f}",
  "detect": "detect {:.4f}",
  "soft": "soft {:.3f}",
  "corrected_of_slots": "corrected {:.2%}",
  "auc": "auc {:.3f}",
  "rows_per_s": "{:.0f} rows/s",
}


class JsonlWriter:
  """One JSON object a line in metrics.jsonl; a resumed run repeats no step."""

  def __init__(self, workdir: pathlib.Path, *, first_step: int):
    """Opens the file and drops the records after `first_step`, which a run
    that was killed had written and this one is going to write again."""
    path = workdir / "metrics.jsonl"
    kept = [
      line
      for line in _whole_lines(path)
      if json.loads(line)["step"] <= first_step
    ]
    whole = path.with_suffix(".jsonl.tmp")
    whole.write_text("".join(line + "\n" for line in kept))
    whole.replace(path)
    self._file = path.open("a")

  def write(self, record: Record) -> None:
    """Appends one record."""
    self._file.write(json.dumps(dict(record)) + "\n")
    self._file.flush()

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


class TensorBoardWriter:
  """Scalars under <workdir>/tensorboard; needs the package tensorboardX."""

  def __init__(self, workdir: pathlib.Path, *, first_step: int):
    try:
      import tensorboardX
    except ImportError as e:
      raise InputError(
        'log.writers names "tensorboard": pip install tensorboardX, or take'
        " it out of the list."
      ) from e
    # purge_step: what a killed run wrote after its checkpoint is dropped.
    self._writer = tensorboardX.SummaryWriter(
      str(workdir / "tensorboard"), purge_step=first_step + 1
    )

  def write(self, record: Record) -> None:
    """Writes every number of a record under `<split>/<name>`."""
    for name, value in record.items():
      if isinstance(value, int | float) and name != "step":
        self._writer.add_scalar(
          f"{record['split']}/{name}", value, record["step"]
        )

  def close(self) -> None:
    """Flushes and closes the event file."""
    self._writer.close()


WRITERS = {"jsonl": JsonlWriter, "tensorboard": TensorBoardWriter}


def check_names(names: Sequence[str]) -> None:
  """InputError lists the known writers when one is not known."""
  unknown = sorted(set(names) - set(WRITERS))
  if unknown:
    known = ", ".join(WRITERS)
    raise InputError(f"log.writers {unknown} are unknown; known: {known}.")


def make_writers(
  names: Sequence[str], workdir: pathlib.Path, *, first_step: int
) -> list:
  """Opens the writers of a config."""
  check_names(names)
  return [WRITERS[name](workdir, first_step=first_step) for name in names]


class ProgressLine:
  """The live line of a run: rich on a terminal, plain lines elsewhere."""

  def __init__(self, console: Console, *, total_steps: int, first_step: int):
    self._console = console
    self._total = total_steps
    self._progress = None
    if console.is_terminal:
      self._progress = Progress(
        TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
        BarColumn(bar_width=12),
        TextColumn("{task.description}"),
        console=console,
      )
      self._task = self._progress.add_task(
        "first step ...", total=total_steps, completed=first_step
      )
      self._progress.start()

  def write(self, record: Record) -> None:
    """Shows a training record on the line; a held-out one above it."""
    shown = [
      text.format(record[name])
      for name, text in SHOWN.items()
      if name in record
    ]
    if record["split"] != "train":
      text = " · ".join([f"held-out at {record['step']:,}", *shown])
      self._console.print(text, soft_wrap=True)
      return
    eta = round(record["eta_s"])
    text = " · ".join([*shown, f"eta {datetime.timedelta(seconds=eta)}"])
    if self._progress is None:
      step = f"step {record['step']:,}/{self._total:,}"
      self._console.print(f"{step} · {text}", soft_wrap=True)
      return
    self._progress.update(
      self._task, completed=record["step"], description=text
    )

  def close(self) -> None:
    """Leaves the last state of the line on the screen."""
    if self._progress is not None:
      self._progress.stop()


def _whole_lines(path: pathlib.Path) -> list[str]:
  """The lines that are whole JSON: a kill can cut the last one short."""
  lines = []
  for line in path.read_text().splitlines() if path.exists() else []:
    try:
      json.loads(line)
    except json.JSONDecodeError:
      continue
    lines.append(line)
  return lines
