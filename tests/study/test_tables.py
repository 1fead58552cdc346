"""Tests the tables of a study and their renderings."""

import csv
import dataclasses
import functools
import io

import numpy as np
import pytest
from scipy import stats

from support.json_readers import RESULT
from support.small_predictions import random_predictions, random_table
from truenegs_jax.finetune.results import GLUE, Result
from truenegs_jax.pretrain import cases
from truenegs_jax.pretrain.cases import CheckpointRates, find_table_2
from truenegs_jax.robustness.scores import SIDES
from truenegs_jax.study import run as study_run
from truenegs_jax.study import tables
from truenegs_jax.study.tables import Comparison, Score
from truenegs_jax.tasks import scoring

ARMS = ("baseline", "hc", "hc_glove", "my_arm {50%} & #1 ~^\\<")
FAILED = (ARMS[3], 2)
make_score = functools.partial(Score, "hc", 1)


def make_study():
  """Makes scores of 3 seeds and 2 fine-tunings; some runs are missing."""
  rng = np.random.default_rng(0)
  scores = []

  def add(arm, seed, task, run, metric, mean):
    correct_N = 100.0 * (rng.random(40) < mean)
    value = float(correct_N.mean())
    scores.append(Score(arm, seed, task, run, metric, value, correct_N))

  for arm in ARMS:
    for seed in range(3):
      if (arm, seed) == FAILED:
        continue
      for run in range(2):
        for task in ("mrpc", "rte"):
          if (arm, seed, task, run) != ("hc", 1, "rte", 1):
            add(arm, seed, task, run, "accuracy", 0.7)
        for metric in ("em", "f1"):
          add(arm, seed, "squad", run, metric, 0.6)
          for side, mean in zip(SIDES, (0.8, 0.7, 0.1), strict=True):
            add(arm, seed, "SwapSynWordNet", run, f"{metric} {side}", mean)
      for rate in tables.RATES:
        metric = tables.correction_metric(rate, 100)
        scores.append(Score(arm, seed, "corrections", None, metric, 1.5))
      scores.append(Score(arm, seed, "language", None, "nats", 3.0 + seed))
  # A run that collapsed and counts; one outside the plan, which does not.
  scores[0] = dataclasses.replace(scores[0], failure="constant")
  scores.append(dataclasses.replace(scores[0], seed=9, value=0.0))
  tasks = "mrpc", "rte", "cola", "squad"
  paper = {"paper, small": {"em": (80.0, 74.0), "f1": (85.0, 80.0)}}
  return Comparison(
    scores, ARMS, range(3), tasks, range(2), paper={"SwapSynWordNet": paper}
  )


@pytest.fixture(scope="module")
def study():
  return make_study()


@pytest.fixture(scope="module")
def layouts(study):
  return {x.name: x for x in tables.make_tables(study)}


def get_cell(x, row, column, kind=tables.ARM):
  """Returns the cell of a row's label and a column's name."""
  [cells] = [y.cells for y in x.rows if (y.label, y.kind) == (row, kind)]
  return cells[list(x.columns).index(column)]


def test_missing_and_failed_runs_are_shown(study, layouts):
  x = layouts["table3"]
  assert get_cell(x, ARMS[0], "mrpc").runs == ""
  assert get_cell(x, "hc", "rte").runs == "5/6"
  assert get_cell(x, ARMS[3], "mrpc").runs == "4/6"
  assert get_cell(x, ARMS[3], "mrpc", tables.DIFFERENCE).runs == "2/3"
  for row in ("baseline", "hc"):  # a task without a finished run
    for column in ("cola", "average of 3"):
      cell = get_cell(x, row, column)
      assert cell.value is None and cell.runs.startswith("0/")
  assert any("constant" in note for note in x.notes)
  values = [
    y.value
    for y in study.scores
    if (y.arm, y.task) == ("baseline", "mrpc") and y.seed < 3
  ]
  value = get_cell(x, "baseline", "mrpc").value
  assert value == pytest.approx(np.mean(values)) and len(values) == 6


def test_all_tables_have_differences_with_intervals(study, layouts):
  assert list(layouts) == [
    "table2_iter",
    "table2_pred",
    "table3",
    "table4",
    "table5_SwapSynWordNet",
    "language",
  ]
  for name, column in {
    "table3": "mrpc",
    "table4": "f1",
    "table5_SwapSynWordNet": "em drop",
    "language": "nats",
  }.items():
    x = layouts[name]
    cell = get_cell(x, "hc", column, tables.DIFFERENCE)
    ours, theirs = (get_cell(x, y, column).value for y in ("hc", "baseline"))
    assert cell.value == pytest.approx(ours - theirs)
    assert cell.half_width >= 0
  x = layouts["table5_SwapSynWordNet"]
  papers = [row.cells for row in x.rows if row.kind == tables.PAPER]
  for before, after, drop in (cells[:3] for cells in papers):
    assert drop.value == pytest.approx(before.value - after.value)
  assert len(papers) == 1


def test_studies_with_little_have_tables(study):
  one_seed = dataclasses.replace(study, seeds=[0])
  for x in tables.make_tables(one_seed):
    cells = [y for row in x.rows for y in row.cells]
    assert all(y.half_width is None for y in cells)
  one_arm = dataclasses.replace(study, arms=["baseline"])
  for x in tables.make_tables(one_arm):
    assert {row.kind for row in x.rows} <= {tables.ARM, tables.PAPER}
    assert not any("±" in y or "Intervals" in y for y in x.notes)
  assert tables.make_tables(Comparison([], ARMS, [0], [], [0])) == []


@pytest.mark.parametrize(
  ("family", "width", "averages"),
  [
    ("bert", 768, [82.85, 83.45, 83.39]),
    ("bert", 1024, [84.66, 85.05, 85.13]),
    ("electra", 256, [80.36, 81.35, 81.91, 80.54, 81.69]),  # with table 6
    ("bert", 384, [80.36, 81.35, 81.91, 80.54, 81.69]),  # has no rows
  ],
)
def test_rows_of_the_paper(family, width, averages):
  [x] = tables.make_tables(
    Comparison([], ARMS[:3], [0], GLUE, [0], family=family, width=width)
  )
  rows = [row for row in x.rows if row.kind == tables.PAPER]
  shown = [row.cells[-1].value for row in rows]
  assert shown == pytest.approx(averages, abs=0.006)
  assert any("probably" in note for note in x.notes)
  others = [note for note in x.notes if "another network" in note]
  assert len(others) == ((family, width) == ("bert", 384))


def test_csv_has_all_numbers(layouts):
  read = list(csv.reader(io.StringIO(tables.to_csv(layouts.values()))))
  assert tuple(read[0]) == tables.CSV_FIELDS
  expected = [
    ([x.name, row.label, row.kind, column], cell)
    for x in layouts.values()
    for row in x.rows
    for column, cell in zip(x.columns, row.cells, strict=True)
  ]
  for (*names, value, half, runs), (place, cell) in zip(
    read[1:], expected, strict=True
  ):
    numbers = (float(text) if text else None for text in (value, half))
    assert names == place and tables.Cell(*numbers, runs) == cell


def test_results_of_robustness_have_scores_of_examples():
  right, wrong = "blue sea", "hill"
  answers = {
    "original": [[right] * 4, [right] * 3 + ["blue"]],
    "transformed": [[right, wrong] * 2, [wrong] * 4],
  }
  means = {"original": (100, 75), "transformed": (50, 0), "drop": (50, 75)}
  models = {
    str(i): {
      "task": "squad",
      "seed": 5 + i,
      "scores": {f"s {k}": {"em": x[i]} for k, x in means.items()},
      "answers": {
        f"s {k}": {"golds": [[right]] * 4, "answers": x[i]}
        for k, x in answers.items()
      },
    }
    for i in range(2)
  }
  sets = {"s": {"title": "S", "variants": []}}
  scores = study_run.read_robustness(make_score, {"runs": models, "sets": sets})
  by_key = {(x.metric, x.finetune_seed): x for x in scores}
  assert len(by_key) == len(scores) == 2 * 3
  assert by_key["em drop", 5].value == 50 and by_key["em drop", 6].value == 75
  np.testing.assert_array_equal(
    by_key["em drop", 5].correct_N, [0, 100, 0, 100]
  )
  for x in scores:
    assert x.correct_N.mean() == pytest.approx(x.value) and x.task == "S"


@pytest.mark.parametrize("metric", ["accuracy", "matthews", "spearman"])
def test_the_scores_of_examples_have_the_mean_and_variance_of_the_metric(
  metric,
):
  rng = np.random.default_rng(0)
  gold_N = rng.random(200)
  answer_N = gold_N + 0.3 * rng.normal(size=200)
  if metric != "spearman":
    gold_N, answer_N = ((x > 0.4).astype(int) for x in (gold_N, answer_N))
  values = RESULT | {
    "task": "rte",
    "scores": {"dev": scoring.score_answers([metric], [*gold_N], [*answer_N])},
    "answers": {"dev": {"golds": [*gold_N], "answers": [*answer_N]}},
    "failure": "collapsed",
    "provenance": {"labels": [0, 1] if metric != "spearman" else []},
  }
  [score] = study_run.read_finetuning(make_score, Result(**values))
  assert score.key == ("rte", metric) and score.failure == "collapsed"
  assert score.correct_N.mean() == pytest.approx(score.value)
  scores = scoring.score_runs([metric], [*gold_N], [answer_N])[metric]
  resampled_R = scores.draw(rng.integers(200, size=(4000, 200)))[0]
  assert stats.sem(score.correct_N) == pytest.approx(resampled_R.std(), rel=0.1)


def test_results_of_corrections_become_rows_of_table_2():
  p, table = random_predictions(0, 400), random_table(0)
  r = cases.count_corrections(p, table)
  # Of a run of 162 steps, 6.25 % are 10.125, 12.5 % are 20.25.
  steps = [(10, 10 / 1.62), (21, 21 / 1.62), (162, 100.0)]
  assert find_table_2(steps) == {6.25: 0, 100.0: 2}
  checkpoints = [CheckpointRates(*x, r) for x in steps]
  saved = [dataclasses.asdict(x) for x in checkpoints]
  scores = study_run.read_corrections(make_score, {"checkpoints": saved})
  assert [x.metric for x in scores] == [
    "sequence_rate at 6.25 %",
    "mismatch_rate at 6.25 %",
    "sequence_rate at 100 %",
    "mismatch_rate at 100 %",
  ]
  assert scores[3].value == 100 * r.mismatch_rate.rate
