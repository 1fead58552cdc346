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
FAILED = (ARMS[3], 2, "pretrain")
REASON = "exit code 6, 50 % of $x_1"


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
      if (arm, seed) == FAILED[:2]:
        continue
      for run in range(2):
        for task in ("mrpc", "rte"):
          if (arm, seed, task, run) != ("hc", 1, "rte", 1):
            add(arm, seed, task, run, "accuracy", 0.7)
        for metric in ("em", "f1"):
          add(arm, seed, "squad", run, metric, 0.6)
          add(arm, seed, "SwapSynWordNet", run, f"{metric} original", 0.8)
          add(arm, seed, "SwapSynWordNet", run, f"{metric} transformed", 0.7)
      for rate in records.RATES:
        metric = records.correction_metric(rate, 100)
        scores.append(Score(arm, seed, "corrections", None, metric, 1.5))
      scores.append(Score(arm, seed, "language", None, "nats", 3.0 + seed))
  scores = records.add_drops(scores)
  # A run that collapsed and counts; one outside the plan, which does not.
  scores[0] = dataclasses.replace(scores[0], failure="constant")
  scores.append(dataclasses.replace(scores[0], seed=9, value=0.0))
  plan = Plan(
    ARMS, range(3), ("mrpc", "rte", "cola", "squad"), range(2), {FAILED: REASON}
  )
  return scores, plan


@pytest.fixture(scope="module")
def study():
  return make_study()


@pytest.fixture(scope="module")
def layouts(study):
  tables_of_study = tables.make_tables(*study, family="electra", width=256)
  return {x.name: x for x in tables_of_study}


def get_cell(x, row, column):
  """Returns the cell of a row's label and a column's name."""
  [cells] = [y.cells for y in x.rows if y.label == row]
  return cells[list(x.columns).index(column)]


def test_missing_and_failed_runs_are_shown(study, layouts):
  scores, _ = study
  x = layouts["table3"]
  assert get_cell(x, ARMS[0], "mrpc").runs == ""
  assert get_cell(x, "hc", "rte").runs == "5 of 6 fine-tunings"
  for row in (ARMS[3], f"{ARMS[3]} - baseline"):
    assert get_cell(x, row, "mrpc").runs == "2 of 3 seeds"
  for row in ("baseline", "hc - baseline"):  # a task without a finished run
    for column in ("cola", "average of 3"):
      assert get_cell(x, row, column) == layout.Cell(runs="0 of 3 seeds")
  for table in layouts.values():
    if table.name not in ("table6", "power"):
      assert any(REASON in note for note in table.notes), table.name
  assert any("constant" in note for note in x.notes)
  values = [
    y.value
    for y in scores
    if (y.arm, y.task) == ("baseline", "mrpc") and y.seed < 3
  ]
  value = get_cell(x, "baseline", "mrpc").value
  assert value == pytest.approx(np.mean(values)) and len(values) == 6


def test_all_tables_have_differences_with_intervals(layouts):
  assert list(layouts) == [
    "table2_iter",
    "table2_pred",
    "table3",
    "table6",
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
    cell = get_cell(layouts[name], "hc - baseline", column)
    assert cell.bounds[0] <= cell.value <= cell.bounds[1]
  drop, *sides = (
    get_cell(layouts["table5_SwapSynWordNet"], "hc", f"em {side}").value
    for side in ("drop", "original", "transformed")
  )
  assert drop == pytest.approx(sides[0] - sides[1])
  detectable = get_cell(layouts["power"], "hc, squad f1", "detectable").value
  low, high = get_cell(layouts["table4"], "hc - baseline", "f1").bounds
  assert detectable > (high - low) / 2


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
  plan = Plan(ARMS[:3], range(2), tuple(glue.TASKS), [0])
  by_name = {
    x.name: x for x in tables.make_tables([], plan, family=family, width=width)
  }
  rows = [x for x in by_name["table3"].rows if x.kind == layout.PAPER]
  shown = [[cell.value for cell in row.cells[-2:]] for row in rows]
  expected = list(zip(averages, [None, *reductions], strict=True))
  for values, (average, reduction) in zip(shown, expected, strict=True):
    assert values[0] == pytest.approx(average, abs=0.006)
    assert values[1] == (reduction and pytest.approx(reduction, abs=0.06))
  if averages[0] == 80.36:
    last = [row.cells[-2].value for row in by_name["table6"].rows[-2:]]
    assert last == pytest.approx([80.54, 81.69], abs=0.006)


def test_error_reduction_scales_the_difference_of_the_averages():
  values = {"baseline": (60, 62), "hc": (70, 71)}
  scores = [
    Score(arm, seed, "rte", 0, "accuracy", value)
    for arm, pair in values.items()
    for seed, value in enumerate(pair)
  ]
  plan = Plan(["baseline", "hc"], [0, 1], ["rte"], [0])
  x = tables.make_tables(scores, plan, family="electra", width=256)[0]
  *_, difference, share = x.rows[2].cells
  assert (difference.value, share.value) == pytest.approx((9.5, 950 / 39))
  assert share.bounds == pytest.approx([b / 0.39 for b in difference.bounds])


def test_csv_and_json_have_all_numbers(layouts):
  read = list(csv.reader(io.StringIO(layout.to_csv(layouts.values()))))
  assert tuple(read[0]) == layout.CSV_FIELDS
  lines = iter(read[1:])
  for x in layouts.values():
    saved = json.loads(json.dumps(layout.to_json(x)))
    for i, row in enumerate(x.rows):
      for j, (column, cell) in enumerate(
        zip(x.columns, row.cells, strict=True)
      ):
        *names, value, low, high, runs = next(lines)
        assert names == [x.name, row.label, row.kind, column]
        bounds = tuple(float(bound) for bound in (low, high) if bound)
        number = float(value) if value else None
        assert layout.Cell(number, bounds, runs) == cell
        other = saved["rows"][i]["cells"][j]
        assert layout.Cell(**other | {"bounds": (*other["bounds"],)}) == cell
  assert not list(lines)


def test_latex_is_balanced_and_escaped(layouts):
  for x in layouts.values():
    text = layout.to_latex(x)
    assert "50\\%" in text or x.name in ("power", "table6")
    # Without escaped characters and commands, only the syntax is left.
    bare = re.sub(r"\\[#$%&_{}]", "", text)
    commands = set(re.findall(r"\\([a-z]+)", bare))
    assert commands <= {
      *("begin", "end", "caption", "label", "hline", "par", "footnotesize"),
      *("mathbf", "textbackslash", "textasciicircum", "textasciitilde"),
      *("textless", "textgreater"),
    }
    assert bare.count("{") == bare.count("}")
    assert not set(re.sub(r"\\label\{[^}]*\}", "", bare)) & set("#%~^")
    assert bare.isascii()
    lines = [line for line in bare.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 1 + len(x.rows)
    for line in lines:
      assert line.count("&") == len(x.columns)
      assert all(cell.count("$") % 2 == 0 for cell in line.split("&"))
  row = layout.Row("r", layout.DIFFERENCE, [layout.Cell(-1.0, (-2.0, -0.5))])
  bold = layout.to_latex(layout.Layout("t", "T", ["a"], [row]))
  assert r"$\mathbf{-1.00}$ {\footnotesize ($-2.00$, $-0.50$)}" in bold


def test_tables_fit_a_terminal(layouts):
  console = Console(width=100, record=True, file=io.StringIO())
  for x in layouts.values():
    console.print(layout.to_terminal(x))
  text = console.export_text()
  assert "…" not in text and "2 of 3 seeds" in text and REASON in text


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
