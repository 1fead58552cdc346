"""Computes the metrics of GLUE, SQuAD and tagged words, in percent.

score_answers(["accuracy"], golds=["no", "yes"], answers=["no", "no"])
score_runs(["em", "f1"], golds, [answers_of_seed_0, answers_of_seed_1])

A gold is the name of a class, a number, the texts that answer a question, or
the tags of a sentence.
"""

import collections
import dataclasses
import functools
import re
import string
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from truenegs_jax.stats.intervals import Scorer, jackknife_values
from truenegs_jax.tasks import entities

PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only
ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def _score(
  metric: str,
  num_labels: int,
  gold_N: np.ndarray,
  run_SxN: np.ndarray,
  drawn_RxN: np.ndarray,
) -> np.ndarray:
  """Scores runs' class ids or numbers in percent by resample, f64 [S, R]."""
  if metric in ("matthews", "f1"):
    # Golds without labels are ids.
    classes = max(2, num_labels, 1 + int(max(gold_N.max(), run_SxN.max())))
    id_Cx1 = np.arange(classes)[:, None]
    runs = len(run_SxN)
    is_gold_CxN = gold_N == id_Cx1
    is_run_SxCxN = run_SxN[:, None] == id_Cx1
    # Of gold classes, and for each run of predicted ones and of hits.
    counted = [is_gold_CxN[None], is_run_SxCxN, is_run_SxCxN & is_gold_CxN]
    rows_KxN = np.concatenate(counted).reshape(-1, len(gold_N))
    counts_KxR = _sum_drawn(rows_KxN, drawn_RxN)
    counts = counts_KxR.reshape(1 + 2 * runs, classes, -1)
    gold_RxC, *by_run = counts.swapaxes(1, 2)
    from_counts = _matthews if metric == "matthews" else _f1
    pairs = zip(by_run[:runs], by_run[runs:], strict=True)
    return np.stack([from_counts(gold_RxC, *pair) for pair in pairs])
  order = np.asarray
  if metric == "spearman":  # equal scores share their average rank
    order = functools.partial(stats.rankdata, axis=-1)
  gold_RxN = order(gold_N[drawn_RxN])
  answers = (order(answer_N[drawn_RxN]) for answer_N in run_SxN)
  return np.stack([_correlation(gold_RxN, x_RxN) for x_RxN in answers])


def _matthews(
  gold_RxC: np.ndarray, predicted_RxC: np.ndarray, hits_RxC: np.ndarray
) -> np.ndarray:
  """Returns Matthews' correlation of the counts of classes.

  For two classes (TP TN - FP FN) / sqrt((TP+FP)(TP+FN)(TN+FP)(TN+FN)); for more
  its extension by Gorodkin (2004, Computational Biology and Chemistry 28). 0
  if the denominator is 0: gold or predictions are all of one class.
  """
  all_R = gold_RxC.sum(-1)
  correct_R = hits_RxC.sum(-1)
  covariance_R = correct_R * all_R - np.sum(gold_RxC * predicted_RxC, -1)
  spread_R = all_R**2 - np.sum(gold_RxC**2, -1)
  spread_R = spread_R * (all_R**2 - np.sum(predicted_RxC**2, -1))
  return 100 * covariance_R / np.sqrt(np.maximum(spread_R, 1))  # whole numbers


def _f1(
  gold_RxC: np.ndarray, predicted_RxC: np.ndarray, hits_RxC: np.ndarray
) -> np.ndarray:
  """Returns the F1 of class 1, as GLUE defines it for MRPC and QQP.

  With more than two classes: macro F1, the mean over the classes that occur.
  """
  both_RxC = gold_RxC + predicted_RxC
  f1_RxC = 200 * hits_RxC / np.maximum(both_RxC, 1)
  if f1_RxC.shape[-1] == 2:
    return f1_RxC[..., 1]
  return f1_RxC.sum(-1) / np.count_nonzero(both_RxC, -1)


def _correlation(x_RxN: np.ndarray, y_RxN: np.ndarray) -> np.ndarray:
  """Returns Pearson's correlation; 0 where x or y is constant."""
  if x_RxN.shape[-1] < 2:
    return np.zeros(len(x_RxN))
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", stats.ConstantInputWarning)
    correlation_R = stats.pearsonr(x_RxN, y_RxN, axis=-1).statistic
  return 100 * np.round(np.nan_to_num(correlation_R), 10)


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
  """Returns "em" and "f1" of questions, f64 [N], percent, best over golds."""
  pairs = [*zip(golds, answers, strict=True)]
  return {
    name: np.array([max(score(x, y) for y in texts) for texts, x in pairs])
    for name, score in (("em", exact_match), ("f1", token_f1))
  }


def score_answers(
  metrics: Sequence[str],
  golds: Sequence[Any],
  answers: Sequence[Any],
  labels: Sequence[str] = (),
) -> dict[str, float]:
  """Returns the value of each metric; F1 is that of the second of two labels.

  `labels` are in the order of their ids.
  """
  by_metric = score_runs(metrics, golds, [answers], labels)
  return {name: float(x.by_run()[0]) for name, x in by_metric.items()}


@dataclasses.dataclass(frozen=True)
class Scores:
  """Scores of S runs on the same N examples by one metric."""

  size: int  # N
  draw: Scorer
  # The score of each example in percent, if the metric is their mean.
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
  size = example_SxN.shape[1]

  def draw(drawn_RxN: np.ndarray) -> np.ndarray:
    return _sum_drawn(example_SxN, drawn_RxN) / size

  return Scores(size, draw, example_SxN)


def score_runs(
  metrics: Sequence[str],
  golds: Sequence[Any],
  answers_SxN: Sequence[Sequence[Any]],
  labels: Sequence[str] = (),
) -> dict[str, Scores]:
  """Scores several runs like `score_answers`; examples can be resampled."""
  if isinstance(answers_SxN[0][0], list | tuple):  # tags
    return {x: _entity_scores(x, golds, answers_SxN) for x in metrics}
  if isinstance(golds[0], list | tuple):  # questions
    by_run = [question_scores(golds, answers) for answers in answers_SxN]
    return {m: mean_scores(np.stack([x[m] for x in by_run])) for m in metrics}
  gold_N, *runs = _to_numbers([golds, *answers_SxN], labels)
  run_SxN = np.stack(runs)
  scores = {}
  for metric in metrics:
    if metric == "accuracy":
      scores[metric] = mean_scores(100.0 * (run_SxN == gold_N))
    else:
      draw = functools.partial(_score, metric, len({*labels}), gold_N, run_SxN)
      scores[metric] = Scores(len(gold_N), draw)
  return scores


def _entity_scores(
  metric: str, golds: Sequence[Any], answers_SxN: Sequence[Sequence[Any]]
) -> Scores:
  """Scores the entities of tags over all sentences, as seqeval does."""
  name = metric.removeprefix("strict_")
  counts = [
    entities.count_entities(golds, x, strict=name != metric)
    for x in answers_SxN
  ]
  rows_KxN = np.concatenate(counts)

  def draw(drawn_RxN: np.ndarray) -> np.ndarray:
    sums = _sum_drawn(rows_KxN, drawn_RxN).reshape(len(counts), 3, -1)
    gold_SxR, predicted_SxR, hits_SxR = sums.swapaxes(0, 1)
    whole_SxR = {
      "precision": predicted_SxR,
      "recall": gold_SxR,
      "f1": (gold_SxR + predicted_SxR) / 2,
    }[name]
    return 100 * hits_SxR / np.maximum(whole_SxR, 0.5)  # without any: 0

  return Scores(len(golds), draw)


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
  scores = score_runs([metric], golds, [answers], labels)[metric]
  if scores.example_SxN is not None:
    return scores.example_SxN[0]
  # As texts, since tags from JSON are lists, which are no keys.
  pairs = [repr(pair) for pair in zip(golds, answers, strict=True)]
  rows_N = np.arange(scores.size)
  # Examples of equal pairs leave equal scores: of classes there are few.
  left_out = {
    pair: scores.draw(np.delete(rows_N, i)[None])[0, 0]
    for pair, i in {pair: i for i, pair in enumerate(pairs)}.items()
  }
  return jackknife_values(scores.by_run()[0], [left_out[x] for x in pairs])


def _to_numbers(
  columns: Sequence[Sequence[Any]], labels: Sequence[str]
) -> list[np.ndarray]:
  """Returns columns with ids of classes; those not in `labels` are appended.

  Zeros stand for a column that is not all finite.
  """
  names = [x for column in columns for x in column if isinstance(x, str)]
  ids = {label: i for i, label in enumerate(dict.fromkeys((*labels, *names)))}
  arrays = [np.array([ids.get(x, x) for x in column]) for column in columns]
  return [x if np.isfinite(x).all() else np.zeros_like(x) for x in arrays]


def _sum_drawn(value_KxN: np.ndarray, drawn_RxN: np.ndarray) -> np.ndarray:
  """Sums K values of the drawn examples, f64 [K, R]."""
  rows = len(drawn_RxN)
  size = value_KxN.shape[1]
  cell_RxN = drawn_RxN + size * np.arange(rows)[:, None]
  counts = np.bincount(cell_RxN.ravel(), minlength=rows * size)
  times_RxN = counts.reshape(rows, size).astype(float)
  # Not `@`: BLAS's threads are slow when the cores are busy, and equal rows
  # would not give equal bits.
  values = (x_N.astype(float) for x_N in value_KxN)
  return np.stack([np.einsum("rn,n->r", times_RxN, x_N) for x_N in values])
