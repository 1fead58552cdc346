"""Comparisons of two models, summaries of seeds, and published rows."""

import dataclasses
import json

import numpy as np
import pytest

from truenegs_jax.finetune import bootstrap, leaderboard, published
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
  found = bootstrap.compare_means("em", *models, resamples=20_000)
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
    c = bootstrap.compare_means("x", ours, theirs, resamples=300)
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
    bootstrap.compare_means("em", ours, theirs[:, 1:])


def test_a_summary_drops_nothing():
  found = leaderboard.summarize(
    [80.0, 50.0, 84.0, 82.0], ["", "constant", "", ""]
  )
  want = leaderboard.Summary(
    runs=4,
    failed=1,
    median=81.0,
    mean=74.0,
    low=50.0,
    high=84.0,
    sd=pytest.approx(np.std([80, 50, 84, 82], ddof=1)),
  )
  assert found == want
  assert leaderboard.summarize([80.0]).sd is None
  for scores, failures in (([], []), ([1.0], [True, True]), ([np.nan], [])):
    with pytest.raises(InputError):
      leaderboard.summarize(scores, failures)


@pytest.mark.parametrize(
  "gold, predicted, reason",
  [
    ([0, 1, 1], [1, 1, 1], "all 3 predictions are 1"),
    ([0, 1, 1], [1, 0, 0], ""),  # wrong, but not constant
    ([1, 1], [1, 1], ""),
    ([0.0, 5.0], [1.0, np.inf], "finite"),
    ([0.0, 5.0, 2.0], [2.5, 2.5001, 2.5], "range"),
    ([0.0, 5.0, 2.0], [2.5, 2.6, 2.5], ""),
    (["a", "b"], ["the", "the"], "'the'"),
    (["a", "b"], ["the", "b"], ""),
  ],
)
def test_a_run_that_says_one_thing_failed(gold, predicted, reason):
  found = leaderboard.failure(gold, predicted)
  assert (reason in found) if reason else not found


def test_averages_of_the_papers_table_are_recomputed():
  rows = {r.name: r for r in published.ROWS if r.source == published.TABLE_3}
  averages = [leaderboard.average(row.scores) for row in rows.values()]
  want = [82.85, 83.45, 83.39, 84.66, 85.05, 85.13]
  want += [80.36, 81.35, 81.91, 87.66, 88.39, 88.33]
  np.testing.assert_allclose(averages, want, atol=0.0051)
  small = dict(rows["ELECTRA small"].scores)
  del small["rte"]
  assert leaderboard.average(small) is None
  assert leaderboard.average(small, tasks=["cola"]) == 56.8


def test_rows_are_those_of_the_family_and_size():
  rows = lambda **kw: [r.name for r in published.rows_for(**kw)]
  assert rows(tasks=published.GLUE, family="bert", width=768) == [
    "BERT base",
    "BERT base HC",
    "BERT base SR",
  ]
  assert rows(tasks=["squad"], family="electra", width=768) == [
    "ELECTRA base",
    "ELECTRA base HC",
    "ELECTRA base SR",
    "ELECTRA base++",
    "ELECTRA base++",
    "ELECTRA base",
  ]
  assert rows(tasks=["qnli", "rte"], family="electra", width=1024) == [
    "ELECTRA large"
  ]
  assert not rows(tasks=["squad"], family="bert", width=768)
  small = published.rows_for(["squad"], family="electra", width=512)
  assert small == published.rows_for(["squad"], family="electra", width=64)
  assert {r.size for r in published.ROWS} == {"small", "base", "large"}
  assert json.dumps([dataclasses.asdict(row) for row in published.ROWS])
  for row in published.ROWS:
    assert row.note and row.source
    assert set(row.scores) <= {*published.GLUE, *published.SQUAD}
