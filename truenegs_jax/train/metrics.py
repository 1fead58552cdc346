"""Merges, shows and writes the metrics of a run.

Terms are pairs (sum, count). Steps, micro-batches, devices and held-out batches
are merged by adding their pairs; only merged pairs are divided.

A record is a flat dict of metrics, with `step` and `split` ("train" or
"held_out"). A writer is an object with `write(record)` and `close()`.
"""

import datetime
import importlib.util
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
  """Computes the entropy in nats of the distribution given by counts."""
  counts = np.asarray(counts, np.float64)
  p = counts[counts > 0] / counts.sum()
  return float(-(p * np.log(p)).sum())


# Format of each field of the progress line, in the order of the line.
PROGRESS_FORMATS = {
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


class TensorBoardWriter:
  """Writes scalars to <workdir>/tensorboard with the package tensorboardX."""

  def __init__(self, workdir: pathlib.Path, *, first_step: int):
    import tensorboardX  # optional; see `check_writers`

    # purge_step drops what a killed run wrote after its last checkpoint.
    self._writer = tensorboardX.SummaryWriter(
      str(workdir / files.TENSORBOARD), purge_step=first_step + 1
    )

  def write(self, record: Record) -> None:
    """Writes each number of a record as `<split>/<name>`."""
    split, step = record["split"], record["step"]
    for name, value in record.items():
      if isinstance(value, int | float) and name != "step":
        self._writer.add_scalar(f"{split}/{name}", value, step)

  def close(self) -> None:
    """Flushes and closes the event file."""
    self._writer.close()


# Class and package of each writer. metrics.jsonl is always written: curves and
# model cards need it.
WRITERS = {"tensorboard": (TensorBoardWriter, "tensorboardX")}


def check_writers(names: Sequence[str]) -> None:
  """Raises InputError if a writer is unknown or its package not installed."""
  for name in names:
    one_of("log.writers", name, WRITERS)
    package = WRITERS[name][1]
    if importlib.util.find_spec(package) is None:
      raise InputError(
        f"log.writers has {name!r}, but {package} is not installed. Run"
        f" pip install {package} or remove {name!r}."
      )


def make_writers(
  names: Sequence[str], workdir: pathlib.Path, *, first_step: int
) -> list:
  """Opens metrics.jsonl and the additional writers `names`, of WRITERS."""
  return [
    JsonlWriter(workdir, first_step=first_step),
    *(WRITERS[name][0](workdir, first_step=first_step) for name in names),
  ]


class ProgressLine:
  """Prints progress: one live line on a terminal, else a line per record.

  On a narrow terminal the line is wrapped between two fields.
  """

  def __init__(self, console: Console, total_steps: int, *, first_step: int):
    self._console, self._total = console, total_steps
    self._live = None
    if console.is_terminal:
      text = f"step {first_step:,}/{total_steps:,} · first steps ..."
      self._live = Live(Text(text), console=console, refresh_per_second=4)
      self._live.start()

  def write(self, record: Record) -> None:
    """Shows a training record in the line, a held-out record above it."""
    metrics = []
    for name, template in PROGRESS_FORMATS.items():
      negligible = name == "host_wait" and record.get(name, 0.0) < 0.01
      if name in record and not negligible:
        metrics.append(template.format(record[name]))
    if record["split"] != "train":
      text = " · ".join([f"held-out at step {record['step']:,}", *metrics])
      self._console.print(text, soft_wrap=True)
      return
    eta = datetime.timedelta(seconds=round(record["eta_s"]))
    step = f"step {record['step']:,}/{self._total:,}"
    fields = [step, *metrics, f"eta {eta}"]
    if self._live is None:
      self._console.print(" · ".join(fields), soft_wrap=True)
    else:
      self._live.update(Text(wrap_fields(fields, self._console.width)))

  def close(self) -> None:
    """Stops updating; the last state of the line stays on the screen."""
    if self._live is not None:
      self._live.stop()


def wrap_fields(fields: Sequence[str], width: int) -> str:
  """Joins fields with dots, in lines of `width`; splits no field."""
  no_break = "\N{NO-BREAK SPACE}"
  line = f"{no_break}· ".join(x.replace(" ", no_break) for x in fields)
  return textwrap.fill(line, width).replace(no_break, " ")
