"""Tests summaries of runs, detection of failed runs, and published scores."""

import dataclasses
import json

import numpy as np
import pytest
from rich.console import Console

from truenegs_jax.finetune import bootstrap, leaderboard
from truenegs_jax.finetune.eval_splits import find_failure


def test_a_summary_has_all_runs():
  scores, failures = [80.0, 50.0, 84.0, 82.0], ["", "constant", "", ""]
  assert leaderboard.summarize_scores(scores, failures) == leaderboard.Summary(
    runs=4,
    failed=1,
    median=81.0,
    mean=74.0,
    low=50.0,
    high=84.0,
    sd=pytest.approx(np.std(scores, ddof=1)),
  )
  assert leaderboard.summarize_scores([80.0], [""]).sd is None


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
def test_runs_with_constant_predictions_failed(gold, predicted, reason):
  failure = find_failure(gold, predicted)
  assert (reason in failure) if reason else not failure


def test_averages_match_the_papers_table():
  scores = {
    model.name: model.scores
    for model in leaderboard.PUBLISHED
    if model.source == leaderboard.SOURCES["table3"]
  }
  averages = [leaderboard.average(x) for x in scores.values()]
  expected = [82.85, 83.45, 83.39, 84.66, 85.05, 85.13]
  expected += [80.36, 81.35, 81.91, 87.66, 88.39, 88.33]
  np.testing.assert_allclose(averages, expected, atol=0.0051)
  small = dict(scores["ELECTRA small"])
  assert small["cola"] == 56.8
  del small["rte"]
  assert leaderboard.average(small) is None


def test_finds_published_models_by_family_and_size():
  def find_names(**kwargs):
    return [model.name for model in leaderboard.find_published(**kwargs)]

  assert find_names(tasks=leaderboard.GLUE, family="bert", width=768) == [
    "BERT base",
    "BERT base HC",
    "BERT base SR",
  ]
  assert find_names(tasks=["squad"], family="electra", width=768) == [
    "ELECTRA base",
    "ELECTRA base HC",
    "ELECTRA base SR",
    "ELECTRA base++",
    "ELECTRA base++",
    "ELECTRA base",
  ]
  assert find_names(tasks=["qnli", "rte"], family="electra", width=1024) == [
    "ELECTRA large"
  ]
  assert not find_names(tasks=["squad"], family="bert", width=768)
  small = leaderboard.find_published(["squad"], family="electra", width=512)
  assert small == leaderboard.find_published(
    ["squad"], family="electra", width=64
  )
  sizes = {model.size for model in leaderboard.PUBLISHED}
  assert sizes == {"small", "base", "large"}
  assert json.dumps(list(map(dataclasses.asdict, leaderboard.PUBLISHED)))
  for model in leaderboard.PUBLISHED:
    assert model.note and model.source
    assert set(model.scores) <= {*leaderboard.GLUE, *leaderboard.SQUAD}


@pytest.mark.parametrize("low_runs", [-10.25, None])
def test_a_comparison_fits_a_terminal_without_cut_words(capsys, low_runs):
  row = bootstrap.Comparison(
    metric="spearman",
    ours=70.0,
    theirs=75.1,
    difference=-5.1,
    low=-12.5,
    high=-0.25,
    low_runs=low_runs,
    high_runs=10.5,
    resamples=10_000,
    p=0.0123,
    p_runs=0.5,
  )
  leaderboard.print_tables({}, {"stsb": [row]}, Console(width=80))
  table = capsys.readouterr().out
  assert "…" not in table
  values = {"spearman", "75.10", "difference", "-12.50,", "-0.25", "0.012"}
  assert values <= {*table.split()}
  assert ("-10.25," in table.split()) == (low_runs is not None)
