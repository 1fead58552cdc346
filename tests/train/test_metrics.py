"""Metrics equal independent computations."""

import math

import numpy as np
import pytest

from truenegs_jax.train import metrics


def pairwise_auc(positive, negative):
  """Computes the AUC pair by pair."""
  difference = np.subtract.outer(positive, negative)
  return (np.sign(difference) / 2 + 0.5).mean()


@pytest.mark.parametrize("seed", range(4))
def test_auc_equals_count_of_pairs_with_ties(seed):
  rng = np.random.default_rng(seed)
  bins = 6  # few, so that there are many ties
  positive, negative = rng.integers(1, bins, 30), rng.integers(0, bins - 1, 50)
  auc = metrics.auc(
    np.bincount(positive, minlength=bins), np.bincount(negative, minlength=bins)
  )
  assert auc == pytest.approx(pairwise_auc(positive, negative), rel=1e-12)
  assert metrics.auc(np.zeros(2), np.array([3, 0])) == 0.5  # no positives


def test_auc_stays_exact_for_counts_beyond_float32():
  positive, negative = np.array([1, 2**25]), np.array([2**25, 1])
  n = 2**25 + 1
  expected = (2**25 * 2**25 + 0.5 * 2**25 * 2) / n**2
  auc = metrics.auc(positive.astype("f4"), negative.astype("f4"))
  assert auc == pytest.approx(expected, rel=1e-6)


def test_terms_are_added_in_float64_and_divided_once():
  # float32 cannot count by ones above 2^24.
  batches = [{"a": (np.float32(1.0), np.float32(2**24))}] * 2
  batches += [{"a": (np.float32(1.0), np.float32(1.0))}] * 64
  merged = metrics.merge_terms(batches)
  assert merged == {"a": (66, 2**25 + 64)}
  assert metrics.compute_ratios(merged) == {"a": 66 / (2**25 + 64)}
  assert metrics.compute_ratios({"a": (0.0, 0.0)}) == {"a": 0.0}


def test_entropy_of_equal_and_of_certain_counts():
  assert metrics.entropy(np.full(7, 3)) == pytest.approx(math.log(7))
  assert metrics.entropy(np.array([0, 5, 0])) == 0.0
  p = 0.138  # share of replaced tokens in ELECTRA-small
  assert metrics.entropy(np.array([p, 1 - p])) == pytest.approx(0.401, abs=1e-3)
