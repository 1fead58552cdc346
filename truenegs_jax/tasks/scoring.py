"""GLUE's metrics and SQuAD's, in percent."""

import collections
import functools
import re
import string
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from truenegs_jax.runtime.errors import DataError, InputError

PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII's alone
ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def accuracy(gold_N: ArrayLike, predicted_N: ArrayLike) -> float:
  """The share of classes that are right, in percent.

  Raises:
    InputError: not one prediction for each example, or no example; so all of
      METRICS.
  """
  gold_N, predicted_N = as_pairs(gold_N, predicted_N)
  return 100 * float(np.mean(gold_N == predicted_N))


def matthews(gold_N: ArrayLike, predicted_N: ArrayLike) -> float:
  """Matthews' correlation of classes (int ids), in percent, -100 to 100."""
  return float(matthews_from_counts(_confusion(gold_N, predicted_N)))


def f1(gold_N: ArrayLike, predicted_N: ArrayLike) -> float:
  """F1 of class 1, as GLUE has it for MRPC and QQP, in percent.

  Where ids above 1 occur: macro F1, the plain mean over the classes that occur.
  """
  return float(f1_from_counts(_confusion(gold_N, predicted_N)))


def pearson(gold_N: ArrayLike, predicted_N: ArrayLike) -> float:
  """Pearson's correlation of scores, in percent.

  0 where either is constant, or a prediction is not finite.
  """
  return float(correlation(*as_pairs(gold_N, predicted_N)))


def spearman(gold_N: ArrayLike, predicted_N: ArrayLike) -> float:
  """`pearson` of the ranks, equal scores sharing their average rank."""
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
  """`matthews` of counts, f64 [..., C (gold), C (predicted)], in percent.

  For two classes (TP TN - FP FN) / sqrt((TP+FP)(TP+FN)(TN+FP)(TN+FN)); for more
  its extension by Gorodkin (2004, Computational Biology and Chemistry 28). 0
  where the denominator is 0: gold or predictions are all of one class.
  """
  gold_xC, predicted_xC = counts_xCxC.sum(-1), counts_xCxC.sum(-2)
  all_x = gold_xC.sum(-1)
  right_x = np.trace(counts_xCxC, axis1=-2, axis2=-1)
  together_x = right_x * all_x - np.sum(gold_xC * predicted_xC, -1)
  spread_x = all_x**2 - np.sum(gold_xC**2, -1)
  spread_x = spread_x * (all_x**2 - np.sum(predicted_xC**2, -1))
  return 100 * together_x / np.sqrt(np.maximum(spread_x, 1))  # whole numbers


def f1_from_counts(counts_xCxC: np.ndarray) -> np.ndarray:
  """`f1` of counts, f64 [..., C (gold), C (predicted)], in percent.

  0 for a class that was never hit.
  """
  both_xC = counts_xCxC.sum(-1) + counts_xCxC.sum(-2)
  hits_xC = np.diagonal(counts_xCxC, axis1=-2, axis2=-1)
  f1_xC = 200 * hits_xC / np.maximum(both_xC, 1)
  if counts_xCxC.shape[-1] == 2:
    return f1_xC[..., 1]
  return f1_xC.sum(-1) / np.count_nonzero(both_xC, -1)


def correlation(x_xN: np.ndarray, y_xN: np.ndarray) -> np.ndarray:
  """Pearson's correlation over the last axis, in percent.

  Returns:
    f64 [...]; 0 where x or y is constant, as one example alone is.
  """
  if x_xN.shape[-1] < 2:
    return np.zeros(x_xN.shape[:-1])
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", stats.ConstantInputWarning)
    correlation_x = stats.pearsonr(x_xN, y_xN, axis=-1).statistic
  return 100 * np.round(np.nan_to_num(correlation_x), 10)


ranks = functools.partial(stats.rankdata, axis=-1)


def normalize_answer(text: str) -> str:
  """An answer as SQuAD v1.1 compares it: "The  Cat's." becomes "cats".

  Lower case, then no ASCII punctuation, then no words a, an, the, then single
  spaces (Rajpurkar et al. 2016, their evaluation script).
  """
  return " ".join(
    ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()
  )


def exact_match(prediction: str, gold: str) -> float:
  """100 where the two are the same normalized, else 0."""
  return 100.0 * (normalize_answer(prediction) == normalize_answer(gold))


def token_f1(prediction: str, gold: str) -> float:
  """F1 of the normalized answers as bags of words, in percent.

  0 where no word is shared, also where both are empty (v2.0 says 100).
  """
  ours = collections.Counter(normalize_answer(prediction).split())
  true = collections.Counter(normalize_answer(gold).split())
  return 200.0 * (ours & true).total() / max((ours + true).total(), 1)


def question_scores(
  predictions: Mapping[str, str], golds: Mapping[str, Sequence[str]]
) -> dict[str, np.ndarray]:
  """SQuAD's two scores of each question: the best over its gold answers.

  Args:
    predictions: text by question; one without a prediction scores 0, one that
      `golds` lacks is passed over.
    golds: right answers by question.

  Returns:
    "em" and "f1": f64 [N], percent, in the order of `golds`.

  Raises:
    DataError: no question, or one without a gold answer.
  """
  if not golds or not all(golds.values()):
    bare = next((key for key, texts in golds.items() if not texts), None)
    raise DataError(
      f"question {bare!r} has no gold answer to score by; score a split that"
      " has answers (SQuAD v1.1: train or dev)."
      if golds
      else "no questions to score; name a file or a split that has some."
    )
  return {
    name: np.array(
      [
        max(score(predictions[key], gold) for gold in texts)
        if key in predictions
        else 0.0
        for key, texts in golds.items()
      ]
    )
    for name, score in (("em", exact_match), ("f1", token_f1))
  }


def squad_scores(
  predictions: Mapping[str, str], golds: Mapping[str, Sequence[str]]
) -> dict[str, float]:
  """SQuAD v1.1's exact match ("em") and "f1": means over all questions.

  Arguments and errors as `question_scores`.
  """
  scores = question_scores(predictions, golds)
  return {name: float(score_N.mean()) for name, score_N in scores.items()}


def as_pairs(
  gold_N: ArrayLike, predicted_N: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
  """Both as arrays; predictions that are not all finite as zeros.

  Raises:
    InputError: not one prediction for each example, or no example.
  """
  gold_N, predicted_N = np.asarray(gold_N), np.asarray(predicted_N)
  if gold_N.shape != predicted_N.shape or gold_N.ndim != 1 or not len(gold_N):
    raise InputError(
      f"predictions of shape {predicted_N.shape} for gold values of shape"
      f" {gold_N.shape}: a score wants one for each, and one at least; predict"
      " every row of the split."
    )
  if not np.isfinite(predicted_N).all():
    predicted_N = np.zeros_like(predicted_N)
  return gold_N, predicted_N


def _confusion(gold_N: ArrayLike, predicted_N: ArrayLike) -> np.ndarray:
  """How often each class was taken for each, f64 [C, C]; C is 2 or more."""
  gold_N, predicted_N = as_pairs(gold_N, predicted_N)
  classes = max(2, 1 + int(max(gold_N.max(), predicted_N.max())))
  counts = np.bincount(gold_N * classes + predicted_N, minlength=classes**2)
  return counts.reshape(classes, classes).astype(float)
