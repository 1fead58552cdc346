"""Draws learning_rate.svg: held-out losses of range tests, by learning rate.

  python docs/images/learning_rate.py

The numbers are those of studies/learning_rate.csv; the page "Choose a learning
rate" has the commands that made them.
"""

import collections
import csv
import pathlib

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

NUMBERS = pathlib.Path(__file__).parents[2] / "studies" / "learning_rate.csv"
LOSS = "mlm_hidden"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#57606a")
# The runs of each panel, by the names of their workdirs, and their labels.
PANELS = {
  "width": {"base": "64", "w128": "128"},
  "rows of a step": {"base": "128", "r32": "32"},
  "optim.b2": {"base": "0.98", "b2_999": "0.999"},
  "optim.schedule": {"base": "bert", "wsd": "wsd"},
  "from MiniLM's weights": {"minilm": "150 steps of 16 rows"},
}


def draw(runs: dict[str, list[dict[str, str]]]) -> Figure:
  """Draws a panel for each thing that was varied."""
  figure = Figure(figsize=(8.4, 4.8), layout="constrained")
  grid = figure.add_gridspec(2, 6)
  places = (grid[0, :2], grid[0, 2:4], grid[0, 4:], grid[1, :3], grid[1, 3:])
  for place, (title, labels) in zip(places, PANELS.items(), strict=True):
    axes = figure.add_subplot(place)
    axes.set(title=title, xscale="log", xlabel="optim.lr")
    axes.grid(alpha=0.25)
    for colour, (name, label) in zip(COLOURS, labels.items(), strict=False):
      draw_run(axes, runs[name], color=colour, label=label)
    unigram = float(runs[next(iter(labels))][0]["unigram"])
    axes.axhline(unigram, color="#1f2328", linestyle="--", linewidth=1)
    axes.legend(fontsize=8)
  figure.supylabel("held-out mlm_hidden (nats)", fontsize=9)
  return figure


def draw_run(axes: Axes, rows: list[dict[str, str]], **style: str) -> None:
  """Draws the losses of a range test."""
  rates = [float(row["rate"]) for row in rows if row[LOSS]]
  losses = [float(row[LOSS]) for row in rows if row[LOSS]]
  axes.plot(rates, losses, "o-", markersize=4, **style)


def main() -> None:
  matplotlib.rcParams["svg.hashsalt"] = (
    "learning_rate"  # the same ids each time
  )
  matplotlib.rcParams["font.size"] = 9
  matplotlib.rcParams["svg.fonttype"] = "none"  # text, not outlines: smaller
  runs = collections.defaultdict(list)
  with NUMBERS.open() as file:
    for row in csv.DictReader(file):
      runs[row["run"]].append(row)
  path = pathlib.Path(__file__).with_suffix(".svg")
  draw(runs).savefig(path, metadata={"Date": None})


if __name__ == "__main__":
  main()
