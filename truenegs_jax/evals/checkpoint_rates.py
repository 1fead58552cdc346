"""Corrections at each checkpoint of a run: the paper's table 2."""

import dataclasses
import pathlib

from rich.table import Table

from truenegs_jax.errors import disk_errors
from truenegs_jax.evals.intervals import Rate
from truenegs_jax.evals.rates import Rates


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A step of a run, and the corrections of its predictions."""

  step: int | None  # None: weights that no run of ours has saved
  percent: float | None  # of the run's steps
  rates: Rates


def show(checkpoints: list[Checkpoint], source: str) -> Table:
  """One line a checkpoint: corrections of sequences, mismatches and slots.

  "Iter" and "Pred" are the paper's columns.
  """
  t = Table(
    title=f"Corrections by {source} (%, with 95 % intervals)",
    title_justify="left",
  )
  for name in ("step (%)", "Iter", "Pred", "slots", "sequences", "mismatches"):
    t.add_column(name, justify="right")
  for at in checkpoints:
    r = at.rates
    t.add_row(
      "-" if at.step is None else f"{at.step:,} ({at.percent:.3g})",
      _percent(r.of_sequences),
      _percent(r.of_mismatches),
      f"{100 * r.of_slots.rate:.2f}",
      f"{r.of_sequences.of:,}",
      f"{r.of_mismatches.of:,}",
    )
  return t


def _percent(value: Rate) -> str:
  if not value.of:
    return "-"
  low, high = 100 * value.low, 100 * value.high
  return f"{100 * value.rate:.2f} {low:.2f}-{high:.2f}"


def draw(checkpoints: list[Checkpoint], path: pathlib.Path) -> None:
  """Writes a PNG of both rates over the steps, with their intervals.

  Raises:
    DiskError: it could not be written.
  """
  import matplotlib  # here: its import takes longer than many a command

  matplotlib.use("Agg")
  from matplotlib import pyplot as plt

  figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
  for axis, title, name in zip(
    axes,
    ("Iter: sequences with a correction", "Pred: corrected mismatches"),
    ("of_sequences", "of_mismatches"),
    strict=True,
  ):
    rates: list[Rate] = [getattr(at.rates, name) for at in checkpoints]
    axis.errorbar(
      [at.step for at in checkpoints],
      [100 * r.rate for r in rates],
      yerr=[
        [100 * (r.rate - r.low) for r in rates],
        [100 * (r.high - r.rate) for r in rates],
      ],
      fmt="o-",
      capsize=3,
    )
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("step")
    axis.set_ylabel("%, with 95 % intervals")
    axis.grid(alpha=0.3)
  figure.tight_layout()
  whole = path.with_suffix(".tmp")
  with disk_errors(path):
    path.parent.mkdir(exist_ok=True)
    figure.savefig(whole, dpi=110, format="png")
    whole.replace(path)
  plt.close(figure)
