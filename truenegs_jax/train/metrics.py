"""Adds up the terms of batches and computes metrics from them.

A term is a pair (sum, count); pairs are added before they are divided.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

Terms = Mapping[str, tuple[np.ndarray, np.ndarray]]

HISTOGRAM = "detect_histogram"


def merge_terms(batches: Iterable[Terms]) -> dict[str, tuple]:
  """Adds the pairs of several batches by name."""
  merged: dict[str, tuple] = {}
  for terms in batches:
    for name, (a, b) in terms.items():
      # float32 cannot count by ones above 2^24, a few hundred large batches.
      a = np.asarray(a, np.float64)
      b = np.asarray(b, np.float64)
      sum_a, sum_b = merged.get(name, (0.0, 0.0))
      merged[name] = (sum_a + a, sum_b + b)
  return merged


def compute_ratios(terms: Terms) -> dict[str, float]:
  """Returns sum / count by name (0 for empty terms); the histogram as `auc`."""
  values = {
    name: float(a) / float(b) if float(b) else 0.0
    for name, (a, b) in terms.items()
    if name != HISTOGRAM
  }
  if HISTOGRAM in terms:
    values["auc"] = auc(*terms[HISTOGRAM])
  return values


def auc(positive_C: np.ndarray, negative_C: np.ndarray) -> float:
  """Computes the area under the ROC curve; 0.5 without positives or negatives.

  This is the probability that a random positive scores above a random negative;
  ties count half. The arguments are numbers in C bins of ascending scores.
  """
  positive_C = np.asarray(positive_C, np.float64)
  negative_C = np.asarray(negative_C, np.float64)
  pairs = positive_C.sum() * negative_C.sum()
  if not pairs:
    return 0.5
  below_C = np.cumsum(negative_C) - negative_C
  return float((positive_C * (below_C + negative_C / 2)).sum() / pairs)


def entropy(counts: npt.ArrayLike) -> float:
  """Computes the entropy in nats of the distribution given by counts."""
  p = np.asarray(counts, np.float64)
  p = p[p > 0] / p.sum()
  return float(-(p * np.log(p)).sum())
