"""Ratios, areas, errors and clocks against independent computations."""

import math

import numpy as np
import pytest

from truenegs_jax.train import metrics


def random_batches(seed, n=6):
  rng = np.random.default_rng(seed)
  return [
    {
      "a": (np.float32(rng.normal()), np.float32(rng.integers(1, 9))),
      "detect_histogram": (rng.integers(0, 9, 5), rng.integers(0, 9, 5)),
    }
    for _ in range(n)
  ]


def pairwise_auc(positive, negative):
  """Counted pair by pair."""
  wins = [
    1.0 if p > n else 0.5 if p == n else 0.0 for p in positive for n in negative
  ]
  return sum(wins) / len(wins)


@pytest.mark.parametrize("seed", range(4))
def test_auc_equals_a_count_of_pairs_with_ties_as_halves(seed):
  rng = np.random.default_rng(seed)
  bins = 6  # few, so that there are many ties
  positive, negative = rng.integers(1, bins, 30), rng.integers(0, bins - 1, 50)
  got = metrics.auc(
    np.bincount(positive, minlength=bins), np.bincount(negative, minlength=bins)
  )
  assert got == pytest.approx(pairwise_auc(positive, negative), rel=1e-12)


def test_auc_of_perfect_reversed_and_one_sided_scores():
  low, high, none = np.array([3, 0]), np.array([0, 5]), np.zeros(2)
  assert metrics.auc(high, low) == 1.0
  assert metrics.auc(low, high) == 0.0
  assert metrics.auc(low, low) == 0.5
  assert metrics.auc(none, low) == metrics.auc(high, none) == 0.5


def test_auc_stays_exact_for_counts_beyond_float32():
  positive, negative = np.array([1, 2**25]), np.array([2**25, 1])
  n = 2**25 + 1
  want = (2**25 * 2**25 + 0.5 * 2**25 * 2) / n**2
  got = metrics.auc(positive.astype("f4"), negative.astype("f4"))
  assert got == pytest.approx(want, rel=1e-6)


def test_merging_in_any_grouping_gives_the_same():
  batches = random_batches(0)
  whole = metrics.merge(batches)
  halves = metrics.merge(
    [metrics.merge(batches[4:]), metrics.merge(batches[:4])]
  )
  for name in whole:
    for a, b in zip(whole[name], halves[name], strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-6)
  assert whole["a"][1] == sum(terms["a"][1] for terms in batches)


def test_a_ratio_is_of_sums_and_not_a_mean_of_ratios():
  merged = metrics.merge([{"a": (1.0, 1.0)}, {"a": (0.0, 3.0)}])
  assert metrics.ratios(merged) == {"a": 0.25}
  assert metrics.ratios({"a": (0.0, 0.0)}) == {"a": 0.0}


def test_merging_many_batches_loses_no_counts():
  # 2^24 is where f32 stops to count by ones.
  many = [{"a": (np.float32(1.0), np.float32(2**24))}] * 2
  many += [{"a": (np.float32(1.0), np.float32(1.0))}] * 64
  assert metrics.merge(many)["a"][1] == 2**25 + 64


def test_the_jackknife_of_a_mean_is_its_standard_error():
  x = np.random.default_rng(0).normal(size=20)
  batches = [{"a": (value, 1.0)} for value in x]
  value, error = metrics.jackknife(
    batches, lambda terms: metrics.ratios(terms)["a"]
  )
  assert value == pytest.approx(x.mean())
  assert error == pytest.approx(x.std(ddof=1) / math.sqrt(20))


def test_the_jackknife_of_one_batch_knows_no_error():
  value, error = metrics.jackknife(
    [{"a": (3.0, 2.0)}], lambda terms: metrics.ratios(terms)["a"]
  )
  assert (value, error) == (1.5, math.inf)


def test_entropy_of_even_and_of_certain_counts():
  assert metrics.entropy(np.full(7, 3)) == pytest.approx(math.log(7))
  assert metrics.entropy(np.array([0, 5, 0])) == 0.0
  p = 0.138  # facts: always predicting the base rate
  assert metrics.entropy(np.array([p, 1 - p])) == pytest.approx(0.401, abs=1e-3)


class Time:
  """A clock that goes when told to."""

  def __init__(self):
    self.secs = 1_000.0

  def __call__(self):
    return self.secs


def test_the_remaining_time_goes_by_the_steps_of_this_process():
  time = Time()
  clock = metrics.Clock(total_steps=1_000, now=time)
  time.secs += 300.0  # compiling and restoring
  clock.start(900)  # resumed
  time.secs += 20.0
  assert clock.secs_per_step(910) == pytest.approx(2.0)
  assert clock.eta_secs(910) == pytest.approx(180.0)
  before = clock.running()
  with clock.paused():
    time.secs += 500.0
  assert clock.running() == before
  time.secs += 20.0
  assert clock.secs_per_step(920) == pytest.approx(2.0)
  assert clock.eta_secs(1_000) == 0.0


def test_the_clock_divides_by_no_zero_before_the_first_step():
  clock = metrics.Clock(total_steps=10, now=Time())
  clock.start(4)
  assert 0.0 < clock.secs_per_step(4) < 1e-6
