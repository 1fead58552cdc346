"""Draws fixed_points.svg: where losses lead, for the page about corrections.

  python docs/images/fixed_points.py

The numbers are those of studies/fixed_points.json.
"""

import json
import pathlib
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

NUMBERS = pathlib.Path(__file__).parents[2] / "studies" / "fixed_points.json"
INK, GREY, PAPER = "#1f2328", "#57606a", "#ffffff"
CLASS, OTHER, WRONG = "#0072b2", "#aeb6bf", "#d55e00"
TRUTH = {"facecolor": "none", "edgecolor": INK, "linewidth": 0.9}
NUM_SYNONYMS = 3  # the first words of the example
LOSSES = {
  "plain": "plain loss",
  "hc": "hard correction",
  "uniform": "uniform",
  "model": "model",
  "balanced": "balanced",
}
LEXICONS = ("perfect", "wrong")
LANGUAGES = {
  "100 perfect": "100 %, right",
  "100 wrong": "100 %, half wrong",
  "50 perfect": "50 %, right",
  "50 wrong": "50 %, half wrong",
}
HEADINGS = (
  "1 The lexicon is right: main, primary and chief are synonyms",
  "2 It also pairs main with only, which is wrong",
  "3 Artificial languages: 100 % or 50 % of the words have synonyms; half of"
  " the pairs of\nthe lexicon are wrong, or none. % of the probability that"
  " goes to wrong classes (ten seeds):",
)
GRID = {
  **{"height_ratios": (5, 5, 4), "hspace": 0.66, "wspace": 0.1},
  **{"left": 0.17, "right": 0.98, "top": 0.82, "bottom": 0.03},
}


def draw(result: dict) -> Figure:
  """Draws a column for each loss: one context twice, and languages below."""
  figure = Figure(figsize=(8.4, 6.9))
  add_paper(figure)
  panels = figure.subplots(3, len(LOSSES), sharey="row", gridspec_kw=GRID)
  for (name, title), column in zip(LOSSES.items(), panels.T, strict=True):
    for lexicon, axes in zip(LEXICONS, column, strict=False):
      draw_example(axes, result["exact"], result["example"][lexicon][name])
    moved = [result["languages"][x][name]["moved_class"] for x in LANGUAGES]
    draw_languages(column[2], 100 * np.array(moved))
    left = column[0].get_position().x0
    figure.text(left, 0.895, title, size=10, fontweight="bold", color=INK)
  for heading, axes in zip(HEADINGS, panels[:, 0], strict=True):
    top = axes.get_position().y1 + 0.012
    figure.text(0.02, top, heading, size=10.5, color=GREY, linespacing=1.4)
  for axes in panels[:2, 0]:
    axes.set_yticks(range(len(result["words"])), result["words"], size=10.5)
  panels[2, 0].set_yticks(range(len(LANGUAGES)), LANGUAGES.values(), size=9.5)
  for axes in panels.flat:
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(left=False, labelcolor=INK)
  draw_legend(figure)
  return figure


def draw_example(axes: Axes, exact: list[float], point: list[float]) -> None:
  """Draws a fixed point as bars, and the exact probabilities as outlines."""
  words, others = range(len(exact)), len(exact) - NUM_SYNONYMS
  axes.barh(words, point, 0.7, color=[CLASS] * NUM_SYNONYMS + [OTHER] * others)
  axes.barh(words, exact, 0.7, **TRUTH)
  for word in words:
    if not point[word]:
      axes.text(exact[word] + 0.03, word, "†", color=WRONG, va="center")
  now, true = (sum(x[:NUM_SYNONYMS]) for x in (point, exact))
  moved = abs(now - true) > 0.005
  label = f"{now:.2f}, not {true:.2f}" if moved else f"{true:.2f}"
  style = {"color": WRONG if moved else CLASS, "fontweight": "bold"}
  axes.text(0, len(exact) + 0.05, label, size=10, **style)
  axes.set(xlim=(0, 0.8), ylim=(len(exact) - 0.4, -0.6))


def draw_languages(axes: Axes, percent_NxS: np.ndarray) -> None:
  """Draws means of seeds as bars, and the lowest and highest as a line."""
  for y, percent_S in enumerate(percent_NxS):
    mean, low, high = percent_S.mean(), percent_S.min(), percent_S.max()
    axes.barh(y, mean, 0.7, color=WRONG)
    if high:
      axes.plot([low, high], [y, y], color=INK, linewidth=1)
    label = f"{mean:.1f}" if high else "0"
    axes.text(high + 0.8, y, label, va="center", size=9.5, color=INK)
  axes.set(xlim=(0, 32), ylim=(len(percent_NxS) - 0.4, -0.6))


def draw_legend(figure: Figure) -> None:
  """Explains bars, outlines and the sign of a word that dies."""
  handles = {
    "true probability": Patch(**TRUTH),
    "where the loss leads: synonyms (sum below)": Patch(color=CLASS),
    "other words": Patch(color=OTHER),
  }
  add_legend(figure, handles, fontsize=9.5, handlelength=1.4)
  figure.text(0.79, 0.947, "†", color=WRONG, size=11)
  figure.text(0.81, 0.949, "no probability left", color=INK, size=9.5)


def add_paper(figure: Figure) -> None:
  """Adds a light sheet with round corners, so that dark pages show ink."""
  sheet = FancyBboxPatch(
    *((0.005, 0.005), 0.99, 0.99),
    boxstyle="round,pad=0,rounding_size=0.02",
    **{"facecolor": PAPER, "edgecolor": "#d0d7de"},
    zorder=-1,
  )
  figure.add_artist(sheet)


def add_legend(figure: Figure, handles: dict[str, Any], **style: Any) -> None:
  """Adds one line of explanations at the top."""
  figure.legend(
    [*handles.values()],
    [*handles],
    loc="upper left",
    bbox_to_anchor=(0.01, 0.98),
    ncols=len(handles),
    frameon=False,
    labelcolor=INK,
    **style,
  )


def main() -> None:
  matplotlib.rcParams["svg.hashsalt"] = (
    "fixed_points"  # the same ids every time
  )
  matplotlib.rcParams["svg.fonttype"] = "none"  # text, not outlines: smaller
  figure = draw(json.loads(NUMBERS.read_text()))
  path = pathlib.Path(__file__).with_suffix(".svg")
  figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
  main()
