"""Merges and shows the metrics of a run.

Terms are pairs (sum, count). Steps, micro-batches, devices and held-out batches
are merged by adding their pairs; only merged pairs are divided.

A record is a flat dict of metrics, with `step` and `split` ("train" or
"held_out").
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from truenegs_jax.workdir.metrics_file import Record

Terms = Mapping[str, tuple[np.ndarray, np.ndarray]]

HISTOGRAM = "detect_histogram"


def merge_terms(batches: Iterable[Terms]) -> dict[str, tuple]:
  """Adds the pairs of several batches by name."""
  merged: dict[str, tuple] = {}
  for terms in batches:
    for name, (a, b) in terms.items():
      # float32 cannot count by ones above 2^24, a few hundred large batches.
      a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
      sum_a, sum_b = merged.get(name, (0.0, 0.0))
      merged[name] = (sum_a + a, sum_b + b)
  return merged


def compute_ratios(terms: Terms) -> dict[str, float]:
  """Returns sum / count by name (0 for empty terms); the histogram as `auc`."""
  values = {
    name: float(a) / float(b) if float(b) else 0.0
    for name, (a, b) in terms.items()
    if name != HISTOGRAM
  }
  if HISTOGRAM in terms:
    values["auc"] = auc(*terms[HISTOGRAM])
  return values


def auc(positive_C: np.ndarray, negative_C: np.ndarray) -> float:
  """Computes the area under the ROC curve from histograms of scores.

  This is the probability that a random positive scores above a random negative;
  ties count half. It is 0.5 if there are no positives or no negatives. The
  arguments are their numbers in C bins of ascending scores.
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
  """Computes a statistic of all batches and its standard error.

  The jackknife leaves out one batch at a time (Efron & Tibshirani 1993, chapter
  11). A formula for independent tokens would underestimate the error, because
  the tokens of a text are dependent; batches are nearly independent.
  """
  n, merged = len(batches), merge_terms(batches)
  value = statistic(merged)
  if n < 2:
    return value, math.inf
  left_out = [
    statistic({k: (a - x[k][0], b - x[k][1]) for k, (a, b) in merged.items()})
    for x in batches
  ]
  spread = float(np.sum((np.array(left_out) - np.mean(left_out)) ** 2))
  return value, math.sqrt((n - 1) / n * spread)


def entropy(counts: np.ndarray) -> float:
  """Computes the entropy in nats of the distribution given by counts."""
  counts = np.asarray(counts, np.float64)
  p = counts[counts > 0] / counts.sum()
  return float(-(p * np.log(p)).sum())


def format_duration(secs: float) -> str:
  """Returns hours, minutes and seconds: "0:02:10", "51:00:00"."""
  minutes, rest = divmod(round(secs), 60)
  return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


# Title, padded to the width of the column, and format of each metric shown.
COLUMNS = {
  "total": ("  loss", "{:.3f}".format),
  "mlm": ("  mlm", "{:.3f}".format),
  "detect": ("detect", "{:.4f}".format),
  "soft": (" soft", "{:.3f}".format),
  "sentence": ("sentence", "{:.3f}".format),
  "corrected_of_slots": ("corrected", "{:.2%}".format),
  "auc": ("  auc", "{:.3f}".format),
  "mfu": ("  mfu", "{:.1%}".format),
  "rows_per_s": ("rows/s", "{:.0f}".format),
  "eta_s": ("   left", format_duration),
}
TRAIN_ONLY = ("rows_per_s", "eta_s")
LESS_IMPORTANT = ("total", "auc", "mfu")  # left out of a line that is too long
LINE_LENGTH = 80
MAX_LINE_SECS = 3_600.0
NOTICEABLE_WAIT = 0.2  # share of the time in which devices wait for the host


class ProgressLine:
  """Prints about 25 records of a run as a table, and all evaluations.

  The step of a line is four times that of the line before, later a twentieth of
  the run after it; an hour is the longest wait. A terminal shows every record,
  in a last line that is replaced. Evaluations are described by `describe`, or
  have the columns of the table.
  """

  def __init__(
    self,
    console: Console,
    total_steps: int,
    *,
    first_step: int,
    describe: Callable[[Record], str] | None = None,
  ):
    self._console, self._total = console, total_steps
    self._describe = describe
    self._first_step, self._next_step, self._next_secs = first_step, 0, 0.0
    self._step_width = len(f"held-out {total_steps:,}")
    self._columns: list[str] = []
    self._live = Live(Text("first steps ..."), console=console, transient=True)
    # It takes stderr, whose errors a quiet console would drop.
    if console.is_terminal and not console.quiet:
      self._live.start()
    else:
      console.print("first steps ...")

  def write(self, record: Record) -> None:
    """Prints a record if it is due or held-out, else shows it for a while."""
    step, is_train = record["step"], record["split"] == "train"
    if self._describe and not is_train:
      self._console.print(self._describe(record), soft_wrap=True)
      return
    if not self._columns:
      self._columns = self._choose_columns(record)
      titles = [COLUMNS[name][0] for name in self._columns]
      self._console.print(self._join(f"step of {self._total:,}", titles))
    if not is_train:
      line = self._format(f"held-out {step:,}", record)
      self._console.print(line, soft_wrap=True)
      return
    line, secs = self._format(f"{step:,}", record), record["time"]
    is_due = step >= self._next_step or secs >= self._next_secs
    if is_due or step == self._total:
      self._console.print(line, soft_wrap=True)
      distance = min(3 * (step - self._first_step), self._total / 20)
      self._next_step, self._next_secs = step + distance, secs + MAX_LINE_SECS
      line = ""
    self._live.update(Text(line))

  def close(self) -> None:
    """Removes the line that is replaced."""
    self._live.stop()

  def _choose_columns(self, record: Record) -> list[str]:
    """Returns the columns of a run with such records."""
    names = [name for name in COLUMNS if name in {*record, *TRAIN_ONLY}]
    for name in LESS_IMPORTANT:
      titles = [COLUMNS[name][0] for name in names]
      if name in names and len(self._join("", titles)) > LINE_LENGTH:
        names.remove(name)
    return names

  def _format(self, step: str, record: Record) -> str:
    """Returns the line of a record."""
    cells = []
    for title, name in ((COLUMNS[name][0], name) for name in self._columns):
      cell = COLUMNS[name][1](record[name]) if name in record else ""
      cells.append(cell.rjust(len(title)))
    line = self._join(step, cells)
    wait = record.get("host_wait", 0.0)
    if wait < NOTICEABLE_WAIT:
      return line
    return f"{line}\n{self._join('', [f'waits for the host: {wait:.0%}'])}"

  def _join(self, step: str, cells: Sequence[str]) -> str:
    return "  ".join([step.rjust(self._step_width), *cells]).rstrip()
