"""Tests that tables fit a terminal and files of judges are not replaced."""

import itertools
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
from truenegs_jax.runtime.errors import DiskError


def render_on_terminal(table):
  """Renders a table and asserts that it fits 80 columns."""
  text = render(table)
  assert "…" not in text and max(map(len, text.splitlines())) <= 80
  return text


def parse_labels(text):
  """Returns the source and judge of every row of a rendered table."""
  rows = [line.split("│") for line in text.splitlines() if "│" in line]
  return [(source.strip(), judge.strip()) for _, source, judge, *_ in rows]


def test_tables_of_rates_fit_a_terminal():
  p, table = random_predictions(0, 400), random_table(0)
  classes = ["noun"] * len(TOKENS)
  r = rates.count_corrections(p, table, TOKENS, token_classes=classes)
  by_speech = report.render_groups(r.by_speech, "By part of speech")
  assert "noun" in render_on_terminal(by_speech)
  render_on_terminal(report.render_groups(r.by_frequency, "By frequency"))
  pairs = report.render_pairs(r.pairs)
  assert r.pairs[0].predicted in render_on_terminal(pairs)
  none = rates.count_corrections(make_predictions([], [], []), table, TOKENS)
  values = ((20, 20, r), (None, None, none))
  checkpoints = [report.CheckpointRates(*v) for v in values]
  text = render_on_terminal(report.render_checkpoints(checkpoints, "wordnet"))
  assert f"{100 * r.of_mismatches.rate:.2f} " in text and "-" in text


@pytest.mark.parametrize(
  "steps, rows",
  [
    # Of a run of 162 steps, 6.25 % are 10.125, 12.5 % are 20.25.
    ([10, 81, 120], [("6.25", 0), ("50", 1), ("100", 2)]),
    ([10, 82, 162], [("6.25", 0), ("100", 2)]),
    ([11, 20, 162], [("12.5", 1), ("100", 2)]),
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
  paper["100"] = "7.07 1.41 7.44 1.60"
  assert len(lines) == len(rows)
  for cells, (percent, i) in zip(lines, rows, strict=True):
    words = [cell.strip() for cell in cells]
    assert words[0] == percent and " ".join(words[1:5]) == paper[percent]
    r = checkpoints[i].rates
    shares = (r.of_sequences.rate, r.of_mismatches.rate)
    assert words[5:] == [f"{100 * share:.2f}" for share in shares]


def test_sources_are_labelled_without_options():
  glove = "vectors path=glove.6B.50d.txt top=10"
  names = ("wordnet", glove, "omw")
  tables = {name: random_table(i) for i, name in enumerate(names)}
  p = random_predictions(0, 3000)
  agreements = rates.compare_sources(p, tables, TOKENS)
  for golds in ("all", "shared"):
    grid = report.render_agreements(agreements, golds=golds)
    text = render_on_terminal(grid)
    key = ("wordnet", "omw", golds, "occurrence")
    [a] = [a for a in agreements if (a.source, a.judge, a.golds, a.by) == key]
    assert f"{a.precision.hits:,}/{a.precision.total:,}" in text
    assert f"{a.precision.rate:.2%}" in text and f"{a.kappa:.2f}" in text
    assert f"vectors: {glove}" in text and "wordnet:" not in text
    labels = itertools.permutations(("wordnet", "vectors", "omw"), 2)
    assert parse_labels(text) == list(labels)


@pytest.mark.parametrize(
  "names",
  [
    ("pairs path=one.tsv", "pairs path=two.tsv"),
    ("wordnet pos=n | vectors path=a", "omw path=b"),
  ],
)
def test_sources_with_equal_or_long_names_are_labelled_by_letters(names):
  tables = {name: random_table(i) for i, name in enumerate(names)}
  agreements = rates.compare_sources(random_predictions(0), tables, TOKENS)
  text = render(report.render_agreements(agreements))
  legend = [line.strip() for line in text.splitlines()[-2:]]
  assert legend == [f"A: {names[0]}", f"B: {names[1]}"]
  assert parse_labels(text) == [("A", "B"), ("B", "A")]


def make_findings(sheet=""):
  p, table = random_predictions(0, 400), random_table(0)
  counts = rates.count_corrections(p, table, TOKENS)
  return report.Findings(
    text=Lines(p.sequences, 10, num_cut=0, num_headings=0, fingerprint="x"),
    tables={"a": table},
    checkpoints={"a": [report.CheckpointRates(20, 100.0, counts)]},
    agreements=rates.compare_sources(p, {"a": table, "b": table}, TOKENS),
    shown=[],
    search=cases.Search(1, 0, ("a",), []),
    sheet=sheet,
  )


def test_results_are_json_with_totals_named_of(tmp_path):
  report.save_report(make_findings(), tmp_path, {})
  results = json.loads((tmp_path / "results.json").read_text())
  [checkpoint] = results["checkpoints"]["a"]
  keys = ["rate", "low", "high", "hits", "of"]
  assert list(checkpoint["rates"]["of_slots"]) == keys
  assert checkpoint["rates"]["of_slots"]["of"] > 900
  assert list(results["judgements"][0]["precision"]) == keys


def test_a_sheet_with_judgements_is_not_replaced(tmp_path):
  def read_sheets():
    return {p.name: p.read_bytes() for p in tmp_path.glob("sheet*")}

  report.save_report(make_findings("drawn\n"), tmp_path, {})
  assert read_sheets() == {"sheet.csv": b"drawn\n"}
  judged = b"drawn,y \xe9\r\n"  # not UTF-8, as saved by some spreadsheets
  (tmp_path / "sheet.csv").write_bytes(judged)
  for _ in range(2):  # an equal sheet is not written twice
    written = report.save_report(make_findings("drawn\n"), tmp_path, {})
    assert written[-1] == tmp_path / "sheet-2.csv"
    assert read_sheets() == {"sheet.csv": judged, "sheet-2.csv": b"drawn\n"}
  (tmp_path / "sheet-2.csv").write_bytes(judged)
  report.save_report(make_findings("drawn\n"), tmp_path, {})
  assert read_sheets()["sheet-2.csv"] == judged
  assert read_sheets()["sheet-3.csv"] == b"drawn\n"


def test_numbers_are_saved_if_the_sheet_cannot_be_written(tmp_path):
  (tmp_path / "sheet.csv").mkdir()
  with pytest.raises(DiskError, match=r"sheet\.csv"):
    report.save_report(make_findings("drawn\n"), tmp_path, {"seed": 3})
  results = json.loads((tmp_path / "results.json").read_text())
  assert results["checkpoints"]["a"][0]["step"] == 20 and results["seed"] == 3
