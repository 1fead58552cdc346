"""Scores answers to original and transformed examples.

Runs of several seeds are pooled: a question counts once, with its mean over the
runs. Standard errors are for other questions; that of a drop is of the paired
values.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from truenegs_jax.finetune import bootstrap
from truenegs_jax.robustness.eval_set import ORIGINAL, TRANSFORMED, EvalSet
from truenegs_jax.tasks import scoring
from truenegs_jax.tasks.task import CLASSES, SPANS, Task

EXACT, F1, ACCURACY = "em", "f1", "accuracy"
DROP = "drop"  # original minus transformed
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
  draw: bootstrap.Scorer
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
  draw = bootstrap.make_scorer("", None, list(question_SxN))
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
      len(gold_N), bootstrap.make_scorer(metric, gold_N, list(answer_SxN))
    )
    for metric in dict.fromkeys(metrics)
  }
