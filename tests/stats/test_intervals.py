"""Tests intervals against closed forms and simulations."""

import math

import numpy as np
import pytest
from scipy import stats

from truenegs_jax.stats import intervals
from truenegs_jax.stats.intervals import compare_scores


def compare_models(*models_SxN, **options):
  """Compares the means of two models' scores of examples."""
  runs = tuple(map(len, models_SxN))
  score_SxN = np.concatenate(models_SxN)

  def score(drawn_RxN):
    return np.stack([x_N[drawn_RxN].mean(1) for x_N in score_SxN])

  size = score_SxN.shape[1]
  return compare_scores("em", score, size, runs=runs, **options)


def test_the_interval_over_examples_has_the_theoretical_width():
  rng = np.random.default_rng(0)
  examples = rng.normal(size=(2, 400))
  models = [
    20 * examples[i] + 4 * rng.normal(size=(count, 1))
    for i, count in enumerate((5, 3))
  ]
  result = compare_models(*models, resamples=20_000)
  error = 20 * np.std(examples[0] - examples[1]) / np.sqrt(400)
  width = 2 * 1.96 * error
  assert result.high - result.low == pytest.approx(width, rel=0.04)
  assert result.high_runs - result.low_runs > 1.2 * width
  p = 2 * stats.norm.sf(abs(result.difference) / error)
  assert result.p == pytest.approx(p, rel=0.1)


def test_the_interval_over_runs_is_welchs_if_examples_are_alike():
  rng = np.random.default_rng(0)
  ours_Sx1, theirs_Sx1 = (rng.normal(70, 2, size=(n, 1)) for n in (5, 3))
  models = (np.repeat(x, 90, 1) for x in (ours_Sx1, theirs_Sx1))
  result = compare_models(*models, resamples=20)
  test = stats.ttest_ind(ours_Sx1[:, 0], theirs_Sx1[:, 0], equal_var=False)
  bounds = test.confidence_interval(0.95)
  assert (result.low_runs, result.high_runs) == pytest.approx(tuple(bounds))
  assert result.p_runs == pytest.approx(test.pvalue)


# Variances of a model's runs, its examples and its single answers.
@pytest.mark.parametrize("dominant", [(9, 0, 9), (0, 400, 9), (0, 0, 900)])
def test_the_interval_over_runs_lacks_the_difference_in_5_percent(dominant):
  rng = np.random.default_rng(0)
  repeats, num_outside, num_disagreements = 400, 0, 0
  run, example, answer = np.sqrt(dominant)
  for _ in range(repeats):
    ours, theirs = (
      run * rng.normal(size=(3, 1))
      + example * rng.normal(size=100)
      + answer * rng.normal(size=(3, 100))
      for _ in range(2)
    )
    c = compare_models(ours, theirs, resamples=100)
    is_outside = not c.low_runs <= 0 <= c.high_runs
    num_outside += is_outside
    num_disagreements += (c.p_runs < 0.05) != is_outside
  assert 0.025 <= num_outside / repeats <= 0.08
  assert not num_disagreements


def test_the_jackknife_of_a_mean_is_its_standard_error():
  values = np.random.default_rng(0).normal(size=20)
  left_out = [np.delete(values, i).mean() for i in range(20)]
  error = intervals.jackknife_error(left_out)
  assert error == pytest.approx(stats.sem(values))
  np.testing.assert_allclose(
    intervals.jackknife_values(values.mean(), left_out), values
  )
  assert intervals.jackknife_error([3.0]) == math.inf


@pytest.mark.parametrize("num_clusters", [2, 50])
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
