"""Draws the curves of finished runs as loss_NAME.svg, for "Is my loss normal?".

  python docs/images/loss_curves.py runs/demo runs/bert_base-baseline

The page has the commands that made its runs.
"""

import json
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from truenegs_jax.train.metrics import entropy
from truenegs_jax.workdir.metrics_file import read_records

Records = Sequence[Mapping[str, Any]]
TRAIN, HELD_OUT, HIDDEN = "#57606a", "#0072b2", "#d55e00"
LIMIT = {"color": "#1f2328", "linestyle": "--", "linewidth": 1}


def draw(workdir: pathlib.Path) -> Figure:
  """Draws the losses of a run, and what is possible without context."""
  records = read_records(workdir)
  train = [r for r in records if r["split"] == "train"]
  held_out = [r for r in records if r["split"] == "held_out"]
  verdict = json.loads((workdir / "results.json").read_text())["verdict"]
  vocabulary = (workdir / "vocab.txt").read_text().splitlines()
  guesses = {
    "uniform": math.log(len(vocabulary)),
    "unigram": verdict["scores"]["mlm"]["guess"],
  }
  titles = {"mlm": "MLM loss"}
  if "detect" in train[-1]:
    titles |= {"detect": "detection loss", "auc": "detection AUC"}
  figure = Figure(figsize=(2.9 * len(titles), 2.8), layout="constrained")
  panels = figure.subplots(1, len(titles), squeeze=False)[0]
  by_name = dict(zip(titles, panels, strict=True))
  for name, axes in by_name.items():
    axes.set(title=titles[name], xlabel="step", xscale="log")
    axes.grid(alpha=0.25)
    _plot(axes, train, name, "-", color=TRAIN, label="training")
    _plot(axes, held_out, name, "o", color=HELD_OUT, label="held out")

  _plot(
    by_name["mlm"], held_out, "mlm_hidden", "o", color=HIDDEN, label="[MASK]"
  )
  for name, record, side in (
    ("uniform", train[-1], "right"),
    ("unigram", train[0], "left"),
  ):
    at = record["step"], guesses[name]
    by_name["mlm"].axhline(at[1], **LIMIT)
    by_name["mlm"].annotate(f"{name} entropy", at, ha=side, va="bottom")
  if "detect" in train[-1]:
    shares = [(r["replaced"], 1 - r["replaced"]) for r in train]
    entropies = [
      {"step": r["step"], "entropy": entropy(share)}
      for r, share in zip(train, shares, strict=True)
    ]
    _plot(
      by_name["detect"], entropies, "entropy", label="label entropy", **LIMIT
    )
    by_name["auc"].axhline(0.5, label="guessing", **LIMIT)
  for axes in panels:
    axes.legend(fontsize=8)
  return figure


def _plot(
  axes: Axes, records: Records, name: str, *style: str, **options: Any
) -> None:
  steps, values = [r["step"] for r in records], [r[name] for r in records]
  axes.plot(steps, values, *style, markersize=4, **options)


def main() -> None:
  matplotlib.rcParams["svg.hashsalt"] = "loss_curves"  # the same ids every time
  matplotlib.rcParams["font.size"] = 9
  matplotlib.rcParams["svg.fonttype"] = "none"  # text, not outlines: smaller
  for workdir in map(pathlib.Path, sys.argv[1:]):
    path = pathlib.Path(__file__).with_name(f"loss_{workdir.name}.svg")
    draw(workdir).savefig(path, metadata={"Date": None})
    print(path)


if __name__ == "__main__":
  main()
