"""Tests summaries and comparisons of runs, and published scores."""

import dataclasses

import numpy as np
import pytest
from rich.console import Console

from truenegs_jax.finetune import leaderboard
from truenegs_jax.finetune.results import Result
from truenegs_jax.report.page import print_table
from truenegs_jax.stats.intervals import Comparison
from truenegs_jax.tasks import scoring


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
    return [model.name for model in leaderboard.find_published(**kwargs)[0]]

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
  ]
  assert find_names(tasks=["qnli", "rte"], family="electra", width=1024) == [
    "ELECTRA large"
  ]
  for network, unlike in {
    ("electra", 256): "",
    ("bert", 256): "another network than this BERT of 256 units",
    ("electra", 64): "another network than this ELECTRA of 64 units",
  }.items():
    family, width = network
    small, note = leaderboard.find_published(
      ["squad"], family=family, width=width
    )
    assert small[0].name == "ELECTRA small"
    assert unlike in note and bool(note) == bool(unlike)
  sizes = {model.size for model in leaderboard.PUBLISHED}
  assert sizes == {"small", "base", "large"}
  for model in leaderboard.PUBLISHED:
    assert model.note and model.source
    assert set(model.scores) <= {*leaderboard.GLUE, *leaderboard.SQUAD_SCORES}


def make_run(task, metrics, golds, answers):
  """Makes a run with the parts that a comparison reads."""
  fields = dict.fromkeys(x.name for x in dataclasses.fields(Result))
  labels = sorted(set(golds)) if isinstance(golds[0], str) else []
  keys = [str(i) for i in range(len(golds))]
  dev = {"keys": keys, "golds": golds, "answers": answers}
  return Result(
    **fields
    | {
      "task": task,
      "scores": {"dev": dict.fromkeys(metrics, 0.0)},
      "answers": {"dev": dev},
      "provenance": {"labels": labels},
      "notes": [],
    }
  )


def test_a_summary_has_all_runs():
  scores, failures = [80.0, 50.0, 84.0, 82.0], ["", "constant", "", ""]
  runs = [
    dataclasses.replace(
      make_run("rte", ["accuracy"], ["yes"], ["no"]),
      scores={"dev": {"accuracy": score}},
      failure=failure,
    )
    for score, failure in zip(scores, failures, strict=True)
  ]
  assert leaderboard.summarize_runs(runs)["accuracy"] == {
    **{"runs": 4, "failed": 1, "median": 81.0, "mean": 74.0},
    **{"low": 50.0, "high": 84.0},
    "sd": pytest.approx(np.std(scores, ddof=1)),
  }
  assert leaderboard.summarize_runs(runs[:1])["accuracy"]["sd"] is None


@pytest.mark.parametrize("task", ["rte", "squad", "stsb"])
def test_runs_are_compared_by_the_metrics_of_their_task(task):
  rng = np.random.default_rng(0)
  golds = [["a x"], ["b y"]] if task == "squad" else ["yes", "no"]
  golds, metrics = golds * 30, {"rte": ["accuracy"], "squad": ["em", "f1"]}
  metrics = metrics.get(task, ["spearman"])
  if task == "stsb":
    golds = rng.permutation(60).astype(float).tolist()
  right = [x[0] if task == "squad" else x for x in golds]
  wrong = right[:30] + right[31:] + right[30:31]  # half of them
  runs = [make_run(task, metrics, golds, x) for x in (right, right, wrong)]
  compared, _ = leaderboard.compare_results({task: runs[:2]}, {task: runs[2:]})
  assert [x.metric for x in compared[task]] == metrics
  for x in compared[task]:
    assert x.ours == pytest.approx(100) and x.low_runs is None
    assert x.difference == x.ours - x.theirs > 0 and x.low > 0 and x.p < 0.01
  same, _ = leaderboard.compare_results({task: runs[1:2]}, {task: runs[:1]})
  assert {(x.difference, x.low, x.high, x.p) for x in same[task]} == {
    (0, 0, 0, 1)
  }
  for run in runs:
    for metric in metrics:
      dev, labels = run.answers["dev"], run.provenance["labels"]
      scored = dev["golds"], dev["answers"], labels
      values = scoring.example_scores(metric, *scored)
      comparison, *_ = leaderboard.compare_results({task: [run]}, {task: [run]})
      mean = next(x.ours for x in comparison[task] if x.metric == metric)
      assert values.mean() == pytest.approx(mean)


def test_runs_on_other_examples_are_not_compared():
  golds = ["yes", "no", "yes"]
  run = make_run("rte", ["accuracy"], golds, golds)
  other = make_run("rte", ["accuracy"], golds[1:], golds[1:])
  compared, remarks = leaderboard.compare_results(
    {"rte": [run]}, {"rte": [other]}
  )
  assert not compared and "other examples" in remarks[0]
  compared, remarks = leaderboard.compare_results(
    {"rte": [run]}, {"cola": [run]}
  )
  assert not compared and "do not have this task" in remarks[0]


def test_tables_name_the_class_of_f1():
  golds, answers = ["hate", "none"], ["none", "none"]
  run = make_run("own", ["f1"], golds, answers)
  three = make_run("own", ["f1"], ["a", "b", "c"], ["a", "b", "c"])
  for runs, is_named in (([run], True), ([three], False)):
    [table] = leaderboard.make_tables({"own": runs}, {})
    assert ("f1 of none" in str(table)) == is_named


@pytest.mark.parametrize("low_runs", [-10.25, None])
def test_a_comparison_fits_a_terminal_without_cut_words(capsys, low_runs):
  row = Comparison(
    metric="spearman",
    ours=70.0,
    theirs=75.1,
    difference=-5.1,
    low=-12.5,
    high=-0.25,
    low_runs=low_runs,
    high_runs=10.5,
    p=0.0123,
    p_runs=0.5,
  )
  table = leaderboard.make_comparisons_table({"stsb": [row]})
  print_table(table, Console(width=80))
  table = capsys.readouterr().out
  assert "…" not in table
  values = {"spearman", "75.10", "difference", "-12.50,", "-0.25", "0.012"}
  assert values <= {*table.split()}
  assert ("-10.25," in table.split()) == (low_runs is not None)
