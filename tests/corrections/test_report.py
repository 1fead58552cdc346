"""Tests that tables fit a terminal, and the numbers that are saved."""

import json

import pytest

from support.small_predictions import (
  TOKENS,
  make_predictions,
  random_predictions,
  random_table,
  render,
)
from truenegs_jax.corrections import cases, rates, report
from truenegs_jax.corrections.predict_slots import Lines


def render_on_terminal(table):
  """Renders a table and asserts that it fits 80 columns."""
  text = render(table)
  assert "…" not in text and max(map(len, text.splitlines())) <= 80
  return text


def test_tables_of_rates_fit_a_terminal():
  p, table = random_predictions(0, 400), random_table(0)
  classes = ["noun"] * len(TOKENS)
  r = rates.count_corrections(p, table, TOKENS, token_classes=classes)
  assert "noun" in render_on_terminal(report.render_classes(r.by_speech))
  pairs = report.render_pairs(r.pairs)
  assert r.pairs[0].predicted in render_on_terminal(pairs)
  none = rates.count_corrections(make_predictions([], [], []), table, TOKENS)
  values = ((20, 20, r), (None, None, none))
  checkpoints = [report.CheckpointRates(*v) for v in values]
  text = render_on_terminal(report.render_checkpoints(checkpoints, "wordnet"))
  assert f"{100 * r.mismatch_rate.rate:.2f} " in text and "-" in text


@pytest.mark.parametrize(
  "steps, rows",
  [
    # Of a run of 162 steps, 6.25 % are 10.125, 12.5 % are 20.25.
    ([10, 81, 120], [("6.25", 0), ("50", 1), ("100", 2)]),
    ([10, 82, 162], [("6.25", 0), ("100", 2)]),
    ([11, 20, 162], [("12.5", 1), ("100", 2)]),
    ([129, 130, 162], [("80", 1), ("100", 2)]),
    ([None], [("100", 0)]),
  ],
)
def test_the_papers_table_2_is_beside_equal_shares_of_steps(steps, rows):
  checkpoints = []
  for i, step in enumerate(steps):
    p, table = random_predictions(i, 400), random_table(i)
    r = rates.count_corrections(p, table, TOKENS)
    percent = step and step / 1.62
    checkpoints.append(report.CheckpointRates(step, percent, r))
  text = render_on_terminal(report.render_table_2(checkpoints, "wordnet"))
  lines = [line.split("│")[1:-1] for line in text.splitlines() if "│" in line]
  paper = {"6.25": "6.90 1.31 7.46 1.50", "50": "7.05 1.36 7.46 1.56"}
  paper["12.5"] = "6.96 1.34 7.58 1.55"
  paper["80"] = "7.06 1.40 7.38 1.57"
  paper["100"] = "7.07 1.41 7.44 1.60"
  assert len(lines) == len(rows)
  for cells, (percent, i) in zip(lines, rows, strict=True):
    words = [cell.strip() for cell in cells]
    assert words[0] == percent and " ".join(words[1:5]) == paper[percent]
    r = checkpoints[i].rates
    shares = (r.sequence_rate.rate, r.mismatch_rate.rate)
    assert words[5:] == [f"{100 * share:.2f}" for share in shares]


def test_agreements_fit_a_terminal_with_long_names():
  names = ("wordnet", "vectors path=glove.6B.50d.txt top=10", "omw")
  tables = {name: random_table(i) for i, name in enumerate(names)}
  agreements = rates.compare_sources(
    random_predictions(0, 3000), tables, TOKENS
  )
  for golds in ("all", "shared"):
    grid = report.render_agreements(agreements, golds=golds)
    text = render_on_terminal(grid)
    key = ("wordnet", "omw", golds)
    [a] = [a for a in agreements if (a.source, a.judge, a.golds) == key]
    assert f"{a.precision.hits:,}/{a.precision.total:,}" in text
    assert f"{a.precision.rate:.2%}" in text


def test_results_are_json_with_totals_named_of(tmp_path):
  p, table = random_predictions(0, 400), random_table(0)
  counts = rates.count_corrections(p, table, TOKENS)
  findings = report.Findings(
    text=Lines(p.sequences, 10, num_cut=0, num_headings=0, fingerprint="x"),
    tables={"a": table},
    checkpoints={"a": [report.CheckpointRates(20, 100.0, counts)]},
    agreements=rates.compare_sources(p, {"a": table, "b": table}, TOKENS),
    search=cases.Search(1, 0, ("a",), []),
  )
  report.save_report(findings, tmp_path, {"seed": 3})
  results = json.loads((tmp_path / "results.json").read_text())
  [checkpoint] = results["checkpoints"]["a"]
  keys = ["rate", "low", "high", "hits", "of"]
  assert list(checkpoint["rates"]["slot_rate"]) == keys
  assert checkpoint["rates"]["slot_rate"]["of"] > 900
  assert list(results["judgements"][0]["precision"]) == keys
  assert checkpoint["step"] == 20 and results["seed"] == 3
