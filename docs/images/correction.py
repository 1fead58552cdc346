"""Draws correction.svg, the picture of a correction, for README and the site.

  python docs/images/correction.py

The synonyms are those of BERT's vocabulary in WordNet, as listed by `truenegs
synonyms primary`. The probabilities are invented.
"""

import math
import pathlib

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

INK, GREY, PAPER = "#1f2328", "#57606a", "#ffffff"
GOLD, PREDICTED = "#0072b2", "#d55e00"  # differ for the colour-blind, too
WIDTH, HEIGHT = 60, 61  # of the picture, in tenths of an inch
BARS = 21  # where bars begin

PROBABILITIES = {"main": 0.41, "primary": 0.20, "only": 0.09}
COLORS = {"main": PREDICTED, "primary": GOLD, "only": GREY}


def draw(axes: Axes) -> None:
  """Draws sentence, predictions, synonyms and losses from top to bottom."""
  _write(axes, 3, 57, "1  A word of the text is masked", GREY, 15)
  _write(axes, 3, 51.7, "the", INK, 20)
  _write(axes, 9.5, 51.7, "[MASK]", GOLD, 20, weight="bold", boxed=True)
  _write(axes, 23, 51.7, "reason is the cost", INK, 20)
  _write(axes, 9.5, 47.2, "gold: primary", GOLD, 17, weight="bold")

  _write(axes, 3, 41.8, "2  The model predicts another word", GREY, 15)
  for i, (word, probability) in enumerate(PROBABILITIES.items()):
    y = 37.8 - 3.8 * i
    _write(axes, 3, y, word, COLORS[word], 18, weight="bold")
    _draw_bar(axes, y, 60 * probability, f"{probability:.2f}", COLORS[word])

  _write(axes, 3, 24.5, "3  WordNet: synonyms of primary", GREY, 15)
  _write(axes, 3.6, 19.8, "main", PREDICTED, 18, weight="bold", boxed=True)
  _write(axes, 12.4, 19.8, "chief, principal, master, …", INK, 18)

  loss = -math.log(PROBABILITIES["primary"])
  _write(axes, 3, 14, "4  The loss for this word", GREY, 15)
  _write(axes, 3, 9.8, "usual", INK, 18, weight="bold")
  _draw_bar(axes, 9.8, 12 * loss, f"{loss:.2f} = −ln 0.20", INK)
  _write(axes, 3, 5, "corrected", INK, 18, weight="bold")
  _write(axes, BARS, 5, "none: main is right, too", INK, 17)


def _draw_bar(axes, y, length, label, color):
  axes.barh(y, length, 2.5, left=BARS, color=color)
  _write(axes, BARS + length + 1, y, label, INK, 15)


def _write(axes, x, y, text, color, size, *, weight="normal", boxed=False):
  box = {"boxstyle": "round,pad=0.2", "facecolor": PAPER, "edgecolor": color}
  axes.text(
    x,
    y,
    text,
    color=color,
    fontsize=size,
    fontweight=weight,
    verticalalignment="center_baseline",
    bbox=box if boxed else None,
  )


def main() -> None:
  matplotlib.rcParams["svg.hashsalt"] = "correction"  # the same ids every time
  figure = Figure(figsize=(WIDTH / 10, HEIGHT / 10))
  axes = figure.add_axes((0, 0, 1, 1))
  axes.set_axis_off()
  paper = "round,pad=-0.3,rounding_size=1.5"  # white on dark pages, too
  axes.add_patch(
    FancyBboxPatch(
      (0, 0), WIDTH, HEIGHT, boxstyle=paper, fc=PAPER, ec="#d0d7de"
    )
  )
  draw(axes)
  axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
  path = pathlib.Path(__file__).with_suffix(".svg")
  figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
  main()
