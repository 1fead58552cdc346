"""Summaries of seeds, runs that failed, and published rows."""

import dataclasses
import json

import numpy as np
import pytest

from truenegs_jax.finetune import leaderboard
from truenegs_jax.finetune.task_data import find_failure


def test_a_summary_drops_nothing():
  found = leaderboard.summarize_scores(
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
def test_a_run_that_says_one_thing_failed(gold, predicted, reason):
  found = find_failure(gold, predicted)
  assert (reason in found) if reason else not found


def test_averages_of_the_papers_table_are_recomputed():
  rows = {
    r.name: r for r in leaderboard.PUBLISHED if r.source == leaderboard.TABLE_3
  }
  averages = [leaderboard.average(row.scores) for row in rows.values()]
  want = [82.85, 83.45, 83.39, 84.66, 85.05, 85.13]
  want += [80.36, 81.35, 81.91, 87.66, 88.39, 88.33]
  np.testing.assert_allclose(averages, want, atol=0.0051)
  small = dict(rows["ELECTRA small"].scores)
  del small["rte"]
  assert leaderboard.average(small) is None
  assert leaderboard.average(small, tasks=["cola"]) == 56.8


def test_rows_are_those_of_the_family_and_size():
  rows = lambda **kw: [r.name for r in leaderboard.find_published(**kw)]
  assert rows(tasks=leaderboard.GLUE, family="bert", width=768) == [
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
  small = leaderboard.find_published(["squad"], family="electra", width=512)
  assert small == leaderboard.find_published(
    ["squad"], family="electra", width=64
  )
  assert {r.size for r in leaderboard.PUBLISHED} == {"small", "base", "large"}
  assert json.dumps([dataclasses.asdict(row) for row in leaderboard.PUBLISHED])
  for row in leaderboard.PUBLISHED:
    assert row.note and row.source
    assert set(row.scores) <= {*leaderboard.GLUE, *leaderboard.SQUAD}
