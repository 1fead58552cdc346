"""Metrics equal independent computations."""

import numpy as np
import pytest

from truenegs_jax.train import metrics


def test_auc_equals_the_count_of_pairs_with_ties():
  rng = np.random.default_rng(0)
  bins = 6  # few, so that there are many ties
  positive, negative = rng.integers(1, bins, 30), rng.integers(0, bins - 1, 50)
  auc = metrics.auc(
    np.bincount(positive, minlength=bins), np.bincount(negative, minlength=bins)
  )
  difference = np.subtract.outer(positive, negative)
  expected = (np.sign(difference) / 2 + 0.5).mean()
  assert auc == pytest.approx(expected, rel=1e-12)
  assert metrics.auc(np.zeros(2), np.array([3, 0])) == 0.5  # no positives


def test_terms_are_added_in_float64_and_divided_once():
  # float32 cannot count by ones above 2^24.
  batches = [{"a": (np.float32(1.0), np.float32(2**24))}] * 2
  batches += [{"a": (np.float32(1.0), np.float32(1.0))}] * 64
  merged = metrics.merge_terms(batches)
  assert merged == {"a": (66, 2**25 + 64)}
  assert metrics.compute_ratios(merged) == {"a": 66 / (2**25 + 64)}
  assert metrics.compute_ratios({"a": (0.0, 0.0)}) == {"a": 0.0}


@pytest.mark.parametrize(
  ("kind", "dtype", "peak"),
  [
    ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
    ("NVIDIA H100 PCIe", "bfloat16", 756e12),
    ("TPU v4", "bfloat16", 275e12),
    ("TPU v4 lite", "bfloat16", None),
    ("TPU v5 lite", "bfloat16", 197e12),
    ("NVIDIA H100 80GB HBM3", "float32", None),
    ("cpu", "bfloat16", None),
  ],
)
def test_the_peak_is_the_published_one_or_none(kind, dtype, peak):
  assert metrics.peak_flops(kind, dtype) == peak
