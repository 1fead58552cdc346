"""Tables of the report: they fit a terminal and say which source is meant."""

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
  r = rates.count(p, table, TOKENS, speech=["noun"] * len(TOKENS))
  assert json.loads(json.dumps(dataclasses.asdict(r)))["of_slots"]["of"] > 900
  assert "noun" in fits(report.show_groups(r.by_speech, "By part of speech"))
  fits(report.show_groups(r.by_frequency, "By frequency"))
  assert r.pairs[0].predicted in fits(report.show_pairs(r.pairs))
  none = rates.count(predictions([], [], []), table, TOKENS)
  at = [report.Checkpoint(s, s, x) for s, x in ((20, r), (None, none))]
  text = fits(report.show_checkpoints(at, "wordnet"))
  assert f"{100 * r.of_mismatches.rate:.2f} " in text and "-" in text


def test_judgements_go_by_names_without_options():
  glove = "vectors path=glove.6B.50d.txt top=10"
  names = ("wordnet", glove, "omw")
  tables = {name: random_table(i) for i, name in enumerate(names)}
  judgements = rates.compare(random_predictions(0, 3000), tables, TOKENS)
  assert json.dumps([dataclasses.asdict(j) for j in judgements])
  for golds, by in itertools.product(("all", "shared"), ("occurrence", "pair")):
    text = fits(report.show_judgements(judgements, golds=golds, by=by))
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
  judgements = rates.compare(random_predictions(0), tables, TOKENS)
  text = rendered(report.show_judgements(judgements))
  legend = [line.strip() for line in text.splitlines()[-2:]]
  assert legend == [f"A: {names[0]}", f"B: {names[1]}"]
  assert sources_of(text) == [("A", "B"), ("B", "A")]
