"""Draws corrections.svg: what each correction did in a known language.

  python docs/images/corrections.py

The numbers are those of studies/corrections.
"""

import pathlib
import sys

import matplotlib
from fixed_points import GREY, INK, add_legend, add_paper
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "studies" / "corrections"))
import summarize  # noqa: E402

BETTER, WORSE, NONE = "#0072b2", "#d55e00", "#8c959f"
LABELS = {
  "hc": "hard correction",
  "hc_until": "the same, 60 % of the steps",
  "drop": "as many dropped at random",
  "uniform": "uniform",
  "model": "model",
  "balanced": "balanced",
  "set": "set",
  "uniform_p50": "uniform, half of the pairs wrong",
  "model_p50": "model, half of the pairs wrong",
  "balanced_p50": "balanced, half of the pairs wrong",
}
# Dial, checkpoint and title of each panel.
PANELS = (
  (100, "tenth", "a tenth of the run,\nall words have synonyms"),
  (100, "end", "end of the run,\nall words"),
  (10, "end", "end of the run,\n10 % of the words"),
)


def draw() -> Figure:
  """Draws a row for each correction and a panel for each moment."""
  figure = Figure(figsize=(8.4, 4.9))
  add_paper(figure)
  panels = figure.subplots(1, len(PANELS), sharey=True)
  figure.subplots_adjust(
    left=0.29, right=0.975, top=0.78, bottom=0.13, wspace=0.14
  )
  for axes, (dial, when, title) in zip(panels, PANELS, strict=True):
    draw_panel(axes, dial, when)
    axes.set_title(title, size=10.5, color=INK, loc="left")
  panels[0].set_yticks(range(len(LABELS)), LABELS.values(), size=10)
  panels[0].set_ylim(len(LABELS) - 0.5, -0.5)
  label = (
    "divergence of the class from the truth, minus that without correction"
  )
  figure.text(0.975, 0.03, label, size=10, color=GREY, ha="right")
  draw_legend(figure)
  return figure


def draw_panel(axes: Axes, dial: int, when: str) -> None:
  """Draws mean differences with 95 % intervals, and the optima at the end."""
  runs = summarize.read(f"dial-{dial}")
  step = summarize.CHECKPOINTS[when]
  seeds = len(runs[summarize.BASELINE, step, "kl_class"])
  for y, arm in enumerate(LABELS):
    shown = summarize.compare(runs, arm, step, "kl_class")
    color = (WORSE if shown.mean > 0 else BETTER) if shown.is_evidence else NONE
    low, high = shown.mean - shown.half, shown.mean + shown.half
    axes.plot([low, high], [y, y], color=color, linewidth=2)
    axes.plot(shown.mean, y, "o", color=color, markersize=6)
    if when == "end":
      best = summarize.optimum(arm, dial, seeds)
      axes.plot(best, y, "D", color=INK, fillstyle="none", markersize=8)
  axes.axvline(0, color=GREY, linewidth=0.8, zorder=0)
  axes.spines[["top", "right", "left"]].set_visible(False)
  axes.tick_params(left=False, labelcolor=INK, labelsize=9.5)
  axes.locator_params(axis="x", nbins=4)


def draw_legend(figure: Figure) -> None:
  """Explains dots, colours and diamonds."""
  dot = {"marker": "o", "linewidth": 2}
  diamond = {"marker": "D", "fillstyle": "none", "linestyle": "none"}
  handles = {
    "worse": Line2D([], [], color=WORSE, **dot),
    "better": Line2D([], [], color=BETTER, **dot),
    "no evidence (95 % intervals)": Line2D([], [], color=NONE, **dot),
    "the same, of their optima": Line2D([], [], color=INK, **diamond),
  }
  add_legend(figure, handles, fontsize=10)


def main() -> None:
  matplotlib.rcParams["svg.hashsalt"] = "corrections"  # the same ids
  matplotlib.rcParams["svg.fonttype"] = "none"  # text, not outlines: smaller
  path = pathlib.Path(__file__).with_suffix(".svg")
  draw().savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
  main()
