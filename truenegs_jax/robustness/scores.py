"""Scores answers to original and transformed examples; compares two models.

Runs of several seeds are pooled: a question counts once, with its mean over the
runs. Standard errors are for other questions; that of a drop is of the paired
values.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from truenegs_jax.robustness.eval_set import ORIGINAL, TRANSFORMED, EvalSet
from truenegs_jax.stats.differences import (
  Comparison,
  PairedTest,
  Scorer,
  compare_scores,
  mcnemar,
)
from truenegs_jax.tasks import scoring
from truenegs_jax.tasks.task import CLASSES, SPANS, Task

EXACT, F1, ACCURACY = "em", "f1", "accuracy"
DROP = "drop"  # original minus transformed
LEVEL = 0.05  # of the comparisons on all sets together
RESAMPLES = 2_000  # for standard errors of metrics that are not means

Answers = Mapping[str, Sequence[Sequence[Any]]]  # [S, N] by side
Scores = dict[str, dict[str, "Score"]]  # by metric, and by side or DROP
Estimates = dict[str, dict[str, "Estimate"]]


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A score in percent: mean over runs, its standard error, and each run's."""

  value: float
  se: float
  by_run: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Score:
  """A score of S runs on N questions, as a function of the drawn questions.

  Attributes:
    size: N.
    draw: indices of questions, int [R, N] -> scores of the runs, [S, R].
    question_SxN: the score of each question in percent, if the score is their
      mean; else None.
  """

  size: int
  draw: Scorer
  question_SxN: np.ndarray | None = None

  def __sub__(self, other: "Score") -> "Score":
    """Returns the difference of two scores of the same runs and questions."""
    if self.question_SxN is not None and other.question_SxN is not None:
      return _mean(self.question_SxN - other.question_SxN)
    return Score(self.size, lambda rows: self.draw(rows) - other.draw(rows))

  def by_run(self) -> np.ndarray:
    """Returns the score of each run, [S]."""
    return self.draw(np.arange(self.size)[None])[:, 0]

  def estimate(self) -> Estimate:
    """Returns the score with its standard error for other questions."""
    if self.question_SxN is not None:
      se = stats.sem(self.question_SxN.mean(0)) if self.size > 1 else 0.0
    else:
      rng = np.random.default_rng(0)
      drawn_RxN = rng.integers(self.size, size=(RESAMPLES, self.size))
      se = self.draw(drawn_RxN).mean(0).std(ddof=1)
    value_S = self.by_run()
    return Estimate(float(value_S.mean()), float(se), tuple(value_S.tolist()))


def score_set(examples: EvalSet, task: Task, answers: Answers) -> Scores:
  """Scores the answers of S runs; a set without originals has no drop."""
  if task.kind == SPANS:
    questions = {
      side: _question_scores(rows, answers[side])
      for side, rows in examples.sides.items()
    }
    if examples.variants:
      questions[TRANSFORMED] = _worst_variants(examples.variants, **questions)
    by_side = {
      side: {metric: _mean(x) for metric, x in scores.items()}
      for side, scores in questions.items()
    }
  else:
    by_side = {
      side: _text_scores(rows, task, examples.merged, answers[side])
      for side, rows in examples.sides.items()
    }
  scores: Scores = {}
  for metric, after in by_side[TRANSFORMED].items():
    scores[metric] = {TRANSFORMED: after}
    if before := by_side[ORIGINAL].get(metric):
      sides = {ORIGINAL: before, TRANSFORMED: after, DROP: before - after}
      scores[metric] = sides
  return scores


def estimate(scores: Scores) -> Estimates:
  """Returns the scores with their standard errors."""
  return {
    metric: {side: x.estimate() for side, x in sides.items()}
    for metric, sides in scores.items()
  }


def _mean(question_SxN: np.ndarray) -> Score:
  draw = scoring.make_scorer("", None, list(question_SxN))
  return Score(question_SxN.shape[1], draw, question_SxN)


def _question_scores(
  questions: Sequence[Any], answers_SxN: Sequence[Sequence[str]]
) -> dict[str, np.ndarray]:
  """Returns SQuAD's scores of each question, f64 [S, N], by metric."""
  if not questions:
    return {}
  golds = {
    str(i): [text for text, _ in question.answers]
    for i, question in enumerate(questions)
  }
  by_run = [
    scoring.question_scores(dict(zip(golds, answers, strict=True)), golds)
    for answers in answers_SxN
  ]
  return {m: np.stack([x[m] for x in by_run]) for m in (EXACT, F1)}


def _worst_variants(
  variants: Sequence[Sequence[int]],
  original: Mapping[str, np.ndarray],
  transformed: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns the scores of the variant with the lowest F1, f64 [S, N].

  Exact match is that of the same variant, the first of equal ones. A question
  without variants has its original's scores (Jia & Liang 2017, section 4.1).
  """
  size = transformed[F1].shape[1]
  both = {m: np.hstack([x, original[m]]) for m, x in transformed.items()}
  columns = []
  for i, members in enumerate(variants):
    column_V = np.array(members or [size + i])
    columns.append(column_V[both[F1][:, column_V].argmin(1)])
  worst_SxN = np.stack(columns, 1)
  return {m: np.take_along_axis(x, worst_SxN, 1) for m, x in both.items()}


def _text_scores(
  examples: Sequence[Any],
  task: Task,
  merged: Mapping[str, str],
  answers_SxN: Sequence[Sequence[Any]],
) -> dict[str, Score]:
  """Returns scores by metric; those of classes have an accuracy."""
  if not examples:
    return {}
  metrics, ids = task.metrics, dict[Any, int]()
  if task.kind == CLASSES:
    metrics = (ACCURACY,) if merged else (*metrics, ACCURACY)
    labels = dict.fromkeys(merged.get(x, x) for x in task.labels)
    numbers = {label: i for i, label in enumerate(labels)}
    ids = {x: numbers[merged.get(x, x)] for x in (*task.labels, *labels)}
  gold_N = np.array([ids.get(x.label, x.label) for x in examples])
  answer_SxN = np.array([[ids.get(x, x) for x in run] for run in answers_SxN])
  return {
    metric: _mean(100.0 * (answer_SxN == gold_N))
    if metric == ACCURACY
    else Score(
      len(gold_N), scoring.make_scorer(metric, gold_N, list(answer_SxN))
    )
    for metric in dict.fromkeys(metrics)
  }


@dataclasses.dataclass(frozen=True)
class SetComparison:
  """Two models on one set.

  Attributes:
    compared: DROP, or TRANSFORMED if the set has no originals.
    bootstrap: differences of these, one for each metric.
    mcnemar: tests of the answers to each side; none for regression.
  """

  compared: str
  bootstrap: tuple[Comparison, ...]
  mcnemar: Mapping[str, PairedTest]


def compare_sets(ours: Scores, theirs: Scores) -> SetComparison:
  """Compares two models by a paired bootstrap and by McNemar's test."""
  compared = DROP if DROP in next(iter(ours.values())) else TRANSFORMED
  differences = tuple(
    _compare(metric, ours[metric][compared], theirs[metric][compared])
    for metric in ours
  )
  tests = {}
  for metric in {EXACT, ACCURACY} & ours.keys():
    for side, score in ours[metric].items():
      a_SxN, b_SxN = score.question_SxN, theirs[metric][side].question_SxN
      if side != DROP and a_SxN is not None and b_SxN is not None:
        tests[side] = mcnemar(a_SxN, b_SxN)
  return SetComparison(compared, differences, tests)


def _compare(metric: str, ours: Score, theirs: Score) -> Comparison:
  def draw(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([ours.draw(rows), theirs.draw(rows)])

  runs = (len(ours.by_run()), len(theirs.by_run()))
  return compare_scores(metric, draw, ours.size, runs=runs)


def conclude(compared: Sequence[tuple[str, SetComparison]]) -> str:
  """Returns a sentence on the first metric of all sets, given with titles.

  A difference counts if its p-value, over runs if there are several, is below
  LEVEL divided by the number of sets (Bonferroni).
  """
  seen, unseen = list[str](), list[str]()
  scope = "questions and fine-tuning seeds"
  for title, x in compared:
    c = x.bootstrap[0]
    low, high, p = c.low_runs, c.high_runs, c.p_runs
    if p is None:
      low, high, p = c.low, c.high, c.p
      scope = "questions only, as a model has one run"
    interval = f"({low:+.2f} to {high:+.2f}, p = {p:.2g}) on {title}"
    if p < LEVEL / len(compared):
      verb = "loses" if x.compared == DROP else "scores"
      more = "more" if c.difference > 0 else "less"
      amount = f"{abs(c.difference):.2f} points of {c.metric} {more}"
      seen.append(f"{verb} {amount} {interval}")
    else:
      unseen.append(f"{c.difference:+.2f} {interval}")
  parts = []
  if seen:
    parts.append(f"This model {', and '.join(seen)} than the other")
  if unseen:
    difference = "no further difference" if seen else "no difference"
    parts.append(f"{difference} can be seen: {', '.join(unseen)}")
  text = "; ".join(parts)
  return (
    f"{text[:1].upper()}{text[1:]}. Intervals are of 95 % over {scope}, not"
    " over pre-trainings."
  )
