"""The report: its tables fit a terminal, its files replace nobody's work."""

import dataclasses
import itertools
import json

import pytest

from support.small_predictions import (
  TOKENS,
  predictions,
  random_predictions,
  random_table,
  rendered,
)
from truenegs_jax.corrections import rates, report
from truenegs_jax.corrections.predict_slots import Lines
from truenegs_jax.runtime.errors import DiskError


def fits(table):
  """The lines of a table as a terminal shows it."""
  text = rendered(table)
  assert "…" not in text and max(map(len, text.splitlines())) <= 80
  return text


def sources_of(text):
  """Source and judge of every line of a printed table."""
  rows = [line.split("│") for line in text.splitlines() if "│" in line]
  return [(source.strip(), judge.strip()) for _, source, judge, *_ in rows]


def test_rates_are_json_and_their_tables_fit_a_terminal():
  p, table = random_predictions(0, 400), random_table(0)
  r = rates.count_corrections(p, table, TOKENS, speech=["noun"] * len(TOKENS))
  assert json.loads(json.dumps(dataclasses.asdict(r)))["of_slots"]["of"] > 900
  assert "noun" in fits(report.render_groups(r.by_speech, "By part of speech"))
  fits(report.render_groups(r.by_frequency, "By frequency"))
  assert r.pairs[0].predicted in fits(report.render_pairs(r.pairs))
  none = rates.count_corrections(predictions([], [], []), table, TOKENS)
  at = [report.Checkpoint(s, s, x) for s, x in ((20, r), (None, none))]
  text = fits(report.render_checkpoints(at, "wordnet"))
  assert f"{100 * r.of_mismatches.rate:.2f} " in text and "-" in text


def test_judgements_go_by_names_without_options():
  glove = "vectors path=glove.6B.50d.txt top=10"
  names = ("wordnet", glove, "omw")
  tables = {name: random_table(i) for i, name in enumerate(names)}
  judgements = rates.compare_sources(
    random_predictions(0, 3000), tables, TOKENS
  )
  assert json.dumps([dataclasses.asdict(j) for j in judgements])
  for golds, by in itertools.product(("all", "shared"), ("occurrence", "pair")):
    text = fits(report.render_agreements(judgements, golds=golds, by=by))
    [j] = [
      j
      for j in judgements
      if (j.source, j.judge, j.golds, j.by) == ("wordnet", "omw", golds, by)
    ]
    assert f"{j.precision.hits:,}/{j.precision.of:,}" in text
    assert f"{j.precision.rate:.2%}" in text and f"{j.kappa:.2f}" in text
    assert f"vectors: {glove}" in text and "wordnet:" not in text
    assert sources_of(text) == list(
      itertools.permutations(("wordnet", "vectors", "omw"), 2)
    )


@pytest.mark.parametrize(
  "names",
  [
    ("pairs path=one.tsv", "pairs path=two.tsv"),
    ("wordnet pos=n | vectors path=a", "omw path=b"),
  ],
)
def test_sources_of_one_name_or_a_long_one_go_by_letters(names):
  tables = {name: random_table(i) for i, name in enumerate(names)}
  judgements = rates.compare_sources(random_predictions(0), tables, TOKENS)
  text = rendered(report.render_agreements(judgements))
  legend = [line.strip() for line in text.splitlines()[-2:]]
  assert legend == [f"A: {names[0]}", f"B: {names[1]}"]
  assert sources_of(text) == [("A", "B"), ("B", "A")]


def findings(sheet):
  p, table = random_predictions(0), random_table(0)
  at = report.Checkpoint(20, 100.0, rates.count_corrections(p, table, TOKENS))
  text = Lines(p.sequences, 10, num_cut=0, num_headings=0, fingerprint="x")
  return report.Findings(text, {"a": table}, {"a": [at]}, (), [], 1, sheet)


def test_a_sheet_that_somebody_fills_in_stays(tmp_path):
  def sheets():
    return {p.name: p.read_bytes() for p in tmp_path.glob("sheet*")}

  report.save_report(findings("drawn\n"), tmp_path, {})
  assert sheets() == {"sheet.csv": b"drawn\n"}
  judged = b"drawn,y \xe9\r\n"  # as a spreadsheet may save it: no UTF-8
  (tmp_path / "sheet.csv").write_bytes(judged)
  for _ in range(2):  # a sheet that is there already is not written again
    written = report.save_report(findings("drawn\n"), tmp_path, {})
    assert written[-1] == tmp_path / "sheet-2.csv"
    assert sheets() == {"sheet.csv": judged, "sheet-2.csv": b"drawn\n"}
  (tmp_path / "sheet-2.csv").write_bytes(judged)
  report.save_report(findings("drawn\n"), tmp_path, {})
  assert sheets()["sheet-2.csv"] == judged
  assert sheets()["sheet-3.csv"] == b"drawn\n"


def test_a_sheet_that_cannot_be_written_costs_no_numbers(tmp_path):
  (tmp_path / "sheet.csv").mkdir()
  with pytest.raises(DiskError, match=r"sheet\.csv"):
    report.save_report(findings("drawn\n"), tmp_path, {"seed": 3})
  results = json.loads((tmp_path / "results.json").read_text())
  assert results["checkpoints"]["a"][0]["step"] == 20 and results["seed"] == 3
