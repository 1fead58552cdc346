"""Reads metrics.jsonl into curves that are small enough for a page.

Axes: N records of a split, or a part of them; P points of a curve.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.workdir import metrics_file

MAX_POINTS = 1_000  # of a page; its curves share four times as many
LONG_PAUSE = 10.0  # in median times between records: the run was stopped

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


@dataclasses.dataclass
class Curve:
  """The records of one training."""

  # For each split and field, values by point, None where there is none; `hours`
  # of training without pauses.
  splits: dict[str, dict[str, list[float | None]]]
  label: str = ""
  group: str = ""  # curves of one group have one colour
  tokens: float | None = None  # of one step, None if unknown
  flops: float | None = None
  # For a field, values to compare with, by their names.
  references: Mapping[str, Mapping[str, float]] = dataclasses.field(
    default_factory=dict
  )


def read_records(workdir: pathlib.Path) -> tuple[dict[str, Columns], int]:
  """Reads metrics.jsonl by split; also returns the number of damaged lines.

  Without hard correction, `mlm` is over all slots and becomes
  `mlm_uncorrected`, to be compared with that of other runs.
  """
  records: dict[str, list[dict[str, Any]]] = {}
  damaged = 0
  for _, record in metrics_file.iterate_records(workdir):
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


def count_hours(columns: Columns) -> np.ndarray:
  """Returns the hours of training at each record, without pauses, [N].

  The time before the first record is taken to be that between two.
  """
  secs_N = np.diff(columns["time"], prepend=columns["time"][:1])
  usual = float(np.median(secs_N[1:])) if len(secs_N) > 1 else 0.0
  secs_N[0] = usual
  is_pause_N = (secs_N > LONG_PAUSE * usual) & (secs_N > 60) | (secs_N < 0)
  return np.cumsum(np.where(is_pause_N, usual, secs_N)) / 3600


def thin_records(
  splits: Mapping[str, Columns], max_points: int
) -> dict[str, dict[str, list[float | None]]]:
  """Returns the `splits` of a Curve, each with at most `max_points` points.

  A point is the mean of consecutive records, at the step of the last one. It
  has 6 digits, and None for values that are not finite.
  """
  curve: dict[str, dict[str, list[float | None]]] = {}
  for split, columns in splits.items():
    count = min(len(columns["step"]), max_points)
    parts = np.array_split(np.arange(len(columns["step"])), count)
    ends_P = np.array([part[-1] for part in parts])
    points = {"step": columns["step"][ends_P].tolist()}
    if "time" in columns:
      points["hours"] = [*map(_round, count_hours(columns)[ends_P])]
    for name in [x for x in PANELS if x in columns]:
      is_share = name in RATES or (name, split) == ("accuracy", "train")
      values_N = columns[name] * (100 if is_share else 1)
      points[name] = [_mean(values_N[part]) for part in parts]
    curve[split] = points
  return curve


def _mean(values_N: np.ndarray) -> float | None:
  """Returns the mean of the finite values, None if there is none."""
  finite_N = values_N[np.isfinite(values_N)]
  return _round(finite_N.mean()) if finite_N.size else None


def _round(value: float) -> float | None:
  return float(f"{value:.6g}") if math.isfinite(value) else None


def read_curves(workdir: pathlib.Path, pattern: str) -> list[Curve]:
  """Reads the trainings in `pattern`, NAME/seed-S in a workdir, as curves.

  Curves of one name are of one group; all share the points of a page.
  """
  folders = metrics_file.list_recorded(workdir, pattern)
  points = min(max(50, 4 * MAX_POINTS // max(len(folders), 1)), MAX_POINTS)
  curves = []
  for folder in folders:
    parts = folder.relative_to(workdir).parts
    at = next(i for i, x in enumerate(parts) if x.startswith("seed-"))
    name = parts[at - 1]
    seed = parts[at].removeprefix("seed-")
    splits = thin_records(read_records(folder)[0], points)
    curves.append(Curve(splits, label=f"{name}, seed {seed}", group=name))
  return curves
