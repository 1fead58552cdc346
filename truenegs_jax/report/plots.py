"""Draws figures for papers, such as curves in small multiples, as PNG or PDF.

A column of a paper is 3.3 inches wide and its text 7 to 9 points high; a figure
of this size needs no scaling.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from truenegs_jax.report.curves import PANELS, RATES, Curve
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.runtime.files import atomic_file, disk_errors

SUFFIXES = (".png", ".pdf")
# Those of a run's own figure, of which each run has some.
DEFAULT_FIELDS = (
  *("mlm", "mlm_uncorrected", "detect", "auc"),
  *("corrected_of_slots", "corrected_of_mismatches", "soft", "pair_cosine"),
)
COLUMNS, WIDTH, HEIGHT = 2, 3.3, 1.25  # inches of the figure, and of a row
# Colours that a colour-blind reader can tell apart (Okabe & Ito 2008), also by
# their lightness when printed in grey.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
STYLE: Any = {
  "font.size": 7,
  "axes.titlesize": 7,
  "axes.linewidth": 0.5,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "grid.linewidth": 0.3,
  "legend.fontsize": 6,
  "lines.linewidth": 0.9,
  "pdf.fonttype": 42,  # TrueType, as conferences ask for
}


def draw_curves(
  curves: Sequence[Curve], path: pathlib.Path, fields: Sequence[str] = ()
) -> list[pathlib.Path]:
  """Draws a panel for each field that any curve has; returns the files.

  Lines are training, dots are held-out rows or dev sets, dashed lines are
  references. InputError if none of the `fields` is there.

  Args:
    path: with one of SUFFIXES; without a suffix, all are written.
    fields: of metrics.jsonl; empty: DEFAULT_FIELDS, or all if none is there.
  """
  chosen = _choose_fields(curves, fields)
  if not chosen:
    return []
  paths = [path] if path.suffix in SUFFIXES else []
  paths = paths or [path.with_name(path.name + x) for x in SUFFIXES]
  from matplotlib import rc_context  # slow to import
  from matplotlib.figure import Figure

  with rc_context(STYLE):
    rows = -(-len(chosen) // COLUMNS)
    figure = Figure(figsize=(WIDTH, HEIGHT * rows + 0.3), layout="constrained")
    axes = [*figure.subplots(rows, COLUMNS, squeeze=False).flat]
    groups = [*dict.fromkeys(x.group for x in curves)]
    for axis, name in zip(axes, chosen, strict=False):
      for curve in curves:
        color = COLORS[groups.index(curve.group) % len(COLORS)]
        _draw_curve(axis, curve, name, color)
      _finish_panel(axis, curves, name)
    for axis in axes[len(chosen) :]:
      axis.remove()
    if len(groups) > 1:
      lines = [x for axis in axes for x in axis.get_lines() if x.get_gid()]
      handles = {x.get_gid(): x for x in reversed(lines)}
      shown = [x for x in groups if x in handles]
      style: Any = {"loc": "outside lower center", "ncols": 2, "frameon": False}
      figure.legend([handles[x] for x in shown], shown, **style)
    figure.draw_without_rendering()  # lays it out, once for all files
    figure.set_layout_engine("none")
    for file in paths:
      save_figure(figure, file)
  return paths


def _choose_fields(curves: Sequence[Curve], fields: Sequence[str]) -> list[str]:
  for name in fields:
    one_of("--field", name, PANELS)
  columns = [x for curve in curves for x in curve.splits.values()]
  recorded = set[str]().union(*columns)
  chosen = [x for x in fields or DEFAULT_FIELDS if x in recorded]
  if fields and not chosen:
    raise InputError(
      f"--field={','.join(fields)} is in no metrics.jsonl of these workdirs."
      f" Choose of {', '.join(sorted(recorded & PANELS.keys())) or 'none'}."
    )
  return chosen or [name for name in PANELS if name in recorded]


def _draw_curve(axis: Any, curve: Curve, name: str, color: str) -> None:
  for split, columns in curve.splits.items():
    if name not in columns:
      continue
    values = np.array(columns[name], float)  # None becomes NaN
    style = {"color": color, "ms": 2.5, "gid": curve.group, "zorder": 3}
    marks = "-" if split == "train" else "o"
    axis.plot(columns["step"], values, marks, **style)


def _finish_panel(axis: Any, curves: Sequence[Curve], name: str) -> None:
  low, high = axis.get_ylim()
  for label, value in curves[0].references.get(name, {}).items():
    if low <= value <= high:
      axis.axhline(value, color="0.4", lw=0.6, ls="--")
      style = {"ha": "right", "va": "bottom", "fontsize": 5.5, "color": "0.4"}
      place = "axes fraction", "data"
      axis.annotate(label, (1, value), xycoords=place, **style)
  if name in RATES:
    axis.set_ylim(bottom=0)
  axis.set_title(PANELS[name])
  axis.ticklabel_format(axis="x", style="sci", scilimits=(-3, 4))
  axis.grid(alpha=0.4)
  axis.set_xlabel("step", labelpad=1)


def save_figure(figure: Any, path: pathlib.Path) -> None:
  """Writes a figure, always with the same bytes; DiskError if it cannot."""
  with disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
  kind = path.suffix.removeprefix(".")
  metadata = {"CreationDate": None} if kind == "pdf" else {}
  with atomic_file(path, several_writers=True) as file:  # jobs of a study
    figure.savefig(file, dpi=300, format=kind, metadata=metadata)
