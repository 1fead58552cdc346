"""Reads metrics.jsonl into curves, and draws them as charts of a page.

Axes: N records of a split.
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from truenegs_jax.workdir import metrics_file
from truenegs_jax.workdir.files import METRICS

MAX_POINTS = 300  # of a curve; a chart is about as many pixels wide
MAX_VALUE = 1e30  # of an axis; more is damage
MIN_SPREAD = 1e-30  # of the values of an axis, unless they are constant
STYLES = 6  # colours, of groups in turn
NUM_TICKS = 4  # of an axis, about
# The corners of a chart's area, in pixels of parts.html.
X_ENDS = 60, 392
Y_ENDS = 190, 8

# Names and units of fields, in the order of the charts of a page.
PANELS = {
  "total": "Loss that is minimized (nats)",
  "mlm": "MLM, as trained (nats/slot)",
  "mlm_uncorrected": "MLM, all slots (nats/slot)",
  "mlm_hidden": "MLM, [MASK] (nats/slot)",
  "detect": "Detection (nats/token)",
  "auc": "Detection, AUC",
  "blimp": "Minimal pairs (%)",
  "corrected_of_slots": "Corrected slots (%)",
  "corrected_of_mismatches": "Corrected errors (%)",
  "corrected_rows": "Corrected rows (%)",
  "soft": "Soft term (1 − cosine)",
  "sentence": "Sentence KL (nats/token)",
  "pair_cosine": "Cosine of random pairs",
  "accuracy": "Accuracy (%)",
  "f1": "F1 (%)",
  "em": "Exact match (%)",
  "matthews": "Matthews' correlation (%)",
  "pearson": "Pearson's correlation (%)",
  "spearman": "Spearman's correlation (%)",
  "lr": "Learning rate",
  "grad_norm": "Norm of the gradient",
  "skipped": "Skipped updates (share)",
  "rows_per_s": "Speed (rows/s)",
  "mfu": "Model FLOPs utilization",
  "memory_peak_gib": "Peak memory (GiB)",
}
# Shares, in percent in a curve.
RATES = ("corrected_of_slots", "corrected_of_mismatches", "corrected_rows")


@dataclasses.dataclass
class Curve:
  """The records of one training."""

  splits: Mapping[str, Sequence[metrics_file.Record]]  # thinned
  label: str
  group: str  # curves of one group have one colour


class Line(NamedTuple):
  """A line or dots of a chart."""

  label: str
  style: str  # classes of style.css
  points: Sequence[tuple[float, float]]  # steps and values, then pixels
  last: float  # value


class Chart(NamedTuple):
  """The lines of a field, and the pixels and values of its axes' ticks."""

  title: str
  lines: Sequence[Line]
  x_ticks: Sequence[tuple[float, float]]
  y_ticks: Sequence[tuple[float, float]]


def read_records(workdir: pathlib.Path) -> dict[str, list[metrics_file.Record]]:
  """Reads metrics.jsonl by split, without damaged lines.

  Without hard correction, `mlm` is over all slots and becomes
  `mlm_uncorrected`, to be compared with that of other runs. Shares become
  percentages.
  """
  splits: dict[str, list[metrics_file.Record]] = {}
  for record in metrics_file.read_records(workdir):
    split = record.pop("split")
    if "mlm" in record and "mlm_uncorrected" not in record:
      record["mlm_uncorrected"] = record.pop("mlm")
    shares = (*RATES, "accuracy") if split == "train" else RATES
    for name in shares:
      if record.get(name) is not None:
        record[name] *= 100
    splits.setdefault(split, []).append(record)
  return splits


def thin_records(
  records_N: Sequence[metrics_file.Record], max_points: int
) -> list[dict[str, float]]:
  """Returns at most `max_points` records of the fields in PANELS.

  Each has the means of consecutive records, without values that are not finite,
  and the step of the last one.
  """
  count = min(len(records_N), max_points)
  points = []
  for part in np.array_split(np.arange(len(records_N)), count):
    records = [records_N[i] for i in part]
    point = {"step": float(records[-1]["step"])}
    for name in PANELS:
      values = [x[name] for x in records if x.get(name) is not None]
      if values:
        point[name] = float(np.mean(values))
    points.append(point)
  return points


def read_curves(workdir: pathlib.Path, pattern: str) -> list[Curve]:
  """Reads the trainings in `pattern`, NAME/seed-S in a workdir, as curves.

  Curves of one name are of one group; many of them have fewer points.
  """
  recorded = workdir.glob(f"{pattern}/{METRICS}")
  folders = sorted(path.parent for path in recorded)
  max_points = MAX_POINTS if len(folders) < 10 else MAX_POINTS // 6
  curves = []
  for folder in folders:
    path = str(folder.relative_to(workdir)).removeprefix("runs/")
    name, _, rest = path.partition("/seed-")
    label = f"{name}, seed {rest.partition('/')[0]}"
    splits = {
      split: thin_records(records, max_points)
      for split, records in read_records(folder).items()
    }
    curves.append(Curve(splits, label, name))
  return curves


def list_groups(curves: Iterable[Curve]) -> dict[str, str]:
  """Returns the styles of groups of curves."""
  groups = dict.fromkeys(curve.group for curve in curves)
  return {name: f"series-{i % STYLES}" for i, name in enumerate(groups)}


def make_charts(curves: Sequence[Curve]) -> list[Chart]:
  """Returns the charts of the fields that have been recorded."""
  styles = list_groups(curves)
  charts = []
  for field, title in PANELS.items():
    lines = []
    for curve in curves:
      for split, records in curve.splits.items():
        points = [(x["step"], x[field]) for x in records if field in x]
        if points:
          style = styles[curve.group]
          if split != "train" or len(points) == 1:
            style += " dots"
          label = f"{curve.label}, {split.replace('_', '-')}"
          lines.append(Line(label, style, points, points[-1][1]))
    if lines:
      charts.append(_make_chart(title, lines))
  return charts


def _make_chart(title: str, lines: Sequence[Line]) -> Chart:
  """Returns a chart, with the points of its lines as pixels."""
  place_x, x_ticks = _make_axis([x for y in lines for x, _ in y.points], X_ENDS)
  place_y, y_ticks = _make_axis([y for x in lines for _, y in x.points], Y_ENDS)
  placed = [
    line._replace(points=[(place_x(x), place_y(y)) for x, y in line.points])
    for line in lines
  ]
  return Chart(title, placed, x_ticks, y_ticks)


def _make_axis(
  values: Sequence[float], ends: tuple[int, int]
) -> tuple[Callable[[float], float], list[tuple[float, float]]]:
  """Makes an axis that is a little longer than its values need.

  Returns a function from values to pixels, and the pixels and values of ticks
  at multiples of 1, 2 or 5 times a power of ten.
  """
  extremes = np.array([min(values), max(values)])
  least, most = np.clip(extremes, -MAX_VALUE, MAX_VALUE).tolist()
  middle = (least + most) / 2
  spread = most - least
  if spread <= max(1e-3 * abs(middle), MIN_SPREAD):  # a constant, nearly
    spread = abs(middle) if abs(middle) > MIN_SPREAD else 1.0
  low = middle - 0.55 * spread
  high = middle + 0.55 * spread

  def place(value: float) -> float:
    return round(float(np.interp(value, (low, high), ends)), 1)

  power = 10.0 ** math.floor(math.log10(spread / NUM_TICKS))
  sizes = (1 * power, 2 * power, 5 * power, 10 * power)
  step = next(x for x in sizes if x >= spread / NUM_TICKS)
  counts = range(math.ceil(low / step), math.floor(high / step) + 1)
  ticks = [float(f"{count * step:.6g}") for count in counts]
  return place, [(place(x), x) for x in ticks]
