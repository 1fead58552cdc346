"""Plots the curves of a run from its metrics.jsonl."""

import pathlib
from typing import Any

from truenegs_jax.workdir import files, metrics_file
from truenegs_jax.workdir.plots import panels

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
  records = metrics_file.read_records(workdir)
  paths = []
  for plot, (title, metrics) in PLOTS.items():
    names = [name for name in metrics if any(name in r for r in records)]
    if not names:
      continue
    paths.append(workdir / files.PLOTS / f"{plot}.png")
    with panels(paths[-1], len(names), title) as axes:
      for axis, name in zip(axes, names, strict=True):
        _draw_curve(axis, records, name)
  return paths


def _draw_curve(axis: Any, records: list[dict], name: str) -> None:
  for split, style in (("train", "-"), ("held_out", "o")):
    shown = [r for r in records if r["split"] == split and name in r]
    if shown:
      steps, values = [r["step"] for r in shown], [r[name] for r in shown]
      axis.plot(steps, values, style, label=split.replace("_", "-"))
  axis.set_title(name, fontsize=10)
  axis.set_xlabel("step")
  axis.legend(fontsize=8)
