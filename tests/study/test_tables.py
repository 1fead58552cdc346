"""Tests the tables of a study."""

import dataclasses

import numpy as np
import pytest

from truenegs_jax.finetune.results import GLUE
from truenegs_jax.robustness.scores import SIDES
from truenegs_jax.study import tables
from truenegs_jax.study.compare import Score
from truenegs_jax.study.tables import Comparison

ARMS = ("baseline", "hc", "hc_glove")
FAILED = (ARMS[2], 2)
PLACES = {
  **{"Tables 3 and 6": "mrpc", "Table 4": "f1"},
  **{"Table 5": "em drop", "language": "nats"},
}


@pytest.fixture(scope="module")
def study():
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
  return Comparison(scores, ARMS, range(3), tasks, range(2))


def find_table(study, title):
  [x] = [x for x in tables.make_tables(study) if x.title.startswith(title)]
  return x


def get_cell(x, label, column, *, is_difference=False):
  """Returns the lines of a cell of an arm, or of its difference below."""
  [i] = [i for i, row in enumerate(x.rows) if row[""] == label]
  row = x.rows[i + is_difference]
  assert not is_difference or row[""] == tables.DIFFERENCE
  return row[column].split("\n")


def test_missing_and_failed_runs_are_shown(study):
  x = find_table(study, "Tables 3 and 6")
  values = [
    y.value
    for y in study.scores
    if (y.arm, y.task) == ("baseline", "mrpc") and y.seed < 3
  ]
  assert len(values) == 6
  assert get_cell(x, "baseline", "mrpc") == [f"{np.mean(values):.2f}"]
  assert get_cell(x, "hc", "rte")[1] == "5/6"
  assert get_cell(x, ARMS[2], "mrpc")[1] == "4/6"
  assert get_cell(x, ARMS[2], "mrpc", is_difference=True)[2] == "2/3"
  for row in ("baseline", "hc"):  # a task without a finished run
    assert get_cell(x, row, "cola") == ["0/6"]
    assert get_cell(x, row, "average of 3") == ["0/18"]
  assert sum("constant" in note for note in x.notes) == 1


def test_all_tables_have_differences_with_intervals(study):
  for title, column in PLACES.items():
    x = find_table(study, title)
    value, half = get_cell(x, "hc", column, is_difference=True)
    ours, theirs = (get_cell(x, y, column)[0] for y in ("hc", "baseline"))
    difference = float(ours) - float(theirs)
    assert float(value) == pytest.approx(difference, abs=0.011)
    assert value[0] in "+-" and half.startswith("±")
    assert any("Intervals count seeds" in y for y in x.notes) == (
      title == "language"
    )
  x = find_table(study, "Table 5")
  shown = ["78.67", "75.67", "3.00", "80.88", "78.51", "2.37"]
  assert [*x.rows[-1].values()] == ["paper, ELECTRA small SR", *shown]
  assert find_table(dataclasses.replace(study, width=768), "SwapSynWordNet")
  iterations, predictions = tables.make_tables(study)[:2]
  assert get_cell(iterations, "paper, BERT base", "100 %") == ["7.07"]
  assert get_cell(predictions, "paper, BERT large", "100 %") == ["1.60"]


@pytest.mark.parametrize("little", [{"seeds": [0]}, {"arms": ["baseline"]}])
def test_studies_with_little_have_tables(study, little):
  shown = tables.make_tables(dataclasses.replace(study, **little))
  assert len(shown) == 6
  for x in shown:
    assert not any("±" in text for row in x.rows for text in row.values())
    assert not any("±" in y or "Intervals" in y for y in x.notes)


@pytest.mark.parametrize(
  ("family", "width", "averages"),
  [
    ("bert", 768, [82.85, 83.45, 83.39]),
    ("bert", 1024, [84.66, 85.05, 85.13]),
    ("electra", 256, [80.36, 81.35, 81.91, 80.54, 81.69]),
    ("electra", 768, [87.66, 88.39, 88.33]),
    ("bert", 384, [80.36, 81.35, 81.91, 80.54, 81.69]),  # of others
  ],
)
def test_rows_of_the_paper(family, width, averages):
  [x] = tables.make_tables(
    Comparison([], ARMS, [0], GLUE, [0], family=family, width=width)
  )
  rows = [row for row in x.rows if row[""].startswith("paper")]
  shown = [float([*row.values()][-1]) for row in rows]
  assert shown == pytest.approx(averages, abs=0.011)
  assert any("probably" in note for note in x.notes)
  others = [note for note in x.notes if "another network" in note]
  assert len(others) == ((family, width) == ("bert", 384))
