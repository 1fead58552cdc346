"""Tests intervals and differences against closed forms and simulations."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from truenegs_jax.stats import intervals
from truenegs_jax.stats.intervals import compare_runs, compare_scores
from truenegs_jax.study.tables import Score, group_runs

KEYS = [("mrpc", "accuracy"), ("rte", "accuracy")]


def make_scores(value_SxTxFxN, arm):
  """Makes the scores of an arm from those of examples, f64 [S, T, F, N]."""
  return [
    Score(arm, seed, task, run, metric, float(score_N.mean()), score_N)
    for seed, value_TxFxN in enumerate(value_SxTxFxN)
    for (task, metric), value_FxN in zip(KEYS, value_TxFxN, strict=False)
    for run, score_N in enumerate(value_FxN)
  ]


def compare(ours, theirs, tasks=1):
  """Compares two arrays of `make_scores`, or the scores themselves."""
  arms = []
  for arm, x in (("hc", ours), ("baseline", theirs)):
    scores = make_scores(x, arm) if isinstance(x, np.ndarray) else x
    arms.append(group_runs(scores, arm, KEYS[:tasks]))
  return compare_runs(*arms)


def bounds(x):
  return x.value - x.half_width, x.value + x.half_width


def draw(*shape):
  return np.random.default_rng(0).normal(70, 5, size=(2, *shape))


@pytest.mark.parametrize("has_examples", [False, True])
def test_one_fine_tuning_gives_the_paired_t_interval(has_examples):
  scores_2xS = draw(7)[:, :, None, None, None]
  # Every example has the score of its run: it varies with nothing else.
  ours, theirs = np.repeat(scores_2xS, 9, -1)
  ours = make_scores(ours, "hc")
  if not has_examples:
    ours = [dataclasses.replace(x, correct_N=None) for x in ours]
  result = compare(ours, theirs)
  test = stats.ttest_rel(*scores_2xS.reshape(2, 7))
  expected = test.confidence_interval(0.95)
  np.testing.assert_allclose(bounds(result), [expected.low, expected.high])
  assert result.seeds == 7


def test_equal_seeds_give_the_paired_interval_of_the_examples():
  ours, theirs = (np.repeat(x, 4, 0) for x in draw(1, 2, 2, 400))
  halves = []
  for task in (0, 1):
    of_task = slice(task, task + 1)
    result = compare(ours[:, of_task], theirs[:, of_task])
    difference_N = (ours - theirs)[0, task].mean(0)
    half = stats.norm.isf(0.025) * stats.sem(difference_N)
    assert result.value == pytest.approx(difference_N.mean())
    assert result.half_width == pytest.approx(half)
    halves.append(half)
  both = compare(ours, theirs, 2).half_width
  assert both == pytest.approx(np.linalg.norm(halves) / 2)


def test_intervals_do_not_depend_on_order_and_what_arms_share():
  ours, theirs = draw(4, 2, 3, 50)
  result = compare(ours, theirs, 2)
  order_N = np.random.default_rng(1).permutation(50)
  ease_N = 40 * np.arange(50)  # the same examples are easier for both
  changed = [(x + ease_N)[::-1, :, ::-1][..., order_N] for x in (ours, theirs)]
  assert compare(*changed, 2) == pytest.approx(result)


def test_only_seeds_of_both_arms_with_all_tasks_count():
  ours, theirs = draw(3, 2, 1, 9)
  ours = make_scores(ours, "hc")
  lacking = [x for x in ours if (x.seed, x.task) != (2, "rte")]
  assert compare(lacking, theirs, 2).seeds == 2
  assert compare(lacking, theirs).seeds == 3
  one = compare([x for x in ours if x.seed == 1], theirs, 2)
  assert (one.seeds, one.half_width) == (1, None)
  assert compare([], theirs, 2) is None


@pytest.mark.slow
@pytest.mark.parametrize(
  ("seeds", "runs", "shares"),
  [(2, 1, (0.8, 0.0, 0.2)), (3, 1, (0.3, 0.2, 0.5)), (10, 3, (0.1, 0.1, 0.8))],
)
def test_intervals_of_studies_cover_the_true_difference(seeds, runs, shares):
  """The variance has shares of seeds, fine-tunings and examples."""
  rng = np.random.default_rng(0)
  shape = (2, seeds, 1, runs, 300)
  counts = np.array([seeds, seeds * runs, 300])
  seed, run, example = np.sqrt(2 * np.array(shares) * counts)
  is_covered = []
  for _ in range(1_000):
    mean = 50 + seed * rng.normal(size=(2, seeds, 1, 1, 1))
    mean = mean + run * rng.normal(size=(*shape[:4], 1))
    mean = mean + example * rng.normal(size=(2, 1, 1, 1, 300))
    score = 100.0 * (100 * rng.random(shape) < mean)
    difference = compare(*score)
    is_covered.append(abs(difference.value) <= difference.half_width)
  # 0.93 to 0.973, and 2 standard errors.
  assert 0.925 <= np.mean(is_covered) <= 0.98


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
