"""Scores answers to original and transformed examples, and compares models.

Runs of several seeds are pooled: a question counts once, with its mean over the
runs. Standard errors are for other questions; those of a drop and of a
difference are of the paired values.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from truenegs_jax.finetune import bootstrap
from truenegs_jax.robustness.eval_set import EvalSet
from truenegs_jax.tasks import scoring
from truenegs_jax.tasks.task import SCORE, SPANS, Task

EXACT, F1, ACCURACY = "em", "f1", "accuracy"
RESAMPLES = 2_000  # for standard errors of metrics that are not means


class Estimate(NamedTuple):
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
  question_SxN: np.ndarray | None

  def minus(self, other: "Score") -> "Score":
    """Returns the difference of two scores of the same runs and questions."""
    difference = None
    if self.question_SxN is not None and other.question_SxN is not None:
      difference = self.question_SxN - other.question_SxN
    return Score(
      self.size, lambda rows: self.draw(rows) - other.draw(rows), difference
    )

  def estimate(self) -> Estimate:
    """Returns the score with its standard error for other questions."""
    value_S = self.draw(np.arange(self.size)[None])[:, 0]
    if self.question_SxN is not None:
      se = stats.sem(self.question_SxN.mean(0)) if self.size > 1 else 0.0
    else:
      rng = np.random.default_rng(0)
      shape = (RESAMPLES, self.size)
      se = self.draw(rng.integers(self.size, size=shape)).mean(0).std(ddof=1)
    return Estimate(float(value_S.mean()), float(se), tuple(value_S.tolist()))

  def compare(self, metric: str, other: "Score") -> bootstrap.Comparison:
    """Compares with the same score of another model by a paired bootstrap."""
    runs = [len(x.draw(np.arange(self.size)[None])) for x in (self, other)]

    def draw(rows: np.ndarray) -> np.ndarray:
      return np.concatenate([self.draw(rows), other.draw(rows)])

    return bootstrap.compare_scores(
      metric, draw, self.size, runs=(runs[0], runs[1])
    )


class SetScores(NamedTuple):
  """A model's scores on a set, by metric; `original` is empty if it has none.

  Attributes:
    correct: whether each run answers each question right, [S, N], for both
      sides; empty for regression.
  """

  original: Mapping[str, Score]
  transformed: Mapping[str, Score]
  correct: Mapping[str, np.ndarray]

  def drops(self) -> dict[str, Score]:
    """Returns original minus transformed, by metric."""
    return {m: x.minus(self.transformed[m]) for m, x in self.original.items()}


def score_set(
  examples: EvalSet,
  task: Task,
  original_SxN: Sequence[Sequence[Any]],
  transformed_SxM: Sequence[Sequence[Any]],
) -> SetScores:
  """Scores the answers of S runs to a set."""
  if task.kind == SPANS:
    original = _question_scores(examples.original, original_SxN)
    variants = _question_scores(examples.transformed, transformed_SxM)
    worst = _worst_variants(examples, original, variants)
    return SetScores(
      {m: _mean(x) for m, x in original.items()},
      {m: _mean(x) for m, x in worst.items()},
      {
        side: x[EXACT] > 0
        for side, x in (("original", original), ("transformed", worst))
        if x
      },
    )
  metrics = (ACCURACY,) if examples.merged else task.metrics
  sides: dict[str, dict[str, Score]] = {}
  correct = {}
  for side, rows, answers_SxN in (
    ("original", examples.original, original_SxN),
    ("transformed", examples.transformed, transformed_SxM),
  ):
    golds = [row.label for row in rows]
    if task.kind != SCORE:
      labels = dict.fromkeys([*task.labels, *examples.merged.values()])
      ids = {label: i for i, label in enumerate(labels)}
      merged = {**{x: x for x in labels}, **examples.merged}
      golds = [ids[x] for x in golds]
      answers_SxN = [[ids[merged[x]] for x in run] for run in answers_SxN]
      if golds:
        correct[side] = np.array(answers_SxN) == np.array(golds)
    sides[side] = {m: _score(m, golds, answers_SxN) for m in metrics if golds}
  return SetScores(**sides, correct=correct)


def _mean(question_SxN: np.ndarray) -> Score:
  draw = bootstrap.make_scorer("", None, list(question_SxN))
  return Score(question_SxN.shape[1], draw, question_SxN)


def _score(
  metric: str, golds: Sequence[float], answers_SxN: Sequence[Sequence[float]]
) -> Score:
  gold_N, answer_SxN = np.array(golds), np.array(answers_SxN)
  if metric == ACCURACY:
    return _mean(100.0 * (answer_SxN == gold_N))
  draw = bootstrap.make_scorer(metric, gold_N, list(answer_SxN))
  return Score(len(gold_N), draw, None)


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
  return {m: np.stack([x[m] for x in by_run]) for m in by_run[0]}


def _worst_variants(
  examples: EvalSet,
  original: Mapping[str, np.ndarray],
  variants: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns the scores of the variant with the lowest F1, f64 [S, N].

  Exact match is that of the same variant, the first of equal ones. A question
  without variants has its original's scores (Jia & Liang 2017, section 4.1).
  """
  worst: dict[str, list[np.ndarray]] = {m: [] for m in variants}
  for i, members in enumerate(examples.variants):
    if not members:
      for metric, columns in worst.items():
        columns.append(original[metric][:, i])
      continue
    chosen_S = np.array(members)[variants[F1][:, list(members)].argmin(1)]
    for metric, columns in worst.items():
      columns.append(variants[metric][np.arange(len(chosen_S)), chosen_S])
  return {m: np.stack(columns, 1) for m, columns in worst.items()}


class PairedTest(NamedTuple):
  """McNemar's exact test of two models on the same questions.

  Attributes:
    ours, theirs: number of questions that only this model answers right, or in
      more of its runs than the other in its own.
    p: two-sided, of the binomial distribution with probability 1/2.
  """

  ours: int
  theirs: int
  p: float


def mcnemar(ours_SxN: np.ndarray, theirs_SxN: np.ndarray) -> PairedTest:
  """Tests whether two models answer equally many questions right.

  With several runs, a question counts once, for the model with the greater
  share of right runs: the sign test, which is McNemar's for one run each.
  """
  difference_N = ours_SxN.mean(0) - theirs_SxN.mean(0)
  ours = int(np.sum(difference_N > 1e-9))
  theirs = int(np.sum(difference_N < -1e-9))
  if not ours + theirs:
    return PairedTest(0, 0, 1.0)
  p = stats.binomtest(ours, ours + theirs).pvalue
  return PairedTest(ours, theirs, float(p))
