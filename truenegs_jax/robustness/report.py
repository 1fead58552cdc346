"""Prints the table of robustness beside the paper's, and its samples."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from truenegs_jax.finetune import leaderboard
from truenegs_jax.robustness.comparison import SetComparison
from truenegs_jax.robustness.eval_set import ORIGINAL, TRANSFORMED, EvalSet
from truenegs_jax.robustness.mark_changes import mark_changes
from truenegs_jax.robustness.scores import DROP, EXACT, F1, Answers, Estimates
from truenegs_jax.robustness.transformation import texts
from truenegs_jax.tasks.squad import Question
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
# Table 5: scores of original and transformed questions.
PAPER = {
  "ELECTRA small": {
    ADD: {EXACT: (80.55, 25.60), F1: (85.10, 26.43)},
    SWAP: {EXACT: (80.67, 74.67), F1: (85.38, 80.43)},
  },
  "ELECTRA small HC": {
    ADD: {EXACT: (82.59, 34.13), F1: (86.78, 36.60)},
    SWAP: {EXACT: (82.33, 79.67), F1: (86.68, 83.65)},
  },
  "ELECTRA small SR": {
    ADD: {EXACT: (78.84, 37.20), F1: (80.84, 38.29)},
    SWAP: {EXACT: (78.67, 75.67), F1: (80.88, 78.51)},
  },
}
SIDES = (ORIGINAL, TRANSFORMED, DROP)


@dataclasses.dataclass(frozen=True)
class SetResult:
  """A set with the answers and scores of each model, by its name.

  Attributes:
    compared: the first model with the second; None for one model.
  """

  examples: EvalSet
  answers: Mapping[str, Answers]
  estimates: Mapping[str, Estimates]
  compared: SetComparison | None

  def paper_rows(self) -> dict[str, dict[str, tuple[float, float]]]:
    """Returns the paper's scores on this set by model; {} if it has none."""
    title = TITLES.get(self.examples.title, "")
    is_squad = all(EXACT in x for x in self.estimates.values())
    rows = PAPER if title and is_squad else {}
    return {f"paper, {model}": x[title] for model, x in rows.items()}


def print_results(
  results: Sequence[SetResult], task: Task, samples: int, console: Console
) -> None:
  """Prints samples, scores beside the paper's, and comparisons of all sets."""
  for x in results:
    _print_samples(x.examples, samples, console)
  if not results:
    console.print("No example could be transformed.")
    return
  title = f"{task.title}, % ± standard error over questions"
  table = leaderboard.make_table(title, ("model", "metric"), SIDES)
  paths = [pathlib.PurePath(name) for name in results[0].estimates]
  is_short = len({path.name for path in paths}) == len(paths)
  for x in results:
    table.add_section()
    table.add_row(x.examples.title, f"n = {x.examples.size:,}", style="bold")
    for path, estimates in zip(paths, x.estimates.values(), strict=True):
      name = path.name if is_short else str(path)
      for metric, sides in estimates.items():
        cells = [
          f"{sides[side].value:.2f} ± {sides[side].se:.2f}"
          if side in sides
          else ""
          for side in SIDES
        ]
        table.add_row(name, metric, *cells)
    for name, scores in x.paper_rows().items():
      for metric, pair in scores.items():
        size = PAPER_SIZES[TITLES[x.examples.title]]
        cells = [_paper_cell(value, metric, size) for value in pair]
        drop = f"{pair[0] - pair[1]:.2f}"
        table.add_row(name, metric, *cells, drop, style="dim")
  console.print(table)
  _print_comparisons(results, console)


def _paper_cell(value: float, metric: str, size: int) -> str:
  """Formats a score; that of exact match has its binomial standard error."""
  se = math.sqrt(value * (100 - value) / (size - 1))
  return f"{value:.2f} ± {se:.2f}" if metric == EXACT else f"{value:.2f}"


def _print_comparisons(results: Sequence[SetResult], console: Console) -> None:
  compared = [(x.examples.title, x.compared) for x in results if x.compared]
  rows = [(f"{title}, {x.compared}", x.bootstrap) for title, x in compared]
  if rows:
    console.print(leaderboard.comparisons_table(rows))
  for title, x in compared:
    for side, test in x.mcnemar.items():
      console.print(
        f"{title}, {side}: {test.ours} questions are right only or more often"
        f" by the first model, {test.theirs} by the second (McNemar's exact"
        f" test, p = {test.p:.2g})",
        soft_wrap=True,
      )


def describe_set(examples: EvalSet) -> str:
  """Describes in one line what a set was made from and what was refused."""
  about = examples.about
  if "source" in about:
    parts = [f"{len(examples.transformed):,} examples of '{about['source']}'"]
    parts += [about["note"]] if "note" in about else []
  else:
    changed, tried = about["changed"], about["tried"]
    share = changed / max(tried, 1)
    causes = ", ".join(f"{x} {n:,}" for x, n in about["refused"].items())
    parts = [f"{changed:,} of {tried:,} examples changed ({share:.1%})"]
    parts += [f"refused: {causes}"] if causes else []
    parts += [f"{k}: {v}" for k, v in about["resources"].items()]
  return f"{examples.title}: {'; '.join(parts)}"


def _print_samples(examples: EvalSet, count: int, console: Console) -> None:
  """Prints the first examples with their changes marked."""
  changed = [x[:1] for x in examples.variants] or [
    [i] for i in range(len(examples.transformed))
  ]
  pairs = [
    (before, examples.transformed[i])
    for before, members in zip(examples.original, changed, strict=False)
    for i in members
  ][:count]
  if pairs:
    console.print(f"{examples.title}, [old -> new]:")
  for before, after in pairs:
    both = zip(texts(before), texts(after), strict=True)
    marked = [mark_changes(a, b) for a, b in both if a != b]
    if isinstance(after, Question):
      answers = " | ".join(dict.fromkeys(text for text, _ in after.answers))
      marked.append(f"({after.text} {answers})")
    console.print(f"* {after.key}: {' / '.join(marked)}", soft_wrap=True)


def to_json(result: SetResult) -> dict[str, Any]:
  """Returns a set's scores and answers in JSON's types."""
  x, compared = result.examples, None
  if result.compared:
    compared = {
      "of": result.compared.compared,
      "bootstrap": [dataclasses.asdict(y) for y in result.compared.bootstrap],
      "mcnemar": {k: y._asdict() for k, y in result.compared.mcnemar.items()},
    }
  return {
    "title": x.title,
    **x.about,
    "questions": x.size,
    "variants": x.variants,
    "keys": {side: [y.key for y in rows] for side, rows in x.sides.items()},
    "golds": {side: [*map(_gold, rows)] for side, rows in x.sides.items()},
    "models": {
      model: {
        "scores": {
          metric: {side: y._asdict() for side, y in sides.items()}
          for metric, sides in estimates.items()
        },
        "answers": result.answers[model],
      }
      for model, estimates in result.estimates.items()
    },
    "compared": compared,
    "paper": result.paper_rows(),
  }


def _gold(example: Any) -> Any:
  if isinstance(example, Question):
    return [text for text, _ in example.answers]
  return example.label
