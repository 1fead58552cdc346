"""Tests summaries and comparisons of runs, and published scores."""

import numpy as np
import pytest

from truenegs_jax.finetune import results
from truenegs_jax.finetune.results import GLUE, Result
from truenegs_jax.tasks import scoring


def make_run(task, scores, golds, answers, failure=""):
  """Makes a run with the parts that a comparison reads."""
  labels = sorted(set(golds)) if isinstance(golds[0], str) else []
  dev = {"keys": [*map(str, range(len(golds)))]}
  dev |= {"golds": golds, "answers": answers}
  return Result(
    task=task,
    seed=0,
    scores={"dev": scores},
    answers={"dev": dev},
    failure=failure,
    step=1,
    secs=1.0,
    provenance={"labels": labels, "family": "electra", "width": 256},
  )


def test_a_task_that_is_missing_leaves_no_average():
  scores = dict.fromkeys(GLUE, 80.0)
  assert results.average(scores) == pytest.approx(80.0)
  del scores["rte"]
  assert results.average(scores) is None


@pytest.mark.parametrize(
  ("tasks", "family", "width", "names", "unlike"),
  [
    (GLUE, "bert", 768, ["BERT base", "BERT base HC", "BERT base SR"], ""),
    (["squad"], "electra", 256, ["ELECTRA small", "ELECTRA small HC"], ""),
    (["squad"], "electra", 64, ["ELECTRA small"], "this ELECTRA of 64 units"),
  ],
)
def test_finds_published_models_by_family_and_size(
  tasks, family, width, names, unlike
):
  models, note = results.find_published(tasks, family=family, width=width)
  assert [model.name for model in models][: len(names)] == names
  assert unlike in note and bool(note) == bool(unlike)
  for model in models:
    assert model.note and set(model.scores) <= {*GLUE, *results.SQUAD_SCORES}


def test_tables_have_all_runs_and_the_papers_rows():
  scores = (80.0, 50.0, 84.0, 82.0)
  runs = [
    make_run("rte", {"accuracy": x}, ["yes"], ["no"], "constant" * (x == 50))
    for x in scores
  ]
  assert results.summarize_runs(runs)["accuracy"] == {
    **{"runs": 4, "failed": 1, "median": 81.0, "mean": 74.0},
    **{"low": 50.0, "high": 84.0},
    "sd": pytest.approx(np.std(scores, ddof=1)),
  }
  assert results.summarize_runs(runs[:1])["accuracy"]["sd"] is None
  assert results.median_run(runs).scores["dev"]["accuracy"] == 80
  dev, published = results.make_tables({"rte": runs}, {})
  assert dev.notes == ["! rte, seed 0: constant"]
  ours, paper, *_ = published.rows
  assert (ours["model"], ours["rte"]) == ("these runs", "81.0")
  assert (paper["model"], paper["rte"]) == ("ELECTRA small", "68.5")


@pytest.mark.parametrize("task", ["rte", "squad", "stsb"])
def test_runs_are_compared_by_the_metrics_of_their_task(task):
  rng = np.random.default_rng(0)
  golds = [["a x"], ["b y"]] if task == "squad" else ["yes", "no"]
  golds = golds * 30
  metrics = {"rte": ["accuracy"], "squad": ["em", "f1"]}.get(task, ["spearman"])
  if task == "stsb":
    golds = rng.permutation(60).astype(float).tolist()
  right = [x[0] if task == "squad" else x for x in golds]
  wrong = right[:30] + right[31:] + right[30:31]  # half of them
  scores = dict.fromkeys(metrics, 0.0)
  runs = [make_run(task, scores, golds, x) for x in (right, right, wrong)]
  compared, _ = results.compare_results({task: runs[:2]}, {task: runs[2:]})
  assert [x.metric for x in compared[task]] == metrics
  for x in compared[task]:
    assert x.ours == pytest.approx(100) and x.low_runs is None
    assert x.difference == x.ours - x.theirs > 0 and x.low > 0 and x.p < 0.01
    run = runs[2].answers["dev"]
    values = scoring.example_scores(x.metric, run["golds"], run["answers"])
    assert values.mean() == pytest.approx(x.theirs)
  same, _ = results.compare_results({task: runs[1:2]}, {task: runs[:1]})
  assert {(x.difference, x.low, x.high, x.p) for x in same[task]} == {
    (0, 0, 0, 1)
  }


def test_runs_on_other_examples_are_not_compared():
  golds = ["yes", "no", "yes"]
  run = make_run("rte", {"accuracy": 0.0}, golds, golds)
  other = make_run("rte", {"accuracy": 0.0}, golds[1:], golds[1:])
  for theirs, reason in (
    ({"rte": [other]}, "other examples"),
    ({"cola": [run]}, "do not have this task"),
  ):
    compared, [remark] = results.compare_results({"rte": [run]}, theirs)
    assert not compared and reason in remark


def test_tables_name_the_class_of_f1():
  two = make_run("own", {"f1": 0.0}, ["hate", "none"], ["none", "none"])
  three = make_run("own", {"f1": 0.0}, ["a", "b", "c"], ["a", "b", "c"])
  for run, name in ((two, "f1 of none"), (three, "f1")):
    [table] = results.make_tables({"own": [run]}, {})
    assert table.rows[0]["metric"] == name
