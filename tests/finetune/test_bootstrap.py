"""Comparisons of two models on the same examples."""

import numpy as np
import pytest

from truenegs_jax.finetune import bootstrap
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import scoring

CLASSES = ("accuracy", "f1", "matthews")


def made_up(metric, *, size=120, runs=(3, 2), seed=0):
  """Gold values and two models' predictions, the first one's better."""
  rng = np.random.default_rng(seed)
  models = []
  if metric in CLASSES:
    gold = rng.integers(0, 2, size)
    for count, right in zip(runs, (0.9, 0.7), strict=True):
      flip = rng.random((count, size)) > right
      models.append(np.where(flip, 1 - gold, gold))
  else:
    gold = np.round(rng.random(size) * 5, 1)
    for count, noise in zip(runs, (1, 2), strict=True):
      said = gold + noise * rng.normal(size=(count, size))
      models.append(np.round(said, 1))
  return gold, *models


@pytest.mark.parametrize("metric", scoring.METRICS)
def test_resamples_are_scored_as_a_loop_scores_them(metric):
  gold, ours, theirs = made_up(metric)
  found = bootstrap.compare(metric, gold, ours, theirs, resamples=50, seed=7)
  score = scoring.METRICS[metric]
  mean = lambda runs, drawn: np.mean(
    [score(gold[drawn], x[drawn]) for x in runs]
  )
  everything = np.arange(len(gold))
  assert found.ours == pytest.approx(mean(ours, everything))
  assert found.theirs == pytest.approx(mean(theirs, everything))
  assert found.difference == found.ours - found.theirs
  draws = np.random.default_rng(7).spawn(3)[0].integers(120, size=(50, 120))
  looped = [mean(ours, drawn) - mean(theirs, drawn) for drawn in draws]
  want = np.percentile(looped, (2.5, 97.5))
  np.testing.assert_allclose((found.low, found.high), want, atol=1e-6)
  assert found.p == 2 / 51 and found.low > 0


@pytest.mark.parametrize("metric", scoring.METRICS)
def test_a_model_against_itself_and_the_other_way_round(metric):
  gold, ours, theirs = made_up(metric, size=40)
  same = bootstrap.compare(metric, gold, ours, ours[::-1], resamples=200)
  assert (same.low, same.high, same.p) == (0, 0, 1)
  assert same.difference == pytest.approx(0, abs=1e-9)
  assert same.low_runs < 0 < same.high_runs  # of runs that differ
  one = bootstrap.compare(metric, gold, ours, ours, resamples=20)
  assert one.difference == 0 and one.low_runs < 0 < one.high_runs
  there = bootstrap.compare(metric, gold, ours, theirs, resamples=200)
  back = bootstrap.compare(metric, gold, theirs, ours, resamples=200)
  assert there.difference == -back.difference and there.p == back.p
  assert (there.low, there.high) == pytest.approx((-back.high, -back.low))
  again = bootstrap.compare(metric, gold, ours, theirs, resamples=200)
  other = bootstrap.compare(metric, gold, ours, theirs, resamples=200, seed=1)
  assert again == there != other


def test_one_run_says_nothing_of_other_runs():
  gold, ours, theirs = made_up("accuracy", runs=(3, 1))
  found = bootstrap.compare("accuracy", gold, ours, theirs, resamples=50)
  assert (found.low_runs, found.high_runs, found.p_runs) == (None, None, None)


def test_intervals_are_as_wide_as_theory_says():
  rng = np.random.default_rng(0)
  size, runs = 400, (5, 3)
  examples = rng.normal(size=(2, size))
  models = [
    20 * examples[i] + 4 * rng.normal(size=(count, 1))
    for i, count in enumerate(runs)
  ]
  found = bootstrap.compare("em", None, *models, resamples=20_000)
  of_examples = 20 * np.std(examples[0] - examples[1]) / np.sqrt(size)
  width = 2 * 1.96 * of_examples
  assert found.high - found.low == pytest.approx(width, rel=0.04)
  # The variance of a mean over runs is that of a run / S, without bias.
  draw = np.random.default_rng(1)
  for model in models:
    score_SxR = np.repeat(model.mean(1)[:, None], 40_000, 1)
    means = bootstrap._draw_runs(draw, score_SxR).mean(0)
    want = model.mean(1).var(ddof=1) / len(model)
    assert means.var() == pytest.approx(want, rel=0.05)
  assert found.high_runs - found.low_runs > 1.2 * width


def test_intervals_hold_the_truth_as_often_as_they_say():
  """Two models right on about 80 % and 75 % of the examples, run by run."""
  rng = np.random.default_rng(0)
  trials, inside, inside_runs, tiny_p = 400, 0, 0, 0
  for _ in range(trials):
    shift = rng.normal(size=(5, 2)) * 0.03
    hard = rng.random(150)
    ours = 100.0 * (hard < 0.8 + shift[:, :1])
    theirs = 100.0 * (hard < 0.75 + shift[:, 1:])
    c = bootstrap.compare("x", None, ours, theirs, resamples=300)
    inside += c.low <= 100 * (0.05 + np.diff(-shift.mean(0))[0]) <= c.high
    inside_runs += c.low_runs <= 5 <= c.high_runs
    tiny_p += (c.p < 0.05) != (not c.low <= 0 <= c.high)
  assert 0.91 <= inside / trials <= 0.98
  assert 0.88 <= inside_runs / trials <= 0.99
  assert tiny_p <= 0.02 * trials  # p and the interval tell the same


def test_what_cannot_be_compared_is_refused():
  gold, ours, theirs = made_up("f1")
  with pytest.raises(InputError, match="'bleu'.*matthews"):
    bootstrap.compare("bleu", gold, ours, theirs)
  with pytest.raises(InputError, match="119"):
    bootstrap.compare("f1", gold, ours, theirs[:, 1:])
  with pytest.raises(InputError, match="119"):
    bootstrap.compare("em", None, ours, theirs[:, 1:])
