"""Draws hour.svg: losses of hidden words over minutes, ours and the Trainer's.

  python docs/images/hour.py

The numbers are those of studies/hour/results.jsonl, whose commands are in
studies/hour/README.md.
"""

import pathlib
import sys

import matplotlib
from matplotlib.figure import Figure

STUDY = pathlib.Path(__file__).parents[2] / "studies" / "hour"
SIDES = {"own": ("truenegs_jax", "#0072b2"), "trainer": ("Trainer", "#d55e00")}
WINDOWS = ("32", "128")


def draw(results: list) -> Figure:
  """Draws a panel for each length of windows, a curve for each run."""
  figure = Figure(figsize=(8.4, 3.2), layout="constrained")
  panels = figure.subplots(1, len(WINDOWS), sharey=True)
  for length, axes in zip(WINDOWS, panels, strict=True):
    axes.set(title=f"windows of {length} tokens", xlabel="minutes of 2 cores")
    axes.grid(alpha=0.25)
    runs = sorted({(x.side, x.planned, x.seed) for x in results})
    labelled = set()
    for run in runs:
      points = sorted(
        (x.minutes, x.values[length])
        for x in results
        if (x.side, x.planned, x.seed) == run and length in x.values
      )
      if run[0] not in SIDES or not points:
        continue
      label, colour = SIDES[run[0]]
      axes.plot(
        *zip(*points, strict=True),
        "o-",
        markersize=3,
        linewidth=1,
        color=colour,
        label=None if label in labelled else label,
      )
      labelled.add(label)
  panels[0].set(ylabel="loss of [MASK] (nats)")
  panels[0].legend()
  return figure


def main() -> None:
  sys.path.insert(0, str(STUDY))
  import summary

  matplotlib.rcParams["svg.hashsalt"] = "hour"  # the same ids each time
  matplotlib.rcParams["font.size"] = 9
  matplotlib.rcParams["svg.fonttype"] = "none"  # text, not outlines: smaller
  results = [*summary.read_results(summary.RESULTS)]
  path = pathlib.Path(__file__).with_suffix(".svg")
  draw(results).savefig(path, metadata={"Date": None})


if __name__ == "__main__":
  main()
