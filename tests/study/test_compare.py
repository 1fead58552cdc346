"""Tests differences of a study's arms against closed forms and simulations."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from truenegs_jax.study.compare import Score, compare_runs, group_runs

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
