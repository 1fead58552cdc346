"""Tests the tables of a study and their four renderings."""

import csv
import dataclasses
import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

from support.small_predictions import TOKENS, random_predictions, random_table
from truenegs_jax.corrections import rates
from truenegs_jax.corrections.report import CheckpointRates, find_table_2
from truenegs_jax.robustness import report as robustness_report
from truenegs_jax.robustness.eval_set import EvalSet
from truenegs_jax.robustness.scores import estimate, score_set
from truenegs_jax.study import layout, records, tables
from truenegs_jax.study.records import Plan, Score
from truenegs_jax.tasks import glue, squad
from truenegs_jax.tasks.squad import Question

ARMS = ("baseline", "hc", "hc_glove", "my_arm {50%} & #1 ~^\\<")
FAILED = (ARMS[3], 2)
REASON = "pretrain: exit code 6, 50 % of $x_1"
TASKS = (
  *("mrpc", "rte", "cola", "squad"),
  *("corrections", "robustness", "language"),
)


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
          for side, mean in zip(
            robustness_report.SIDES, (0.8, 0.7, 0.1), strict=True
          ):
            add(arm, seed, "SwapSynWordNet", run, f"{metric} {side}", mean)
      for rate in records.RATES:
        metric = records.correction_metric(rate, 100)
        scores.append(Score(arm, seed, "corrections", None, metric, 1.5))
      scores.append(Score(arm, seed, "language", None, "nats", 3.0 + seed))
  # A run that collapsed and counts; one outside the plan, which does not.
  scores[0] = dataclasses.replace(scores[0], failure="constant")
  scores.append(dataclasses.replace(scores[0], seed=9, value=0.0))
  failures = {(*FAILED, task): REASON for task in TASKS}
  plan = Plan(ARMS, range(3), TASKS[:4], range(2), failures)
  return scores, plan


@pytest.fixture(scope="module")
def study():
  return make_study()


@pytest.fixture(scope="module")
def layouts(study):
  return {x.name: x for x in tables.make_tables(*study)}


def get_cell(x, row, column, kind=layout.ARM):
  """Returns the cell of a row's label and a column's name."""
  [cells] = [y.cells for y in x.rows if (y.label, y.kind) == (row, kind)]
  return cells[list(x.columns).index(column)]


def test_missing_and_failed_runs_are_shown(study, layouts):
  scores, _ = study
  x = layouts["table3"]
  assert get_cell(x, ARMS[0], "mrpc").runs == ""
  assert get_cell(x, "hc", "rte").runs == "5/6"
  assert get_cell(x, ARMS[3], "mrpc").runs == "4/6"
  assert get_cell(x, ARMS[3], "mrpc", layout.DIFFERENCE).runs == "2/3"
  for row in ("baseline", "hc"):  # a task without a finished run
    for column in ("cola", "average of 3"):
      cell = get_cell(x, row, column)
      assert cell.value is None and cell.runs.startswith("0/")
  for table in layouts.values():
    if table.name != "power":
      assert sum(REASON in note for note in table.notes) == 1, table.name
  assert any("constant" in note for note in x.notes)
  values = [
    y.value
    for y in scores
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
    "power",
  ]
  for name, column in {
    "table3": "mrpc",
    "table4": "f1",
    "table5_SwapSynWordNet": "em drop",
    "language": "nats",
  }.items():
    x = layouts[name]
    cell = get_cell(x, "hc", column, layout.DIFFERENCE)
    ours, theirs = (get_cell(x, y, column).value for y in ("hc", "baseline"))
    assert cell.value == pytest.approx(ours - theirs)
    assert cell.half_width >= 0
  detectable = get_cell(layouts["power"], "hc, squad f1", "detectable").value
  cell = get_cell(layouts["table4"], "hc", "f1", layout.DIFFERENCE)
  assert detectable > cell.half_width


def test_studies_with_little_have_tables(study):
  scores, plan = study
  one_seed = dataclasses.replace(plan, seeds=[0])
  tables_of_seed = tables.make_tables(scores, one_seed)
  for x in tables_of_seed:
    cells = [y for row in x.rows for y in row.cells]
    assert all(y.half_width is None for y in cells) and x.name != "power"
    assert "Differences of one seed have no interval." in x.notes
  one_arm = dataclasses.replace(plan, arms=["baseline"])
  for x in tables.make_tables(scores, one_arm):
    assert {row.kind for row in x.rows} <= {layout.ARM, layout.PAPER}
    assert not any("±" in y or "Intervals" in y for y in x.notes)
  nothing = dataclasses.replace(plan, tasks=[])
  assert tables.make_tables([], nothing) == []


@pytest.mark.parametrize(
  ("family", "width", "averages", "reductions"),
  [
    ("bert", 768, [82.85, 83.45, 83.39], [3.5, 3.1]),  # footnote 8: 3.6
    ("bert", 1024, [84.66, 85.05, 85.13], [2.5, 3.0]),  # footnote 8: 2.3
    ("electra", 256, [80.36, 81.35, 81.91], [5.0, 7.9]),
    ("bert", 384, [80.36, 81.35, 81.91], [5.0, 7.9]),  # has no rows
  ],
)
def test_rows_and_error_reductions_of_the_paper(
  family, width, averages, reductions
):
  plan = Plan(ARMS[:3], [0], tuple(glue.TASKS), [0], family=family, width=width)
  [x] = tables.make_tables([], plan)
  rows = [row for row in x.rows if row.kind == layout.PAPER]
  shown = [[cell.value for cell in row.cells[-2:]] for row in rows]
  expected = list(zip(averages, [None, *reductions], strict=True))
  if averages[0] == 80.36:
    expected += [(80.54, 0.9), (81.69, 6.7)]  # of table 6
  for values, (average, reduction) in zip(shown, expected, strict=True):
    assert values[0] == pytest.approx(average, abs=0.006)
    assert values[1] == (reduction and pytest.approx(reduction, abs=0.06))
  assert any("probably" in note for note in x.notes)


def test_error_reduction_scales_the_difference_of_the_averages():
  values = {"baseline": (60, 62), "hc": (70, 71)}
  scores = [
    Score(arm, seed, "rte", 0, "accuracy", value)
    for arm, pair in values.items()
    for seed, value in enumerate(pair)
  ]
  plan = Plan(["baseline", "hc"], [0, 1], ["rte"], [0])
  x = tables.make_tables(scores, plan)[0]
  *_, difference, share = x.rows[2].cells
  assert (difference.value, share.value) == pytest.approx((9.5, 950 / 39))
  assert share.half_width == pytest.approx(difference.half_width / 0.39)


def test_csv_and_json_have_all_numbers(layouts):
  read = list(csv.reader(io.StringIO(layout.to_csv(layouts.values()))))
  assert tuple(read[0]) == layout.CSV_FIELDS
  lines = iter(read[1:])
  for x in layouts.values():
    saved = json.loads(json.dumps(dataclasses.asdict(x)))
    for i, row in enumerate(x.rows):
      for j, (column, cell) in enumerate(
        zip(x.columns, row.cells, strict=True)
      ):
        *names, value, half, runs = next(lines)
        assert names == [x.name, row.label, row.kind, column]
        numbers = (float(text) if text else None for text in (value, half))
        assert layout.Cell(*numbers, runs) == cell
        assert layout.Cell(**saved["rows"][i]["cells"][j]) == cell
  assert not list(lines)


def test_latex_is_balanced_and_escaped(layouts):
  for x in layouts.values():
    text = layout.to_latex(x)
    assert "50\\%" in text
    # Without escaped characters and commands, only the syntax is left.
    bare = re.sub(r"\\[#$%&_{}]", "", text)
    commands = set(re.findall(r"\\([a-z]+)", bare))
    assert commands <= {
      *("begin", "end", "caption", "label", "hline", "par", "small", "pm"),
      *("centering", "setlength", "tabcolsep"),
      *("mathbf", "textbackslash", "textasciicircum", "textasciitilde"),
      *("textless", "textgreater"),
    }
    assert bare.count("{") == bare.count("}")
    assert not set(re.sub(r"\\label\{[^}]*\}", "", bare)) & set("#%~^")
    lines = [line for line in bare.splitlines() if line.endswith(r"\\")]
    assert "".join(lines).isascii() and len(lines) > len(x.rows)
    for line in lines:
      assert line.count("&") == len(x.columns)
      assert all(cell.count("$") % 2 == 0 for cell in line.split("&"))
  cells = [layout.Cell(-1.0, 0.5), layout.Cell(1.0, 2.0)]
  row = layout.Row("r", layout.DIFFERENCE, cells)
  bold = layout.to_latex(layout.Layout("t", "T", ["a", "b"], [row]))
  assert r"difference & $\mathbf{-1.00}$ & $+1.00$ \\" in bold
  assert r" & $\pm 0.50$ & $\pm 2.00$ \\" in bold


def test_tables_fit_a_terminal(layouts):
  console = Console(width=80, record=True, file=io.StringIO())
  for x in layouts.values():
    console.print(layout.to_terminal(x))
  text = console.export_text()
  assert "…" not in text and "2/3" in text and REASON in text


def test_results_of_corrections_become_rows_of_table_2():
  p, table = random_predictions(0, 400), random_table(0)
  r = rates.count_corrections(p, table, TOKENS)
  # Of a run of 162 steps, 6.25 % are 10.125, 12.5 % are 20.25.
  steps = [(10, 10 / 1.62), (21, 21 / 1.62), (162, 100.0)]
  assert find_table_2(steps) == {6.25: 0, 100.0: 2}
  checkpoints = [CheckpointRates(*x, r) for x in steps]
  saved = {"wordnet": [dataclasses.asdict(x) for x in checkpoints]}
  scores = records.read_corrections("hc", 1, {"checkpoints": saved})
  assert [x.metric for x in scores] == [
    "of_sequences at 6.25 %",
    "of_mismatches at 6.25 %",
    "of_sequences at 100 %",
    "of_mismatches at 100 %",
  ]
  assert scores[3].value == 100 * r.of_mismatches.rate


def test_results_of_robustness_have_scores_of_examples():
  questions = [
    Question(str(i), "q", "blue sea", (("blue sea", 0),), "") for i in range(4)
  ]
  examples = EvalSet("s", "S", questions, questions, {})
  right, wrong = "blue sea", "hill"
  answers = {
    "original": [[right] * 4, [right] * 3 + ["blue"]],
    "transformed": [[right, wrong] * 2, [wrong] * 4],
  }
  estimates = estimate(score_set(examples, squad.TASK, answers))
  result = robustness_report.SetResult({"m": estimates}, {"m": answers}, None)
  saved = {
    "task": "squad",
    "models": {"m": {"folders": [], "seeds": [5, 6]}},
    "sets": {"s": robustness_report.to_json(examples, result)},
  }
  scores = records.read_robustness("hc", 1, json.loads(json.dumps(saved)))
  by_key = {(x.metric, x.finetune_seed): x for x in scores}
  assert len(by_key) == len(scores) == 2 * 3 * 2
  assert by_key["em drop", 5].value == 50 and by_key["em drop", 6].value == 75
  np.testing.assert_array_equal(
    by_key["em drop", 5].correct_N, [0, 100, 0, 100]
  )
  for x in scores:
    assert x.correct_N.mean() == pytest.approx(x.value) and x.task == "S"
