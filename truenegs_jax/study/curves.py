"""Overlays the training curves of a study's arms."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.study.records import LOSSES
from truenegs_jax.workdir.plots import panels

FAINT = 0.3


@dataclasses.dataclass(frozen=True)
class Curve:
  """The training of one arm with one seed.

  Attributes:
    records: of metrics.jsonl.
    flops: floating-point operations of one step.
  """

  arm: str
  seed: int
  records: Sequence[Mapping[str, Any]]
  flops: float


def draw_curves(
  curves: Sequence[Curve], num_seeds: int, path: pathlib.Path
) -> list[pathlib.Path]:
  """Draws the held-out losses of all arms, by step and by FLOP, as PNG.

  Returns the path, or nothing if there are no losses.

  The line of an arm is the mean over its seeds at the steps that all of them
  have; each seed is a faint line. Legends count the seeds of an arm that lacks
  some. Losses of training take the place of held-out ones if there are none.

  Args:
    num_seeds: number of seeds that each arm is to have.

  Raises:
    DiskError: the file cannot be written.
  """
  splits = {record["split"] for x in curves for record in x.records}
  split = "held_out" if "held_out" in splits else "train"
  shown = {
    title: points
    for title, fields in LOSSES.items()
    if any(points := [_read_points(x.records, split, fields) for x in curves])
  }
  if not shown:
    return []
  with panels(path, 2 * len(shown)) as axes:
    for i, (title, points) in enumerate(shown.items()):
      for axis, unit in zip(axes[2 * i :], ("step", "FLOP"), strict=False):
        _draw_arms(axis, curves, points, num_seeds, unit)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(unit)
        axis.legend(fontsize=8)
  return [path]


def _read_points(
  records: Sequence[Mapping[str, Any]], split: str, fields: Sequence[str]
) -> dict[int, float]:
  """Returns the loss by step, where it is finite."""
  points = {}
  for record in records:
    losses = [record[x] for x in fields if record.get(x) is not None]
    if record["split"] == split and losses:
      points[record["step"]] = losses[0]
  return points


def _draw_arms(
  axis: Any,
  curves: Sequence[Curve],
  points: Sequence[Mapping[int, float]],
  num_seeds: int,
  unit: str,
) -> None:
  """Draws the points of each curve faintly, and the means of the arms."""
  for i, arm in enumerate(dict.fromkeys(x.arm for x in curves)):
    members = [
      (curve.flops if unit == "FLOP" else 1.0, loss)
      for curve, loss in zip(curves, points, strict=True)
      if curve.arm == arm and loss
    ]
    for scale, loss in members:
      steps = scale * np.array([*loss])
      axis.plot(steps, [*loss.values()], color=f"C{i}", alpha=FAINT, lw=1)
    losses = [loss for _, loss in members]
    label = arm
    if len(losses) < num_seeds:
      label += f" ({len(losses)} of {num_seeds} seeds)"
    common = sorted(set.intersection(*map(set, losses))) if losses else []
    means = [np.mean([loss[step] for loss in losses]) for step in common]
    shared = [members[0][0] * step for step in common]
    axis.plot(shared, means, color=f"C{i}", label=label)
