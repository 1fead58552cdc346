"""Computes the metrics of GLUE and SQuAD, in percent.

score_answers(["accuracy"], golds=["no", "yes"], answers=["no", "no"])
score_runs(["em", "f1"], golds, [answers_of_seed_0, answers_of_seed_1])

A gold is the name of a class, a number, or the texts that answer a question.
"""

import collections
import dataclasses
import functools
import re
import string
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from truenegs_jax.runtime.errors import DataError
from truenegs_jax.stats.intervals import Scorer, jackknife_values

PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only
ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def accuracy(gold_N: ArrayLike, predicted_N: ArrayLike) -> float:
  """Returns the share of correct classes, in percent."""
  gold_N, predicted_N = as_pairs(gold_N, predicted_N)
  return 100 * float(np.mean(gold_N == predicted_N))


def matthews(gold_N: ArrayLike, predicted_N: ArrayLike) -> float:
  """Returns Matthews' correlation of class ids, -100 to 100 %."""
  return float(matthews_from_counts(_confusion(gold_N, predicted_N)))


def f1(gold_N: ArrayLike, predicted_N: ArrayLike) -> float:
  """Returns the F1 of class 1, as GLUE defines it for MRPC and QQP, in percent.

  With more than two classes: macro F1, the mean over the classes that occur.
  """
  return float(f1_from_counts(_confusion(gold_N, predicted_N)))


def pearson(gold_N: ArrayLike, predicted_N: ArrayLike) -> float:
  """Returns Pearson's correlation of scores, in percent.

  0 if either is constant, or if a prediction is not finite.
  """
  return float(correlation(*as_pairs(gold_N, predicted_N)))


def spearman(gold_N: ArrayLike, predicted_N: ArrayLike) -> float:
  """Returns `pearson` of the ranks; equal scores share their average rank."""
  gold_N, predicted_N = as_pairs(gold_N, predicted_N)
  return float(correlation(ranks(gold_N), ranks(predicted_N)))


METRICS: dict[str, Callable[[ArrayLike, ArrayLike], float]] = {
  "matthews": matthews,
  "spearman": spearman,
  "pearson": pearson,
  "accuracy": accuracy,
  "f1": f1,
}


def matthews_from_counts(counts_xCxC: np.ndarray) -> np.ndarray:
  """Returns `matthews` of counts, f64 [..., C (gold), C (predicted)].

  For two classes (TP TN - FP FN) / sqrt((TP+FP)(TP+FN)(TN+FP)(TN+FN)); for more
  its extension by Gorodkin (2004, Computational Biology and Chemistry 28). 0
  if the denominator is 0: gold or predictions are all of one class.
  """
  gold_xC, predicted_xC = counts_xCxC.sum(-1), counts_xCxC.sum(-2)
  all_x = gold_xC.sum(-1)
  correct_x = np.trace(counts_xCxC, axis1=-2, axis2=-1)
  covariance_x = correct_x * all_x - np.sum(gold_xC * predicted_xC, -1)
  spread_x = all_x**2 - np.sum(gold_xC**2, -1)
  spread_x = spread_x * (all_x**2 - np.sum(predicted_xC**2, -1))
  return 100 * covariance_x / np.sqrt(np.maximum(spread_x, 1))  # whole numbers


def f1_from_counts(counts_xCxC: np.ndarray) -> np.ndarray:
  """Returns `f1` of counts, f64 [..., C (gold), C (predicted)].

  A class without a correct prediction has an F1 of 0.
  """
  both_xC = counts_xCxC.sum(-1) + counts_xCxC.sum(-2)
  hits_xC = np.diagonal(counts_xCxC, axis1=-2, axis2=-1)
  f1_xC = 200 * hits_xC / np.maximum(both_xC, 1)
  if counts_xCxC.shape[-1] == 2:
    return f1_xC[..., 1]
  return f1_xC.sum(-1) / np.count_nonzero(both_xC, -1)


def correlation(x_xN: np.ndarray, y_xN: np.ndarray) -> np.ndarray:
  """Returns Pearson's correlation over the last axis, in percent, f64 [...].

  0 where x or y is constant, or has only one element.
  """
  if x_xN.shape[-1] < 2:
    return np.zeros(x_xN.shape[:-1])
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", stats.ConstantInputWarning)
    correlation_x = stats.pearsonr(x_xN, y_xN, axis=-1).statistic
  return 100 * np.round(np.nan_to_num(correlation_x), 10)


ranks = functools.partial(stats.rankdata, axis=-1)


def normalize_answer(text: str) -> str:
  """Normalizes an answer as SQuAD v1.1 does: "The  Cat's." becomes "cats".

  Lower-cases it, then removes ASCII punctuation, then the words a, an, the,
  then repeated spaces (evaluation script of Rajpurkar et al. 2016).
  """
  text = text.lower().translate(PUNCTUATION)
  return " ".join(ARTICLES.sub(" ", text).split())


def exact_match(prediction: str, gold: str) -> float:
  """Returns 100 if the normalized answers are equal, else 0."""
  return 100.0 * (normalize_answer(prediction) == normalize_answer(gold))


def token_f1(prediction: str, gold: str) -> float:
  """Returns the F1 of the normalized answers as bags of words, in percent.

  0 if no word is shared, also if both are empty (100 in v2.0).
  """
  predicted = collections.Counter(normalize_answer(prediction).split())
  true = collections.Counter(normalize_answer(gold).split())
  return 200.0 * (predicted & true).total() / max((predicted + true).total(), 1)


def question_scores(
  golds: Sequence[Sequence[str]], answers: Sequence[str]
) -> dict[str, np.ndarray]:
  """Returns SQuAD's scores of each question, the best over its gold answers.

  Returns:
    "em" and "f1": f64 [N], percent.
  """
  if not all(golds):
    raise DataError(
      "A question has no gold answer. Choose a split with answers, such as"
      " train or dev of SQuAD v1.1."
    )
  pairs = [*zip(golds, answers, strict=True)]
  return {
    name: np.array(
      [max(score(x, text) for text in texts) for texts, x in pairs]
    )
    for name, score in (("em", exact_match), ("f1", token_f1))
  }


def score_answers(
  metrics: Sequence[str],
  golds: Sequence[Any],
  answers: Sequence[Any],
  labels: Sequence[str] = (),
) -> dict[str, float]:
  """Returns the value of each metric.

  Args:
    labels: names of the classes in the order of their ids; F1 is that of the
      second of two.
  """
  if _are_questions(golds):
    return {
      k: float(x.mean()) for k, x in question_scores(golds, answers).items()
    }
  gold_N, answer_N = _to_numbers((golds, answers), labels)
  return {metric: METRICS[metric](gold_N, answer_N) for metric in metrics}


@dataclasses.dataclass(frozen=True)
class Scores:
  """Scores of S runs on the same N examples by one metric.

  Attributes:
    size: N.
    draw: indices of examples, int [R, N] -> scores of the runs, [S, R].
    example_SxN: the score of each example in percent, if the metric is their
      mean; else None.
  """

  size: int
  draw: Scorer
  example_SxN: np.ndarray | None = None

  def __sub__(self, other: "Scores") -> "Scores":
    """Returns the differences of runs on two variants of the examples."""
    if self.example_SxN is not None and other.example_SxN is not None:
      return mean_scores(self.example_SxN - other.example_SxN)
    return Scores(self.size, lambda rows: self.draw(rows) - other.draw(rows))

  def by_run(self) -> np.ndarray:
    """Returns the score of each run, [S]."""
    return self.draw(np.arange(self.size)[None])[:, 0]


def mean_scores(example_SxN: np.ndarray) -> Scores:
  """Returns scores that are the means of examples' scores."""

  def draw(drawn_RxN: np.ndarray) -> np.ndarray:
    return _sums(example_SxN, _times(drawn_RxN)) / drawn_RxN.shape[1]

  return Scores(example_SxN.shape[1], draw, example_SxN)


def score_runs(
  metrics: Sequence[str],
  golds: Sequence[Any],
  answers_SxN: Sequence[Sequence[Any]],
  labels: Sequence[str] = (),
) -> dict[str, Scores]:
  """Scores the answers of several runs, so that examples can be resampled.

  `labels` is that of `score_answers`.
  """
  if _are_questions(golds):
    by_run = [question_scores(golds, answers) for answers in answers_SxN]
    return {m: mean_scores(np.stack([x[m] for x in by_run])) for m in metrics}
  gold_N, *runs = _to_numbers((golds, *answers_SxN), labels)
  run_SxN = np.stack([as_pairs(gold_N, run_N)[1] for run_N in runs])
  scores = {}
  for metric in metrics:
    if metric == "accuracy":
      scores[metric] = mean_scores(100.0 * (run_SxN == gold_N))
    else:
      scores[metric] = Scores(len(gold_N), _make_draw(metric, gold_N, run_SxN))
  return scores


def example_scores(
  metric: str,
  golds: Sequence[Any],
  answers: Sequence[Any],
  labels: Sequence[str] = (),
) -> np.ndarray:
  """Returns values of the examples whose mean is the run's score, f64 [N].

  They are the scores of questions, 0 or 100 for accuracy, and for other metrics
  the jackknife's, whose variance is that of the metric.
  """
  example_SxN = score_runs([metric], golds, [answers], labels)[
    metric
  ].example_SxN
  if example_SxN is not None:
    return example_SxN[0]
  score, pair = (
    METRICS[metric],
    as_pairs(*_to_numbers((golds, answers), labels)),
  )
  left_out_N = [
    score(*(np.delete(x_N, i) for x_N in pair)) for i in range(len(golds))
  ]
  return jackknife_values(score(*pair), left_out_N)


def _are_questions(golds: Sequence[Any]) -> bool:
  if not golds:
    raise DataError("There are no examples to score. Choose another file.")
  return isinstance(golds[0], list | tuple)


def _to_numbers(
  columns: Sequence[Sequence[Any]], labels: Sequence[str]
) -> list[np.ndarray]:
  """Returns columns with ids of classes; those not in `labels` are appended."""
  names = [x for column in columns for x in column if isinstance(x, str)]
  ids = {label: i for i, label in enumerate(dict.fromkeys((*labels, *names)))}
  return [np.array([ids.get(x, x) for x in column]) for column in columns]


def as_pairs(
  gold_N: ArrayLike, predicted_N: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
  """Returns both as arrays; zeros for predictions that are not all finite."""
  gold_N, predicted_N = np.asarray(gold_N), np.asarray(predicted_N)
  if not np.isfinite(predicted_N).all():
    predicted_N = np.zeros_like(predicted_N)
  return gold_N, predicted_N


def _confusion(gold_N: ArrayLike, predicted_N: ArrayLike) -> np.ndarray:
  """Counts class pairs, f64 [C (gold), C (predicted)]; C is at least 2."""
  gold_N, predicted_N = as_pairs(gold_N, predicted_N)
  classes = max(2, 1 + int(max(gold_N.max(), predicted_N.max())))
  counts = np.bincount(gold_N * classes + predicted_N, minlength=classes**2)
  return counts.reshape(classes, classes).astype(float)


def _make_draw(metric: str, gold_N: np.ndarray, run_SxN: np.ndarray) -> Scorer:
  if metric in ("pearson", "spearman"):
    order = ranks if metric == "spearman" else np.asarray

    def score(drawn_RxN: np.ndarray) -> np.ndarray:
      gold_RxN = order(gold_N[drawn_RxN])
      return np.stack(
        [correlation(gold_RxN, order(x[drawn_RxN])) for x in run_SxN]
      )

    return score
  from_counts = matthews_from_counts
  if metric == "f1":
    from_counts = f1_from_counts
  classes = max(2, 1 + int(max(gold_N.max(), run_SxN.max())))
  cell_SxN = gold_N * classes + run_SxN  # of the confusion matrix
  is_cell_SxMxN = cell_SxN[:, None] == np.arange(classes**2)[:, None]

  def score_counts(drawn_RxN: np.ndarray) -> np.ndarray:
    times_RxN = _times(drawn_RxN)
    counts_SxMxR = (_sums(x.astype(float), times_RxN) for x in is_cell_SxMxN)
    return np.stack(
      [from_counts(x.T.reshape(-1, classes, classes)) for x in counts_SxMxR]
    )

  return score_counts


def _times(drawn_RxN: np.ndarray) -> np.ndarray:
  """Counts how often each example was drawn, f64 [R, N]."""
  num_resamples, size = drawn_RxN.shape
  cells = drawn_RxN + size * np.arange(num_resamples)[:, None]
  counts = np.bincount(cells.ravel(), minlength=num_resamples * size)
  return counts.reshape(num_resamples, size).astype(float)


def _sums(value_MxN: np.ndarray, times_RxN: np.ndarray) -> np.ndarray:
  """Returns weighted sums, f64 [M, R]; equal rows give equal bits."""
  # Not `@`, because BLAS's threads are slow when the cores are busy.
  return np.stack([np.einsum("rn,n->r", times_RxN, x_N) for x_N in value_MxN])
