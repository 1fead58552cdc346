"""Tests intervals of shares and means against closed forms and simulations."""

import math

import numpy as np
import pytest
from scipy import stats

from truenegs_jax.stats import intervals


def test_the_interval_of_a_mean_is_that_of_the_t_test():
  values = np.random.default_rng(0).normal(size=7)
  mean, half = intervals.mean_interval(values)
  expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
  assert (mean - half, mean + half) == pytest.approx(tuple(expected))
  assert math.isnan(intervals.mean_interval([1.0])[1])


def test_the_jackknife_of_a_mean_is_its_standard_error():
  values = np.random.default_rng(0).normal(size=20)
  left_out = [np.delete(values, i).mean() for i in range(20)]
  error = intervals.jackknife_error(left_out)
  assert error == pytest.approx(stats.sem(values))
  np.testing.assert_allclose(
    intervals.jackknife_values(values.mean(), left_out), values
  )
  assert intervals.jackknife_error([3.0]) == math.inf


@pytest.mark.parametrize("num_clusters", [2, 5, 50])
def test_an_interval_solves_wilsons_equation(num_clusters):
  """Either end is z standard errors, at that end, from the observed share."""
  rng = np.random.default_rng(num_clusters)
  cluster_N = rng.integers(0, num_clusters, 20 * num_clusters)
  p_T = rng.random(num_clusters)
  hit_N = rng.random(len(cluster_N)) < p_T[cluster_N]
  estimate = intervals.estimate_rate(hit_N, cluster_N)
  share = hit_N.mean()
  residuals = [
    (hit_N[cluster_N == t] - share).sum() for t in range(num_clusters)
  ]
  squares = num_clusters * np.var(residuals, ddof=1)
  independent = share * (1 - share) / (squares / len(hit_N) ** 2)
  assert independent < len(hit_N)
  t = stats.t.ppf(0.975, num_clusters - 1)
  for end in (estimate.low, estimate.high):
    error = np.sqrt(end * (1 - end) / independent)
    assert abs(share - end) == pytest.approx(t * error)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
  "share, num_clusters", [(0.014, 150), (0.07, 60), (0.3, 20)]
)
def test_intervals_cover_the_true_share_in_95_percent(
  share, num_clusters, correlation
):
  """`correlation` is that of two trials of one cluster."""
  rng = np.random.default_rng(0)
  covered = []
  for _ in range(1000):
    p_T = np.full(num_clusters, share)
    if correlation == 1:
      p_T = rng.binomial(1, share, num_clusters)
    elif correlation:
      scale = 1 / correlation - 1
      p_T = rng.beta(share * scale, (1 - share) * scale, num_clusters)
    cluster_N = np.repeat(
      np.arange(num_clusters), 1 + rng.poisson(4, num_clusters)
    )
    hit_N = rng.random(len(cluster_N)) < p_T[cluster_N]
    r = intervals.estimate_rate(hit_N, cluster_N)
    covered.append(r.low <= share <= r.high)
  assert 0.9 <= np.mean(covered) <= 0.99
