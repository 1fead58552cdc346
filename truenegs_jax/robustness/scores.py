"""Scores a model on sets, and prints the scores beside the paper's.

Runs of several seeds are pooled: a question counts once, with its mean over the
runs. Standard errors are for other questions; that of a drop is of the paired
values.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scipy import stats

from truenegs_jax.report.page import Table
from truenegs_jax.robustness.eval_set import ORIGINAL, TRANSFORMED, EvalSet
from truenegs_jax.tasks.scoring import Scores, score_runs
from truenegs_jax.tasks.task import SQUAD, TASKS, Question

EXACT = "em"
F1 = "f1"
METRICS = (EXACT, F1)
TITLE = f"{TASKS[SQUAD].title}, % ± standard error over questions"
DROP = "drop"  # original minus transformed
SIDES = (ORIGINAL, TRANSFORMED, DROP)

SWAP = "SwapSynWordNet"
ADD = "AddSentenceDiverse"
# Other names of the paper's sets: those of TextFlint's files and of our own.
TITLES = {
  **{"AddSentDiverse": ADD, "AddSentDiverse-style": ADD, "add_sentence": ADD},
  "swap_synonyms": SWAP,
}
# Table 5: scores of original and transformed questions by ELECTRA-small.
NETWORK = ("electra", 256)  # its family and width
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

# Scores on both sides of a set by model and metric.
Published = Mapping[str, Mapping[str, tuple[float, float]]]
Answers = Sequence[Sequence[Any]]  # [S, N]
SetScores = dict[str, dict[str, Scores]]  # by side or DROP, and by metric


def estimate(scores: Scores) -> dict[str, float]:
  """Returns the mean score of the runs in percent, as `value`.

  `se` is its standard error for other questions.
  """
  assert scores.example_SxN is not None  # as for all metrics of questions
  score_N = scores.example_SxN.mean(0)
  se = float(stats.sem(score_N)) if scores.size > 1 else 0.0
  return {"value": float(scores.by_run().mean()), "se": se}


def score_model(
  answer: Callable[[Sequence[Question]], Sequence[Sequence[Any]]],
  seeds: Mapping[str, int | None],
  sets: Sequence[EvalSet],
) -> tuple[dict[str, Any], dict[str, SetScores]]:
  """Answers the questions of all sets at once, and scores each set.

  `answer` returns the answers of each of `seeds` to questions. Returns what
  results.json has of each seed by the folder of its model, with the splits "SET
  SIDE" and "SET drop"; and the scores on each set by its name.
  """
  splits = {
    f"{x.name} {side}": questions
    for x in sets
    for side, questions in x.sides.items()
  }
  unique = {y.texts: y for questions in splits.values() for y in questions}
  numbered = [
    dataclasses.replace(question, key=str(number))
    for number, question in enumerate(unique.values())
  ]
  answers_S = [dict(zip(unique, x, strict=True)) for x in answer(numbered)]
  answered: dict[str, Answers] = {
    split: [[given[y.texts] for y in questions] for given in answers_S]
    for split, questions in splits.items()
  }
  by_set = {x.name: score_set(x, answered) for x in sets}
  saved = {}
  for i, (folder, seed) in enumerate(seeds.items()):
    values = {
      f"{name} {side}": {m: float(x.by_run()[i]) for m, x in scores.items()}
      for name, by_side in by_set.items()
      for side, scores in by_side.items()
    }
    answers = {
      split: {
        "keys": [y.key for y in questions],
        "golds": [y.gold for y in questions],
        "answers": answered[split][i],
      }
      for split, questions in splits.items()
    }
    run = {"task": SQUAD, "seed": seed, "scores": values, "answers": answers}
    saved[folder] = run
  return saved, by_set


def score_set(x: EvalSet, answers: Mapping[str, Answers]) -> SetScores:
  """Scores the answers of S runs, by the name of the set and the side.

  A set without originals has no drop.
  """
  by_side: SetScores = {}
  for side, questions in x.sides.items():
    golds = [y.gold for y in questions]
    by_side[side] = score_runs(METRICS, golds, answers[f"{x.name} {side}"])
  if before := by_side.get(ORIGINAL):
    by_side[DROP] = {m: before[m] - by_side[TRANSFORMED][m] for m in METRICS}
  return by_side


def make_result(
  x: EvalSet, model: str, scores: SetScores, *, family: str, width: int
) -> dict[str, Any]:
  """Makes what results.json has of a set, scored by a network."""
  estimates = {
    metric: {side: estimate(y[metric]) for side, y in scores.items()}
    for metric in METRICS
  }
  return {
    "title": x.title,
    **x.about,
    "questions": len(x.transformed),
    "scores": {model: estimates},
    "paper": find_published(x.title, family=family, width=width),
  }


def find_published(title: str, *, family: str, width: int) -> Published:
  """Returns the paper's scores on a set by model, {} for another network."""
  if (family, width) != NETWORK:
    return {}
  name = TITLES.get(title, title)
  return {f"paper, {k}": x[name] for k, x in PAPER.items() if name in x}


def make_table(results: Iterable[Mapping[str, Any]]) -> Table:
  """Makes a table of scores, as in results.json, beside the paper's."""
  rows = []
  for x in results:
    shown: dict[tuple[str, str], dict[str, str]] = {}
    for model, scores in x["scores"].items():
      for metric, sides in scores.items():
        shown[model, metric] = {
          k: f"{y['value']:.2f} ± {y['se']:.2f}" for k, y in sides.items()
        }
    for model, published in x["paper"].items():
      for metric, (before, after) in published.items():
        values = zip(SIDES, (before, after, before - after), strict=True)
        shown[model, metric] = {k: f"{y:.2f}" for k, y in values}
    for (model, metric), cells in shown.items():
      row = {"set": f"{x['title']}, n = {x['questions']:,}"}
      row |= {"model": model, "metric": metric}
      rows.append(row | {side: cells.get(side, "") for side in SIDES})
  return Table(TITLE, rows)


def describe_set(examples: EvalSet) -> str:
  """Describes in one line what a set was made from and what was refused."""
  about = examples.about
  if "source" in about:
    size = len(examples.transformed)
    return f"{examples.title}: {size:,} examples of '{about['source']}'"
  refused = [f"{cause} {count:,}" for cause, count in about["refused"].items()]
  resources = [f"{name}: {x}" for name, x in about["resources"].items()]
  return (
    f"{examples.title}: {about['changed']:,} of {about['tried']:,} examples"
    f" changed; refused: {', '.join(refused) or 'none'}; {'; '.join(resources)}"
  )
