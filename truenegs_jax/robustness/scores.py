"""Scores a model on sets, and prints the scores beside the paper's.

Runs of several seeds are pooled: a question counts once, with its mean over the
runs. Standard errors are for other questions; that of a drop is of the paired
values.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from truenegs_jax.report.page import Table
from truenegs_jax.robustness.eval_set import ORIGINAL, TRANSFORMED, EvalSet
from truenegs_jax.tasks.scoring import Scores, mean_scores, score_runs
from truenegs_jax.tasks.task import CLASSES, Question, Task

EXACT = "em"
F1 = "f1"
ACCURACY = "accuracy"
DROP = "drop"  # original minus transformed
SIDES = (ORIGINAL, TRANSFORMED, DROP)
RESAMPLES = 2_000  # for standard errors of metrics that are not means

SWAP = "SwapSynWordNet"
ADD = "AddSentenceDiverse"
# Other names of the paper's sets: those of TextFlint's files and of our own.
TITLES = {
  **{"AddSentDiverse": ADD, "AddSentDiverse-style": ADD, "add_sentence": ADD},
  "swap_synonyms": SWAP,
}
# Table 5: scores of original and transformed questions by ELECTRA-small.
NETWORK = "discriminator of 256 units"
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
SetScores = dict[str, dict[str, Scores]]  # by metric, and by side or DROP


def estimate(scores: Scores) -> dict[str, float]:
  """Returns the mean score of the runs in percent, as `value`.

  `se` is its standard error for other questions.
  """
  if scores.example_SxN is not None:
    se = stats.sem(scores.example_SxN.mean(0)) if scores.size > 1 else 0.0
  else:
    rng = np.random.default_rng(0)
    drawn_RxN = rng.integers(scores.size, size=(RESAMPLES, scores.size))
    se = scores.draw(drawn_RxN).mean(0).std(ddof=1)
  return {"value": float(scores.by_run().mean()), "se": float(se)}


def score_model(
  answer: Callable[[Sequence[Any]], Sequence[Sequence[Any]]],
  task: Task,
  seeds: Mapping[str, int | None],
  sets: Sequence[EvalSet],
) -> tuple[dict[str, Any], dict[str, SetScores]]:
  """Answers the examples of all sets at once, and scores each set.

  `answer` returns the answers of each of `seeds` to examples. Returns what
  results.json has of each seed by the folder of its model, with the splits "SET
  SIDE" and "SET drop"; and the scores on each set by its name.
  """
  unique = {y.texts: y for x in sets for rows in x.sides.values() for y in rows}
  examples = []
  for number, example in enumerate(unique.values()):
    blank = {} if isinstance(example, Question) else {"gold": None}
    examples.append(dataclasses.replace(example, key=str(number), **blank))
  answers_S = [dict(zip(unique, x, strict=True)) for x in answer(examples)]
  answered: dict[str, Answers] = {
    f"{x.name} {side}": [[given[y.texts] for y in rows] for given in answers_S]
    for x in sets
    for side, rows in x.sides.items()
    if rows
  }
  by_set = {x.name: score_set(x, task, answered) for x in sets}
  records = {}
  for i, (folder, seed) in enumerate(seeds.items()):
    values: dict[str, dict[str, float]] = {}
    for name, by_metric in by_set.items():
      for metric, by_side in by_metric.items():
        for side, scores in by_side.items():
          split = values.setdefault(f"{name} {side}", {})
          split[metric] = float(scores.by_run()[i])
    saved = {
      f"{x.name} {side}": {
        "keys": [y.key for y in rows],
        "golds": [y.gold for y in rows],
        "answers": answered[f"{x.name} {side}"][i],
      }
      for x in sets
      for side, rows in x.sides.items()
      if rows
    }
    run = {"task": task.name, "seed": seed, "scores": values}
    records[folder] = run | {"answers": saved}
  return records, by_set


def score_set(
  examples: EvalSet, task: Task, answers: Mapping[str, Answers]
) -> SetScores:
  """Scores the answers of S runs, by the name of the set and the side.

  A set without originals has no drop.
  """
  metrics = task.metrics
  merged = examples.merged
  if merged:
    metrics = (ACCURACY,)
  elif task.kind == CLASSES:
    metrics = tuple(dict.fromkeys((*metrics, ACCURACY)))

  def merge(column: Sequence[Any]) -> Sequence[Any]:
    return [merged.get(x, x) for x in column] if merged else column

  by_side: dict[str, dict[str, Scores]] = {}
  for side, rows in examples.sides.items():
    if rows:
      golds = merge([y.gold for y in rows])
      runs = [merge(x) for x in answers[f"{examples.name} {side}"]]
      by_side[side] = score_runs(metrics, golds, runs, task.labels)
  if examples.variants:
    by_side[TRANSFORMED] = _worst_variants(examples.variants, **by_side)
  if before := by_side.get(ORIGINAL):
    by_side[DROP] = {m: before[m] - by_side[TRANSFORMED][m] for m in metrics}
  return {m: {side: x[m] for side, x in by_side.items()} for m in metrics}


def _worst_variants(
  variants: Sequence[Sequence[int]],
  original: Mapping[str, Scores],
  transformed: Mapping[str, Scores],
) -> dict[str, Scores]:
  """Returns the scores of the variant with the lowest F1.

  Exact match is that of the same variant, the first of equal ones. A question
  without variants has its original's scores (Jia & Liang 2017, section 4.1).
  """
  size = transformed[F1].size
  both: dict[str, np.ndarray] = {}
  for m, x in transformed.items():
    a_SxM = x.example_SxN
    b_SxN = original[m].example_SxN
    if a_SxM is not None and b_SxN is not None:
      both[m] = np.hstack([a_SxM, b_SxN])
  columns = [np.array(x or [size + i]) for i, x in enumerate(variants)]
  worst = [x_V[both[F1][:, x_V].argmin(1)] for x_V in columns]
  worst_SxN = np.stack(worst, 1)
  return {
    m: mean_scores(np.take_along_axis(score_SxN, worst_SxN, 1))
    for m, score_SxN in both.items()
  }


def make_result(
  x: EvalSet, model: str, scores: SetScores, network: str
) -> dict[str, Any]:
  """Makes what results.json has of a set; the model is a `network`."""
  estimates = {
    metric: {side: estimate(y) for side, y in sides.items()}
    for metric, sides in scores.items()
  }
  return {
    "title": x.title,
    **x.about,
    "questions": x.size,
    "variants": x.variants,
    "scores": {model: estimates},
    "paper": find_published(x.title, scores, network),
  }


def find_published(
  title: str, metrics: Collection[str], network: str = NETWORK
) -> Published:
  """Returns the paper's scores on a set by model, {} for another network."""
  if EXACT not in metrics or network != NETWORK:
    return {}
  name = TITLES.get(title, title)
  return {f"paper, {k}": x[name] for k, x in PAPER.items() if name in x}


def make_table(results: Iterable[Mapping[str, Any]], task: Task) -> Table:
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
  return Table(f"{task.title}, % ± standard error over questions", rows)


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
