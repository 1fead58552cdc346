"""The numbers of a run: merged from (sum, count) pairs, shown and written.

Merging steps, micro-batches, devices and held-out batches is one and the same
addition, so a ratio is formed once, here, from merged sums.

A record is a flat dict with `step` and `split` ("train" or "held_out") among
its entries. A writer is an object with `write(record)` and `close()`.
"""

import datetime
import math
import pathlib
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.workdir import files
from truenegs_jax.workdir.metrics_file import JsonlWriter, Record

Terms = Mapping[str, tuple[np.ndarray, np.ndarray]]

HISTOGRAM = "detect_histogram"


def merge_terms(many: Iterable[Terms]) -> dict[str, tuple]:
  """Adds the pairs of several batches name by name."""
  total: dict[str, tuple] = {}
  for terms in many:
    for name, (a, b) in terms.items():
      # f64: f32 stops to count by ones at 2^24, a few hundred large batches.
      a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
      before = total.get(name, (0.0, 0.0))
      total[name] = (before[0] + a, before[1] + b)
  return total


def compute_ratios(terms: Terms) -> dict[str, float]:
  """sum / count of every term, 0 for an empty one; `auc` of the histogram."""
  values = {
    name: float(a) / float(b) if float(b) else 0.0
    for name, (a, b) in terms.items()
    if name != HISTOGRAM
  }
  if HISTOGRAM in terms:
    values["auc"] = auc(*terms[HISTOGRAM])
  return values


def auc(positive_C: np.ndarray, negative_C: np.ndarray) -> float:
  """Area under the ROC curve from histograms of the scores; ties count half.

  The chance that a random positive scores above a random negative; 0.5 when
  either side is empty.
  """
  positive_C = np.asarray(positive_C, np.float64)
  negative_C = np.asarray(negative_C, np.float64)
  pairs = positive_C.sum() * negative_C.sum()
  if not pairs:
    return 0.5
  below_C = np.cumsum(negative_C) - negative_C
  return float((positive_C * (below_C + negative_C / 2)).sum() / pairs)


def jackknife(
  batches: list[Terms], statistic: Callable[[Terms], float]
) -> tuple[float, float]:
  """A statistic of all batches and its standard error.

  Each batch is left out in turn (Efron & Tibshirani 1993, chapter 11): tokens
  of one text depend on one another, whole batches of rows hardly do, so this
  does not understate the error as a formula for independent tokens would.
  """
  n = len(batches)
  value = statistic(merge_terms(batches))
  if n < 2:
    return value, math.inf
  left_out = [
    statistic(merge_terms(batches[:i] + batches[i + 1 :])) for i in range(n)
  ]
  spread = float(np.sum((np.array(left_out) - np.mean(left_out)) ** 2))
  return value, math.sqrt((n - 1) / n * spread)


def entropy(counts: np.ndarray) -> float:
  """Entropy in nats of the distribution that counts are proportional to."""
  counts = np.asarray(counts, np.float64)
  p = counts[counts > 0] / counts.sum()
  return float(-(p * np.log(p)).sum())


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
      str(workdir / files.TENSORBOARD), purge_step=first_step + 1
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


def make_writers(
  names: Sequence[str], workdir: pathlib.Path, *, first_step: int
) -> list:
  """Opens metrics.jsonl and the writers that a config adds to it."""
  for name in names:
    one_of("log.writers", name, WRITERS)
  return [
    JsonlWriter(workdir, first_step=first_step),
    *(WRITERS[name](workdir, first_step=first_step) for name in names),
  ]


class ProgressLine:
  """The live line of a run: rich on a terminal, plain lines elsewhere.

  On a narrow terminal the line folds between two figures; nothing is cut off.
  """

  def __init__(self, console: Console, total_steps: int, *, first_step: int):
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
      self._live.update(Text(wrap_fields(parts, self._console.width)))

  def close(self) -> None:
    """Leaves the last state of the line on the screen."""
    if self._live is not None:
      self._live.stop()


def wrap_fields(parts: Sequence[str], width: int) -> str:
  """Parts with dots between them, in lines of `width`; no part is split."""
  glue = "\N{NO-BREAK SPACE}"
  line = f"{glue}· ".join(part.replace(" ", glue) for part in parts)
  return textwrap.fill(line, width).replace(glue, " ")
