"""Prints the table of robustness beside the paper's, and its samples."""

import dataclasses
import difflib
import math
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console

from truenegs_jax.finetune import leaderboard
from truenegs_jax.robustness.eval_set import ORIGINAL, TRANSFORMED, EvalSet
from truenegs_jax.robustness.scores import (
  DROP,
  EXACT,
  F1,
  Answers,
  Estimates,
  SetComparison,
)
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
CONTEXT_TOKENS = 8  # of an unchanged range, before and after a change
SIDES = (ORIGINAL, TRANSFORMED, DROP)
Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class SetResult:
  """Answers to a set and their scores, by the names of the models.

  Attributes:
    compared: the first model with the second; None for one model.
  """

  scores: Mapping[str, Estimates]
  answers: Mapping[str, Answers]
  compared: SetComparison | None


Results = Sequence[tuple[EvalSet, SetResult]]


def find_published(
  title: str, metrics: Collection[str]
) -> dict[str, dict[str, tuple[float, float]]]:
  """Returns the paper's scores on a set by model; {} if it has none."""
  paper = TITLES.get(title, "") if EXACT in metrics else ""
  return {f"paper, {k}": x[paper] for k, x in PAPER.items() if paper}


def print_scores(results: Results, task: Task, console: Console) -> None:
  """Prints the scores of all models on all sets, beside the paper's."""
  title = f"{task.title}, % ± standard error over questions"
  table = leaderboard.make_table(title, ("model", "metric"), SIDES)
  for examples, result in results:
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


def print_comparisons(
  compared: Sequence[tuple[str, SetComparison]], console: Console
) -> None:
  """Prints the comparisons of two models, given with the titles of the sets."""
  console.print(
    f"{leaderboard.COMPARED}. McNemar's test counts the questions that only one"
    " of the two, or more of its runs, answers right.",
    soft_wrap=True,
  )
  for title, x in compared:
    rows = [(x.compared, x.bootstrap)]
    console.print(leaderboard.comparisons_table(title, rows))
    for side, test in x.mcnemar.items():
      counts = f"{test.ours} : {test.theirs}, p = {test.p:.2g}"
      console.print(f"McNemar's exact test, {side}: {counts}")


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


def print_samples(examples: EvalSet, count: int, console: Console) -> None:
  """Prints the first examples with their changes marked."""
  members = [x[0] if x else None for x in examples.variants]
  indices = members or range(len(examples.original))
  pairs = zip(examples.original, indices, strict=True)
  changed = [(x, examples.transformed[i]) for x, i in pairs if i is not None]
  if changed and count:
    console.print(f"{examples.title}, [old -> new]:")
  for before, after in changed[:count]:
    both = zip(texts(before), texts(after), strict=True)
    marked = [mark_changes(a, b) for a, b in both if a != b]
    if isinstance(after, Question):
      answers = " | ".join(dict.fromkeys(text for text, _ in after.answers))
      marked.append(f"({after.text} {answers})")
    console.print(f"* {after.key}: {' / '.join(marked)}", soft_wrap=True)


def to_json(examples: EvalSet, result: SetResult) -> dict[str, Any]:
  """Returns a set's scores and answers in JSON's types."""
  metrics = next(iter(result.scores.values()))
  return {
    "title": examples.title,
    **examples.about,
    "questions": examples.size,
    "variants": examples.variants,
    "keys": {k: [x.key for x in rows] for k, rows in examples.sides.items()},
    "golds": {k: [*map(_gold, rows)] for k, rows in examples.sides.items()},
    **dataclasses.asdict(result),
    "paper": find_published(examples.title, metrics),
  }


def _gold(example: Any) -> Any:
  if isinstance(example, Question):
    return [text for text, _ in example.answers]
  return example.label


def mark_changes(original: str, transformed: str) -> str:
  """Returns the new text with its changes: [old -> new], [+new] or [-old].

  White space is not compared. Long unchanged ranges are shortened to "...".
  """
  old, new = (
    re.findall(r"\s*(?:\w+(?:['’]\w+)*|[^\w\s])", text)
    for text in (original, transformed)
  )
  matcher = difflib.SequenceMatcher(
    None, [x.strip() for x in old], [x.strip() for x in new], autojunk=False
  )
  pieces = []
  for kind, a, b, c, d in matcher.get_opcodes():
    if kind == "equal":
      head = CONTEXT_TOKENS if c else 0
      tail = CONTEXT_TOKENS if d < len(new) else 0
      pieces += new[c:d]
      if d - c > head + tail + 1:
        pieces[-(d - c) :] = [*new[c : c + head], " ...", *new[d - tail : d]]
      continue
    before, after = "".join(old[a:b]), "".join(new[c:d])
    space = " " if (after or before)[0].isspace() else ""
    marks = {"insert": "+", "delete": "-", "replace": f"{before.strip()} -> "}
    pieces.append(f"{space}[{marks[kind]}{(after or before).strip()}]")
  return "".join(pieces)
