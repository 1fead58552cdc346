"""Prints the table of robustness beside the paper's."""

import dataclasses
import math
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console

from truenegs_jax.finetune import leaderboard
from truenegs_jax.robustness.eval_set import TRANSFORMED, EvalSet
from truenegs_jax.robustness.scores import DROP, EXACT, F1, SIDES, Estimate
from truenegs_jax.stats.differences import Comparison
from truenegs_jax.tasks.task import Task

SWAP, ADD = "SwapSynWordNet", "AddSentenceDiverse"
# The paper's sets by their titles, also as TextFlint names its files.
TITLES = {
  SWAP: SWAP,
  ADD: ADD,
  "AddSentDiverse": ADD,
  "AddSentDiverse-style": ADD,
}
# Number of questions of each set in table 5, from its percentages: all are
# whole numbers of these, and of no fewer questions.
PAPER_SIZES = {ADD: 293, SWAP: 300}
# Table 5: scores of original and transformed questions by ELECTRAs.
PAPER = {
  "small": {
    ADD: {EXACT: (80.55, 25.60), F1: (85.10, 26.43)},
    SWAP: {EXACT: (80.67, 74.67), F1: (85.38, 80.43)},
  },
  "small HC": {
    ADD: {EXACT: (82.59, 34.13), F1: (86.78, 36.60)},
    SWAP: {EXACT: (82.33, 79.67), F1: (86.68, 83.65)},
  },
  "small SR": {
    ADD: {EXACT: (78.84, 37.20), F1: (80.84, 38.29)},
    SWAP: {EXACT: (78.67, 75.67), F1: (80.88, 78.51)},
  },
}
Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class SetResult:
  """The scores of the models on a set.

  Attributes:
    scores: of each model, by metric and side.
    compared: the first model with the second, by metric; empty for one model.
  """

  examples: EvalSet
  scores: Mapping[str, Mapping[str, Mapping[str, Estimate]]]
  compared: Sequence[Comparison]

  def to_json(self) -> dict[str, Any]:
    """Returns the result with what the set was made from, in JSON's types."""
    examples, saved = self.examples, dataclasses.asdict(self)
    del saved["examples"]
    return {
      "title": examples.title,
      **examples.about,
      "questions": examples.size,
      "variants": examples.variants,
      **saved,
      "paper": find_published(examples.title, next(iter(self.scores.values()))),
    }


def find_published(
  title: str, metrics: Collection[str]
) -> dict[str, dict[str, tuple[float, float]]]:
  """Returns the paper's scores on a set by model; {} if it has none."""
  paper = TITLES.get(title, "") if EXACT in metrics else ""
  return {f"paper, {k}": x[paper] for k, x in PAPER.items() if paper}


def print_scores(
  results: Iterable[SetResult], task: Task, console: Console
) -> None:
  """Prints the scores of all models on all sets, beside the paper's."""
  title = f"{task.title}, % ± standard error over questions"
  table = leaderboard.make_table(title, ("model", "metric"), SIDES)
  for result in results:
    examples = result.examples
    table.add_section()
    table.add_row(examples.title, "", f"n = {examples.size:,}", style="bold")
    for model, scores in _short_names(result.scores).items():
      for metric, sides in scores.items():
        shown = {k: f"{x.value:.2f} ± {x.se:.2f}" for k, x in sides.items()}
        table.add_row(model, metric, *(shown.get(side, "") for side in SIDES))
    for model, published in find_published(examples.title, scores).items():
      for metric, pair in published.items():
        size = PAPER_SIZES[TITLES[examples.title]]
        cells = [_paper_cell(value, metric, size) for value in pair]
        drop = f"{pair[0] - pair[1]:.2f}"
        table.add_row(model, metric, *cells, drop, style="dim")
  console.print(table)


def _short_names(by_model: Mapping[str, Value]) -> dict[str, Value]:
  """Names models by the last part of their paths, if these differ."""
  short = {pathlib.PurePath(name).name: x for name, x in by_model.items()}
  return short if len(short) == len(by_model) else dict(by_model)


def _paper_cell(value: float, metric: str, size: int) -> str:
  """Formats a score; that of exact match has its binomial standard error."""
  se = math.sqrt(value * (100 - value) / (size - 1))
  return f"{value:.2f} ± {se:.2f}" if metric == EXACT else f"{value:.2f}"


def print_comparisons(results: Iterable[SetResult], console: Console) -> None:
  """Prints the differences of two models: of drops, if sets have originals."""
  rows = [
    (f"{x.examples.title}, {DROP if x.examples.original else TRANSFORMED}", y)
    for x in results
    if (y := x.compared)
  ]
  if rows:
    console.print(leaderboard.comparisons_table(leaderboard.COMPARED, rows))


def describe_set(examples: EvalSet) -> str:
  """Describes in one line what a set was made from and what was refused."""
  about = examples.about
  if "source" in about:
    parts = [f"{len(examples.transformed):,} examples of '{about['source']}'"]
  else:
    changed, tried = about["changed"], about["tried"]
    share = changed / max(tried, 1)
    causes = ", ".join(f"{x} {n:,}" for x, n in about["refused"].items())
    parts = [f"{changed:,} of {tried:,} examples changed ({share:.1%})"]
    parts += [f"refused: {causes}"] if causes else []
    parts += [f"{k}: {v}" for k, v in about["resources"].items()]
  return f"{examples.title}: {'; '.join(parts)}"
