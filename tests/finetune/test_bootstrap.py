"""Tests comparisons of two models on the same examples."""

import numpy as np
import pytest

from truenegs_jax.finetune import bootstrap
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import scoring

CLASSES = ("accuracy", "f1", "matthews")


def make_models(metric, *, size=120, runs=(3, 2), seed=0):
  """Makes gold values and two models' predictions; the first is better."""
  rng = np.random.default_rng(seed)
  models = []
  if metric in CLASSES:
    gold = rng.integers(0, 2, size)
    for count, share in zip(runs, (0.9, 0.7), strict=True):
      flip = rng.random((count, size)) > share
      models.append(np.where(flip, 1 - gold, gold))
  else:
    gold = np.round(rng.random(size) * 5, 1)
    for count, noise in zip(runs, (1, 2), strict=True):
      predicted = gold + noise * rng.normal(size=(count, size))
      models.append(np.round(predicted, 1))
  return gold, *models


@pytest.mark.parametrize("metric", scoring.METRICS)
def test_resamples_match_a_plain_loop(metric):
  gold, ours, theirs = make_models(metric)
  result = bootstrap.compare(metric, gold, ours, theirs, resamples=50, seed=7)
  score = scoring.METRICS[metric]

  def mean(runs, drawn):
    return np.mean([score(gold[drawn], x[drawn]) for x in runs])

  everything = np.arange(len(gold))
  assert result.ours == pytest.approx(mean(ours, everything))
  assert result.theirs == pytest.approx(mean(theirs, everything))
  assert result.difference == result.ours - result.theirs
  draws = np.random.default_rng(7).spawn(3)[0].integers(120, size=(50, 120))
  differences = [mean(ours, drawn) - mean(theirs, drawn) for drawn in draws]
  expected = np.percentile(differences, (2.5, 97.5))
  np.testing.assert_allclose((result.low, result.high), expected, atol=1e-6)
  assert result.p == 2 / 51 and result.low > 0


@pytest.mark.parametrize("metric", scoring.METRICS)
def test_comparisons_are_symmetric_and_zero_with_itself(metric):
  gold, ours, theirs = make_models(metric, size=40)
  same = bootstrap.compare(metric, gold, ours, ours[::-1], resamples=200)
  assert (same.low, same.high, same.p) == (0, 0, 1)
  assert same.difference == pytest.approx(0, abs=1e-9)
  assert same.low_runs < 0 < same.high_runs  # because its runs differ
  equal = bootstrap.compare(metric, gold, ours, ours, resamples=20)
  assert equal.difference == 0 and equal.low_runs < 0 < equal.high_runs
  forward = bootstrap.compare(metric, gold, ours, theirs, resamples=200)
  backward = bootstrap.compare(metric, gold, theirs, ours, resamples=200)
  assert forward.difference == -backward.difference and forward.p == backward.p
  assert (forward.low, forward.high) == pytest.approx(
    (-backward.high, -backward.low)
  )
  again = bootstrap.compare(metric, gold, ours, theirs, resamples=200)
  other = bootstrap.compare(metric, gold, ours, theirs, resamples=200, seed=1)
  assert again == forward != other


def test_one_run_gives_no_interval_over_runs():
  gold, ours, theirs = make_models("accuracy", runs=(3, 1))
  result = bootstrap.compare("accuracy", gold, ours, theirs, resamples=50)
  assert result.low_runs is result.high_runs is result.p_runs is None


def test_intervals_have_the_theoretical_width():
  rng = np.random.default_rng(0)
  size, runs = 400, (5, 3)
  examples = rng.normal(size=(2, size))
  models = [
    20 * examples[i] + 4 * rng.normal(size=(count, 1))
    for i, count in enumerate(runs)
  ]
  result = bootstrap.compare("em", None, *models, resamples=20_000)
  error = 20 * np.std(examples[0] - examples[1]) / np.sqrt(size)
  width = 2 * 1.96 * error
  assert result.high - result.low == pytest.approx(width, rel=0.04)
  # The variance of a mean over runs is the unbiased variance of a run / S.
  rng = np.random.default_rng(1)
  for model in models:
    score_SxR = np.repeat(model.mean(1)[:, None], 40_000, 1)
    means = bootstrap._draw_runs(rng, score_SxR).mean(0)
    expected = model.mean(1).var(ddof=1) / len(model)
    assert means.var() == pytest.approx(expected, rel=0.05)
  assert result.high_runs - result.low_runs > 1.2 * width


def test_intervals_have_their_nominal_coverage():
  """Simulates two models with accuracies of about 80 % and 75 %."""
  rng = np.random.default_rng(0)
  repeats, inside, inside_runs, num_disagreements = 400, 0, 0, 0
  for _ in range(repeats):
    shift = rng.normal(size=(5, 2)) * 0.03
    hard = rng.random(150)
    ours = 100.0 * (hard < 0.8 + shift[:, :1])
    theirs = 100.0 * (hard < 0.75 + shift[:, 1:])
    c = bootstrap.compare("x", None, ours, theirs, resamples=300)
    inside += c.low <= 100 * (0.05 + np.diff(-shift.mean(0))[0]) <= c.high
    inside_runs += c.low_runs <= 5 <= c.high_runs
    num_disagreements += (c.p < 0.05) != (not c.low <= 0 <= c.high)
  assert 0.91 <= inside / repeats <= 0.98
  assert 0.88 <= inside_runs / repeats <= 0.99
  assert num_disagreements <= 0.02 * repeats  # p and the interval agree


def test_rejects_what_cannot_be_compared():
  gold, ours, theirs = make_models("f1")
  with pytest.raises(InputError, match="'bleu'.*matthews"):
    bootstrap.compare("bleu", gold, ours, theirs)
  with pytest.raises(InputError, match="119"):
    bootstrap.compare("f1", gold, ours, theirs[:, 1:])
  with pytest.raises(InputError, match="119"):
    bootstrap.compare("em", None, ours, theirs[:, 1:])
