"""Where the numbers of a run go: the terminal, metrics.jsonl, TensorBoard.

A writer is an object with `write(record)` and `close()`; a record is a flat
dict with `step` and `split` ("train" or "held_out") among its entries.
"""

import contextlib
import datetime
import json
import math
import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from truenegs_jax.errors import InputError, disk_errors

Record = Mapping[str, Any]

METRICS = "metrics.jsonl"

# Order and short names of what the progress line shows, where there is it.
SHOWN = {
  "total": "loss {:.3f}",
  "mlm": "mlm {:.3f}",
  "detect": "detect {:.4f}",
  "soft": "soft {:.3f}",
  "sentence": "sentence {:.3f}",
  "corrected_of_slots": "corrected {:.2%}",
  "auc": "auc {:.3f}",
  "rows_per_s": "{:.0f} rows/s",
  "tokens_per_s": "{:,.0f} tokens/s",
  "mfu": "mfu {:.1%}",
  "host_wait": "host wait {:.0%}",
  "memory_peak_gib": "peak {:.1f} GiB",
}
SHOWN_FROM = {"host_wait": 0.01}  # less is no matter


class JsonlWriter:
  """One JSON object a line in metrics.jsonl; a resumed run repeats no step."""

  def __init__(self, workdir: pathlib.Path, *, first_step: int):
    """Opens the file and drops the records after `first_step`, which a run
    that was killed had written and this one is going to write again."""
    self._path = workdir / METRICS
    kept = [r for r in read_records(workdir) if r["step"] <= first_step]
    whole = self._path.with_suffix(".jsonl.tmp")
    with disk_errors(self._path):
      whole.write_text("".join(json.dumps(r) + "\n" for r in kept))
      whole.replace(self._path)
      self._file = self._path.open("a")

  def write(self, record: Record) -> None:
    """Appends one record."""
    with disk_errors(self._path):
      self._file.write(json.dumps(finite_or_null(record)) + "\n")
      self._file.flush()

  def close(self) -> None:
    """Closes the file; what a full disk had no room for is let go."""
    with contextlib.suppress(OSError):
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


# metrics.jsonl is always written: curves and model cards are made from it.
WRITERS = {"tensorboard": TensorBoardWriter}


def check_names(names: Sequence[str]) -> None:
  """InputError lists the known writers when one is not known."""
  unknown = sorted(set(names) - set(WRITERS))
  if unknown:
    known = ", ".join(WRITERS)
    raise InputError(f"log.writers {unknown} are unknown; known: {known}.")


def make_writers(
  names: Sequence[str], workdir: pathlib.Path, *, first_step: int
) -> list:
  """Opens metrics.jsonl and the writers that a config adds to it."""
  check_names(names)
  return [
    JsonlWriter(workdir, first_step=first_step),
    *(WRITERS[name](workdir, first_step=first_step) for name in names),
  ]


class ProgressLine:
  """The live line of a run: rich on a terminal, plain lines elsewhere.

  On a narrow terminal the line folds between two figures; nothing is cut off.
  """

  def __init__(self, console: Console, *, total_steps: int, first_step: int):
    self._console = console
    self._total = total_steps
    self._live = None
    if console.is_terminal:
      waiting = Text(f"step {first_step:,}/{total_steps:,} · first steps ...")
      self._live = Live(waiting, console=console, refresh_per_second=4)
      self._live.start()

  def write(self, record: Record) -> None:
    """Shows a training record on the line; a held-out one above it."""
    shown = [
      text.format(record[name])
      for name, text in SHOWN.items()
      if name in record
      and not record[name] < SHOWN_FROM.get(name, -math.inf)  # NaN is shown
    ]
    if record["split"] != "train":
      text = " · ".join([f"held-out at {record['step']:,}", *shown])
      self._console.print(text, soft_wrap=True)
      return
    eta = datetime.timedelta(seconds=round(record["eta_s"]))
    step = f"step {record['step']:,}/{self._total:,}"
    parts = [step, *shown, f"eta {eta}"]
    if self._live is None:
      self._console.print(" · ".join(parts), soft_wrap=True)
    else:
      self._live.update(Text(fold(parts, self._console.width)))

  def close(self) -> None:
    """Leaves the last state of the line on the screen."""
    if self._live is not None:
      self._live.stop()


def fold(parts: Sequence[str], width: int) -> str:
  """Parts with dots between them, in lines of `width`; no part is split."""
  glue = "\N{NO-BREAK SPACE}"
  whole = f"{glue}· ".join(part.replace(" ", glue) for part in parts)
  return textwrap.fill(whole, width).replace(glue, " ")


def finite_or_null(record: Record) -> dict[str, Any]:
  """The record with None for NaN and infinity, which JSON does not know."""
  return {
    name: None if isinstance(x, float) and not math.isfinite(x) else x
    for name, x in record.items()
  }


def read_records(workdir: pathlib.Path) -> list[dict]:
  """The records in metrics.jsonl; a line that a kill cut short is left out."""
  path = workdir / METRICS
  records = []
  for line in path.read_text().splitlines() if path.exists() else []:
    with contextlib.suppress(json.JSONDecodeError):
      records.append(json.loads(line))
  return records
