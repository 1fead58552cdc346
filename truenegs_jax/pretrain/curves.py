"""Plots the curves of a run from its metrics.jsonl."""

import pathlib
from typing import Any

from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.workdir import files, metrics_file

# File name -> title and the metrics it shows.
PLOTS = {
  "losses": (
    "Loss per slot, per token (nats)",
    ("mlm", "detect", "soft", "sentence"),
  ),
  "collapse": ("Mean cosine of random pairs of tokens", ("pair_cosine",)),
  "detection": ("Detection of replaced tokens: AUC", ("auc",)),
  "corrections": (
    "Hard correction (share)",
    ("corrected_of_slots", "corrected_of_mismatches", "corrected_rows"),
  ),
}


def draw_curves(workdir: pathlib.Path) -> list[pathlib.Path]:
  """Writes plots/<name>.png with one panel per metric; returns the files.

  Training metrics are lines (means since the previous record), held-out metrics
  are points. Plots without a recorded metric are skipped.
  """
  from matplotlib.figure import Figure  # slow to import

  records = metrics_file.read_records(workdir)
  folder = workdir / files.PLOTS
  with disk_errors(folder):
    folder.mkdir(exist_ok=True)
  paths = []
  for plot, (title, metrics) in PLOTS.items():
    names = [name for name in metrics if any(name in r for r in records)]
    if not names:
      continue
    figure = Figure(figsize=(4.5 * len(names), 3.2))
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    for axis, name in zip(axes, names, strict=True):
      _draw_curve(axis, records, name)
    figure.suptitle(title)
    figure.tight_layout()
    paths.append(folder / f"{plot}.png")
    with disk_errors(paths[-1]):
      figure.savefig(paths[-1], dpi=110)
  return paths


def _draw_curve(axis: Any, records: list[dict], name: str) -> None:
  for split, style in (("train", "-"), ("held_out", "o")):
    shown = [r for r in records if r["split"] == split and name in r]
    if shown:
      steps, values = [r["step"] for r in shown], [r[name] for r in shown]
      axis.plot(steps, values, style, label=split.replace("_", "-"))
  axis.set_title(name, fontsize=10)
  axis.set_xlabel("step")
  axis.grid(alpha=0.3)
  axis.legend(fontsize=8)
