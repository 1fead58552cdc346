"""Overlays the training curves of a study's arms."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.study.records import LOSSES, read_loss
from truenegs_jax.workdir.plots import panels

FAINT = 0.3

Line = Mapping[float, float]  # loss by step or FLOP


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
  """Draws the held-out losses of all arms as PNG.

  Returns the path, or nothing if there are no losses.

  Each loss has a panel by step, one by FLOP, and one with the differences from
  the baseline, the first arm, with the same seed. The line of an arm is the
  mean over its seeds at the steps that all have; each seed is a faint line.
  The legend counts the seeds of an arm that lacks some. Losses of training take
  the place of held-out ones if no run has two of these.

  Args:
    num_seeds: number of seeds that each arm is to have.

  Raises:
    DiskError: the file cannot be written.
  """
  counts = [[y["split"] for y in x.records].count("held_out") for x in curves]
  split = "held_out" if max(counts, default=0) > 1 else "train"
  shown = {
    title: points
    for title in LOSSES
    if any(points := [_read_points(x.records, split, title) for x in curves])
  }
  if not shown:
    return []
  with panels(path, 3 * len(shown)) as axes:
    for i, (title, points) in enumerate(shown.items()):
      by_step, by_flop, difference = axes[3 * i : 3 * i + 3]
      flops = [
        {x.flops * step: loss for step, loss in line.items()}
        for x, line in zip(curves, points, strict=True)
      ]
      _draw_arms(by_step, curves, points, num_seeds)
      _draw_arms(by_flop, curves, flops, num_seeds)
      minus = _subtract_baseline(curves, points)
      _draw_arms(difference, curves, minus, num_seeds)
      minus_title = f"{title}, minus {curves[0].arm}"
      for axis, text, unit in (
        (by_step, title, "step"),
        (by_flop, title, "FLOP"),
        (difference, minus_title, "step"),
      ):
        axis.set_title(text, fontsize=10)
        axis.set_xlabel(unit)
    axes[0].legend(fontsize=8)
  return [path]


def _read_points(
  records: Sequence[Mapping[str, Any]], split: str, title: str
) -> Line:
  """Returns the loss by step, where it is finite."""
  losses = {
    x["step"]: read_loss(x, title) for x in records if x["split"] == split
  }
  return {step: loss for step, loss in losses.items() if loss is not None}


def _subtract_baseline(
  curves: Sequence[Curve], lines: Sequence[Line]
) -> list[Line]:
  """Returns the differences at the steps that the baseline's seed has."""
  by_run = {(x.arm, x.seed): y for x, y in zip(curves, lines, strict=True)}
  baselines = [by_run.get((curves[0].arm, x.seed), {}) for x in curves]
  return [
    {step: line[step] - base[step] for step in line if step in base}
    for line, base in zip(lines, baselines, strict=True)
  ]


def _draw_arms(
  axis: Any, curves: Sequence[Curve], lines: Sequence[Line], num_seeds: int
) -> None:
  """Draws each line faintly, and the means of the arms."""
  for i, arm in enumerate(dict.fromkeys(x.arm for x in curves)):
    pairs = zip(curves, lines, strict=True)
    members = [line for x, line in pairs if x.arm == arm and line]
    for line in members:
      axis.plot([*line], [*line.values()], color=f"C{i}", alpha=FAINT, lw=1)
    common = sorted(set.intersection(*map(set, members))) if members else []
    means = [np.mean([line[x] for line in members]) for x in common]
    count = len(members)
    lack = f" ({count} of {num_seeds} seeds)" if count < num_seeds else ""
    axis.plot(common, means, color=f"C{i}", label=f"{arm}{lack}")
