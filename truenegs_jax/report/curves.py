"""Reads metrics.jsonl into curves, and draws them as charts of a page.

Axes: N records of a split, or a part of them; P points of a curve.
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from truenegs_jax.workdir import files

MAX_POINTS = 300  # of a curve; a chart is about as many pixels wide
MIN_POINTS = 50  # of each of many curves, which share four times MAX_POINTS
MAX_VALUE = 1e30  # of an axis; more is damage
LONG_PAUSE = 10.0  # in median times between records: the run was stopped
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
  "host_wait": "Waiting for the host (share)",
  "memory_peak_gib": "Peak memory (GiB)",
}
# Shares, in percent in a curve.
RATES = ("corrected_of_slots", "corrected_of_mismatches", "corrected_rows")

Columns = dict[str, np.ndarray]  # by field, float64 [N], NaN for none
# By split and field, values by point, None where there is none.
Points = dict[str, dict[str, list[float | None]]]


@dataclasses.dataclass
class Curve:
  """The records of one training."""

  splits: Points
  label: str
  group: str  # curves of one group have one colour
  # For a field, values to compare with, by their names.
  guesses: Mapping[str, Mapping[str, float]] = dataclasses.field(
    default_factory=dict
  )


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


def read_records(workdir: pathlib.Path) -> tuple[dict[str, Columns], int]:
  """Reads metrics.jsonl by split; also returns the number of damaged lines.

  Without hard correction, `mlm` is over all slots and becomes
  `mlm_uncorrected`, to be compared with that of other runs.
  """
  records: dict[str, list[dict[str, Any]]] = {}
  damaged = 0
  for _, record in files.iterate_records(workdir):
    if record is None:
      damaged += 1
    else:
      records.setdefault(record.pop("split"), []).append(record)
  splits = {split: _make_columns(x) for split, x in records.items()}
  for columns in splits.values():
    if "mlm" in columns and "mlm_uncorrected" not in columns:
      columns["mlm_uncorrected"] = columns.pop("mlm")
  return splits, damaged


def _make_columns(records_N: Sequence[Mapping[str, float | None]]) -> Columns:
  """Returns the values of records by field."""
  names = dict.fromkeys(name for record in records_N for name in record)
  return {
    name: np.array([x.get(name) for x in records_N], np.float64)
    for name in names
  }


def last_values(columns: Columns) -> dict[str, float]:
  """Returns the values of the last record, NaN for none."""
  return {name: float(values_N[-1]) for name, values_N in columns.items()}


def count_hours(columns: Columns) -> float:
  """Returns the hours of training, without pauses.

  The time before the first record is taken to be that between two.
  """
  secs_N = np.diff(columns["time"])
  usual = float(np.median(secs_N)) if len(secs_N) else 0.0
  is_pause_N = (secs_N > max(LONG_PAUSE * usual, 60)) | (secs_N < 0)
  return (usual + float(np.where(is_pause_N, usual, secs_N).sum())) / 3600


def thin_records(splits: Mapping[str, Columns], max_points: int) -> Points:
  """Returns at most `max_points` points of each split.

  A point is the mean of consecutive records, at the step of the last one, and
  None if no value is finite.
  """
  points: Points = {}
  for split, columns in splits.items():
    steps_N = columns["step"]
    parts = np.array_split(
      np.arange(len(steps_N)), min(len(steps_N), max_points)
    )
    points[split] = {"step": [float(steps_N[part[-1]]) for part in parts]}
    for name in [x for x in PANELS if x in columns]:
      is_share = name in RATES or (name, split) == ("accuracy", "train")
      values_N = columns[name] * (100 if is_share else 1)
      points[split][name] = [_mean(values_N[part]) for part in parts]
  return points


def _mean(values_N: np.ndarray) -> float | None:
  """Returns the mean of the finite values, None if there is none."""
  finite_N = values_N[np.isfinite(values_N)]
  return float(finite_N.mean()) if finite_N.size else None


def read_curves(workdir: pathlib.Path, pattern: str) -> list[Curve]:
  """Reads the trainings in `pattern`, NAME/seed-S in a workdir, as curves.

  Curves of one name are of one group.
  """
  folders = files.list_recorded(workdir, pattern)
  shared = 4 * MAX_POINTS // max(len(folders), 1)
  max_points = min(max(shared, MIN_POINTS), MAX_POINTS)
  curves = []
  for folder in folders:
    path = str(folder.relative_to(workdir)).removeprefix("runs/")
    name, _, rest = path.partition("/seed-")
    label = f"{name}, seed {rest.partition('/')[0]}"
    splits = thin_records(read_records(folder)[0], max_points)
    curves.append(Curve(splits, label=label, group=name))
  return curves


def list_groups(curves: Iterable[Curve]) -> dict[str, str]:
  """Returns the styles of groups of curves."""
  groups = dict.fromkeys(curve.group for curve in curves)
  return {name: f"series-{i % STYLES}" for i, name in enumerate(groups)}


def make_charts(curves: Sequence[Curve]) -> list[Chart]:
  """Returns the charts of the fields that have been recorded."""
  lines = {field: [*_list_lines(field, curves)] for field in PANELS}
  return [_make_chart(PANELS[x], lines[x]) for x in PANELS if lines[x]]


def _list_lines(field: str, curves: Sequence[Curve]) -> Iterator[Line]:
  """Yields lines of training, dots of other splits, and lines of guesses."""
  styles = list_groups(curves)
  steps = set[float]()
  guesses = dict[tuple[str, float], None]()  # each once
  for curve in curves:
    for split, columns in curve.splits.items():
      pairs = zip(columns["step"], columns.get(field, []), strict=False)
      points = [(x, y) for x, y in pairs if x is not None and y is not None]
      if points:
        style = styles[curve.group]
        if split != "train" or len(points) == 1:
          style += " dots"
        label = f"{curve.label}, {split.replace('_', '-')}"
        yield Line(label, style, points, points[-1][1])
        steps |= {x for x, _ in points}
        guesses |= dict.fromkeys(curve.guesses.get(field, {}).items())
  for label, value in guesses:
    ends = [(min(steps), value), (max(steps), value)]
    yield Line(label, "guess", ends, value)


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
  ends_of_values = np.array([min(values), max(values)])
  first, last = np.clip(ends_of_values, -MAX_VALUE, MAX_VALUE).tolist()
  middle = (first + last) / 2
  spread = last - first
  if spread <= 1e-3 * abs(middle):  # a constant, but for its last digits
    spread = abs(middle) or 1.0
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
