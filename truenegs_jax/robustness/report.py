"""Prints the table of robustness beside the paper's, and its samples."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from truenegs_jax.robustness.comparison import SetComparison
from truenegs_jax.robustness.eval_set import EvalSet
from truenegs_jax.robustness.make_sets import ADD, SWAP
from truenegs_jax.robustness.mark_changes import mark_changes
from truenegs_jax.robustness.scores import Estimate, Score, SetScores
from truenegs_jax.robustness.transformation import texts
from truenegs_jax.tasks.squad import Question

# Number of questions of each set in table 5, from its percentages: all are
# whole numbers of these, and of no fewer questions.
PAPER_SIZES = {ADD: 293, SWAP: 300}
# Titles of the paper's sets, also as TextFlint names its files.
PAPER_TITLES = {
  "SwapSynWordNet": SWAP,
  "AddSentenceDiverse": ADD,
  "AddSentDiverse": ADD,
  "AddSentDiverse-style": ADD,
}
NO_ERROR = " " * len(" ± 2.50")


class PaperRow(NamedTuple):
  """A row of the paper's table 5; (original, transformed) by set and metric."""

  model: str
  scores: Mapping[str, Mapping[str, tuple[float, float]]]


def _row(model: str, *values: float) -> PaperRow:
  pairs = list(zip(values[::2], values[1::2], strict=True))
  return PaperRow(
    model,
    {
      ADD: {"em": pairs[0], "f1": pairs[1]},
      SWAP: {"em": pairs[2], "f1": pairs[3]},
    },
  )


PAPER = (
  _row("ELECTRA small", 80.55, 25.60, 85.10, 26.43, 80.67, 74.67, 85.38, 80.43),
  _row(
    "ELECTRA small HC", 82.59, 34.13, 86.78, 36.60, 82.33, 79.67, 86.68, 83.65
  ),
  _row(
    "ELECTRA small SR", 78.84, 37.20, 80.84, 38.29, 78.67, 75.67, 80.88, 78.51
  ),
)


@dataclasses.dataclass(frozen=True)
class SetResult:
  """A set with the scores and answers of each model, by its name.

  Attributes:
    answers: the runs' answers to original and transformed examples.
    compared: the first model with the second; None for one model.
  """

  examples: EvalSet
  scores: Mapping[str, SetScores]
  answers: Mapping[str, tuple[Sequence[Any], Sequence[Any]]]
  compared: SetComparison | None

  def estimates(self, model: str) -> dict[str, dict[str, Estimate]]:
    """Returns estimates by metric: "original", "transformed" and "drop"."""
    scores = self.scores[model]
    sides: dict[str, Mapping[str, Score]] = {
      "original": scores.original,
      "transformed": scores.transformed,
      "drop": scores.drops(),
    }
    return {
      metric: {s: x[metric].estimate() for s, x in sides.items() if metric in x}
      for metric in scores.transformed
    }

  @property
  def published(self) -> str:
    """Name of this set in the paper's table 5; "" if it is not there."""
    is_squad = all("em" in x.transformed for x in self.scores.values())
    return PAPER_TITLES.get(self.examples.title, "") if is_squad else ""


def print_table(
  results: Sequence[SetResult], title: str, console: Console
) -> None:
  """Prints the scores of all models on all sets, beside the paper's."""
  table = _make_table(title, "model", ("", "original", "transformed", "drop"))
  short = {x: pathlib.PurePath(x).name for x in results[0].scores}
  names = short if len(set(short.values())) == len(short) else {}
  for result in results:
    x = result.examples
    table.add_section()
    count = f"n = {len(x.variants):,}"
    size = PAPER_SIZES.get(result.published, 0)
    published = f"paper: {size}" if size else ""
    table.add_row(x.title, "", count, published, style="bold")
    for model in result.scores:
      name = names.get(model, model)
      for metric, sides in result.estimates(model).items():
        shown = {k: f"{e.value:.2f} ± {e.se:.2f}" for k, e in sides.items()}
        cells = (shown.get(k, "") for k in ("original", "transformed", "drop"))
        table.add_row(name, metric, *cells)
        name = ""
    for row in PAPER:
      name = f"paper, {row.model}"
      for metric, pair in row.scores.get(result.published, {}).items():
        drop = f"{pair[0] - pair[1]:.2f}{NO_ERROR}"
        cells = (_paper_cell(y, metric, size) for y in pair)
        table.add_row(name, metric, *cells, drop, style="dim")
        name = ""
  console.print(table)


def _paper_cell(value: float, metric: str, size: int) -> str:
  """Formats a score; that of exact match has its binomial standard error."""
  if metric != "em":
    return f"{value:.2f}{NO_ERROR}"
  return f"{value:.2f} ± {math.sqrt(value * (100 - value) / (size - 1)):.2f}"


def print_comparison(results: Sequence[SetResult], console: Console) -> None:
  """Prints the differences of the first model and the second, by set."""
  columns = ("difference", "95 %, questions", "95 %, and runs", "p")
  table = _make_table("First model minus second", "", columns)
  for result in results:
    if not (compared := result.compared):
      continue
    table.add_section()
    table.add_row(result.examples.title, style="bold")
    for c in compared.drops:
      runs = ""
      if c.low_runs is not None and c.high_runs is not None:
        runs = f"{c.low_runs:+.2f} to {c.high_runs:+.2f}"
      table.add_row(
        f"{'drop of ' * compared.has_drops}{c.metric}",
        f"{c.difference:+.2f}",
        f"{c.low:+.2f} to {c.high:+.2f}",
        runs,
        f"{c.p if c.p_runs is None else c.p_runs:.2g}",
      )
    for side, test in compared.tests.items():
      counts = f"{test.ours} : {test.theirs}"
      table.add_row(f"McNemar, {side}", counts, "", "", f"{test.p:.2g}")
  console.print(table)
  console.print(
    "McNemar's exact test: questions that only one of the two, or more of its"
    " runs, answers right.",
    soft_wrap=True,
  )


def _make_table(title: str, left: str, right: Sequence[str]) -> Table:
  table = Table(title=title, title_justify="left", box=box.SIMPLE)
  table.add_column(left)
  for name in right:
    table.add_column(name, justify="right", no_wrap=True)
  return table


def describe_set(examples: EvalSet) -> str:
  """Describes in one line what a set was made from and what was refused."""
  about = examples.about
  if "source" in about:
    text = f"{len(examples.transformed):,} examples of '{about['source']}'"
    return f"{examples.title}: {text}" + "".join(
      f", {count:,} {note}" for note, count in about.get("notes", {}).items()
    )
  share = about["changed"] / max(about["tried"], 1)
  causes = ", ".join(f"{x} {n:,}" for x, n in about["refused"].items())
  used = ", ".join(f"{k}: {v}" for k, v in about["resources"].items())
  return (
    f"{examples.title}: {about['changed']:,} of {about['tried']:,} examples"
    f" changed ({share:.1%})"
    + (f"; refused: {causes}" if causes else "")
    + (f"; {used}" if used else "")
  )


def print_samples(examples: EvalSet, count: int, console: Console) -> None:
  """Prints the first examples with their changes marked."""
  if not examples.original or not count:
    return
  console.print(f"{examples.title}, [old -> new]:")
  pairs = zip(examples.original, examples.variants, strict=True)
  for before, members in [pair for pair in pairs if pair[1]][:count]:
    changed = examples.transformed[members[0]]
    both = zip(texts(before), texts(changed), strict=True)
    marked = [mark_changes(a, b) for a, b in both if a != b]
    if isinstance(changed, Question):
      answers = " | ".join(dict.fromkeys(text for text, _ in changed.answers))
      marked.append(f"({changed.text} {answers})")
    console.print(f"* {changed.key}: {' / '.join(marked)}", soft_wrap=True)


def to_json(result: SetResult) -> dict[str, Any]:
  """Returns a set's scores and answers in JSON's types."""
  examples = result.examples
  sides = {"original": examples.original, "transformed": examples.transformed}
  return {
    "title": examples.title,
    **examples.about,
    "questions": len(examples.variants),
    "variants": [list(x) for x in examples.variants],
    "keys": {side: [x.key for x in rows] for side, rows in sides.items()},
    "golds": {side: [_gold(x) for x in rows] for side, rows in sides.items()},
    "models": {
      model: {
        "scores": {
          metric: {side: x._asdict() for side, x in estimates.items()}
          for metric, estimates in result.estimates(model).items()
        },
        "answers": dict(zip(sides, answers, strict=True)),
      }
      for model, answers in result.answers.items()
    },
    "compared": _compared_to_json(result.compared),
    "paper": {
      row.model: row.scores[result.published]
      for row in PAPER
      if result.published
    },
  }


def _gold(example: Any) -> Any:
  if isinstance(example, Question):
    return [text for text, _ in example.answers]
  return example.label


def _compared_to_json(compared: SetComparison | None) -> dict[str, Any] | None:
  if compared is None:
    return None
  return {
    "of": "drops" if compared.has_drops else "scores",
    "bootstrap": [dataclasses.asdict(x) for x in compared.drops],
    "mcnemar": {side: x._asdict() for side, x in compared.tests.items()},
  }
