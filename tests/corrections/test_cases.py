"""Tests cases and sheets of corrections on small predictions."""

import csv
import dataclasses
import io
import types

import numpy as np
import pytest
from rich.console import Console

from support import mini_wordnet, tiny
from support.small_predictions import (
  TOKENS,
  make_predictions,
  random_predictions,
  random_table,
  render,
)
from truenegs_jax.corrections import cases as cases_lib
from truenegs_jax.data.tokens.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.synonyms.table import SynonymTable

WORDS = [f"w{i}" for i in range(5, tiny.V - 1)]
TOKENIZER = make_tokenizer([*SPECIALS, *WORDS, "##ly"], lowercase=True)


def predict(rows, slots, tokens=TOKENIZER.vocab):
  """Builds predictions of slots: (sequence, position, predicted word)."""
  ids = tokens.index
  sequences = [
    np.array([tiny.CLS, *map(ids, row.split()), tiny.SEP]) for row in rows
  ]
  positions, predicted = [x[:2] for x in slots], [ids(x[2]) for x in slots]
  p = make_predictions(sequences, positions, predicted)
  probability_M = np.linspace(0.9, 0.1, len(slots)).astype(np.float32)
  return dataclasses.replace(p, probability_M=probability_M)


PREDICTIONS = predict(
  ("w5 w6 ##ly w7 w5", "w5 w8", "w9 " * 60 + "w5 " + "w10 " * 60),
  [
    (0, 1, "w8"),  # corrected
    (0, 5, "w8"),  # the same pair again
    (0, 2, "w7"),  # wrong
    (1, 1, "w5"),  # right
    (1, 2, "w9"),  # corrected, another pair
    (2, 61, "w8"),  # corrected, the first pair
  ],
)
PAIRS = [("w5", "w8"), ("w5", "w6"), ("w8", "w9")]
# With include_self, correct predictions are no corrections, either.
TABLE = SynonymTable.from_pairs(
  PAIRS, TOKENIZER.vocab, source="x", include_self=True
)


OTHER = SynonymTable.from_pairs([("w6", "w7")], TOKENIZER.vocab, source="y")


def search(p=PREDICTIONS, only="", limit=10, tables=None, **options):
  return cases_lib.choose_cases(
    p,
    tables or {"x": TABLE},
    TOKENIZER,
    only=cases_lib.parse_filter(only, TOKENIZER),
    limit=limit,
    **options,
  )


def choose(*args, **kwargs):
  return search(*args, **kwargs).cases


def read_sheet(p, tables, tokenizer=TOKENIZER, *, size=200, seed=0):
  text = cases_lib.build_sheet(p, tables, tokenizer, size=size, seed=seed)
  header, *rows = csv.reader(io.StringIO(text))
  assert len(header) == 6 and header[1:4] == ["sentence", "gold", "prediction"]
  return rows


def test_cases_of_different_pairs_come_first():
  first, *others = choose()
  assert first == cases_lib.Case(
    sentence="[MASK] w6ly w7 w5",
    gold="w5",
    prediction="w8",
    probability=pytest.approx(0.9),
    synonyms=("w5", "w6", "w8"),
    verdicts={"x": "corrected"},
    count=3,
  )
  assert [(c.gold, c.prediction, c.sentence[:12]) for c in others] == [
    ("w8", "w9", "w5 [MASK]"),
    ("w5", "w8", "w5 w6ly w7 ["),
    ("w5", "w8", "w9 w9 w9 w9 "),
  ]
  assert choose(limit=2) == [first, others[0]]


@pytest.mark.parametrize(
  "only, verdicts",
  [
    ("W5:W8", ["corrected"] * 3),  # the vocabulary is in lower case
    ("w5", ["corrected", "right", "corrected", "corrected"]),
    ("w6, w8:w9", ["wrong", "corrected"]),
    ("w5:w5", ["right"]),
    ("w8:w5", []),
  ],
)
def test_a_filter_includes_every_verdict(only, verdicts):
  cases = choose(only=only)
  assert [case.verdict for case in cases] == verdicts
  printed = io.StringIO()
  Console(file=printed, width=120).print(cases_lib.render_cases(cases, 6))
  shows_verdicts = set(verdicts) not in ({"corrected"}, set())
  assert ("verdict" in printed.getvalue()) == shows_verdicts
  for verdict in verdicts if shows_verdicts else ["orrections"]:
    assert verdict in printed.getvalue()
  assert ("No corrections found" in printed.getvalue()) == (not cases)


def test_cases_of_the_second_source_only_have_both_verdicts():
  result = search(tables={"x": TABLE, "y": OTHER})
  assert result.sources == ("x", "y") and result.searched == 6
  assert result.corrected == len(result.cases) == 5
  [case] = [c for c in result.cases if c.verdict != "corrected"]
  assert (case.gold, case.prediction, case.count) == ("w6", "w7", 1)
  assert case.verdicts == {"x": "wrong", "y": "corrected"}
  assert case.synonyms == ("w7",)
  others = [c for c in result.cases if c is not case]
  assert {tuple(c.verdicts.values()) for c in others} == {
    ("corrected", "wrong")
  }
  [right] = choose(only="w5:w5", tables={"x": TABLE, "y": OTHER})
  assert right.verdicts == {"x": "right", "y": "right"}
  assert right.synonyms == ("w5", "w6", "w8") and right.count == 0


@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_searching_in_batches_finds_the_same_cases(limit):
  tables = {"a": random_table(0), "b": random_table(1)}
  p = random_predictions(0, 400)
  vocab = [*TOKENS, "[MASK]"]
  tokenizer = types.SimpleNamespace(vocab=vocab, mask=len(TOKENS))
  options = dict(limit=limit, token_classes=[f"the {x}" for x in TOKENS])
  at_once = cases_lib.choose_cases(p, tables, tokenizer, **options)
  finder = cases_lib.CaseFinder(tables, tokenizer, **options)
  for chunk_N in np.array_split(np.arange(len(p.gold_M)), 5):
    fields = [f.name for f in dataclasses.fields(p) if f.name.endswith("_M")]
    arrays = {name: getattr(p, name)[chunk_N] for name in fields}
    finder.add(dataclasses.replace(p, **arrays))
  assert finder.finish() == at_once
  corrected = [p.corrected_M(table) for table in tables.values()]
  assert at_once.corrected == np.any(corrected, axis=0).sum() > 50
  pairs = {(c.gold, c.prediction): c.count for c in at_once.cases}
  first = at_once.cases[: len(pairs)]  # different pairs come first
  assert len(at_once.cases) == min(limit, at_once.corrected)
  assert pairs == {(c.gold, c.prediction): c.count for c in first}
  assert all(c.part_of_speech == f"the {c.gold}" for c in first)
  if limit > at_once.corrected:
    assert sum(pairs.values()) == at_once.corrected > len(pairs)


HOUSE = cases_lib.Case(
  "a [MASK]", "house", "home", 0.5, ("home", "x"), {"x": "wrong"}
)


def test_cases_show_wordnets_list_with_unusable_words_in_parentheses(tmp_path):
  folder = mini_wordnet.write_wordnet(tmp_path / "wordnet")
  warnings = []

  def show(sources, case=HOUSE):
    request = TableRequest(sources, wordnet_dir=str(folder))
    [case] = cases_lib.add_lemmas([case], request, warnings.append)
    return case

  house = show("wordnet")
  lemmas = ("business_firm", "firm", "home", "house", "lodge")
  assert house == dataclasses.replace(HOUSE, lemmas=lemmas)
  assert house.marked_list == "home, x (business_firm, firm, house, lodge)"
  assert show("wordnet pos=v").lemmas == ("house", "lodge")
  india = dataclasses.replace(HOUSE, gold="in", synonyms=("indiana",))
  shown = show("wordnet", india)
  assert shown.marked_list == "indiana (Hoosier_State, in)"
  for sources in ("pairs path=x", "wordnet | pairs path=x", "table path=x"):
    assert show(sources) is HOUSE
  assert HOUSE.marked_list == "home, x" and not warnings
  for case, caption in ((house, True), (HOUSE, False)):
    text = render(cases_lib.render_cases([case], 1))
    assert ("parentheses" in text) == caption
  (folder / "data.noun").unlink()
  assert show("wordnet") is HOUSE
  assert "no lists of WordNet: There is no WordNet" in warnings[0]
  assert cases_lib.add_lemmas([], TableRequest("wordnet folder=x"), None) == []


@pytest.mark.parametrize("only", ["w5, yes:w6", "w5:w6:w7", "w6ly"])
def test_words_that_are_not_one_token_are_refused(only):
  with pytest.raises(InputError, match="corrections.only="):
    cases_lib.parse_filter(only, TOKENIZER)


def test_slots_that_are_not_eligible_are_no_corrections():
  p = dataclasses.replace(PREDICTIONS, eligible_M=np.arange(6) != 1)
  case = choose()[2]
  sentences = [c.sentence for c in choose(p)]
  assert [c for c in choose() if c.sentence not in sentences] == [case]
  [wrong] = [c for c in choose(p, "w5:w8") if c.verdict == "wrong"]
  verdicts = {"x": "wrong"}
  assert wrong == dataclasses.replace(case, verdicts=verdicts, count=2)
  assert len(read_sheet(p, [TABLE])) == len(choose(p)) == 3


def test_a_sheet_has_corrections_by_any_source():
  tables = [TABLE, OTHER]
  rows = read_sheet(PREDICTIONS, tables)
  drawn = sorted((row[2], row[3], row[5]) for row in rows)
  assert drawn == [("w5", "w8", "")] * 3 + [("w6", "w7", ""), ("w8", "w9", "")]
  [row] = [row for row in rows if row[2] == "w6"]
  assert row[1] == "w5 **w6**ly w7 w5"
  assert rows == read_sheet(PREDICTIONS, tables)
  seeds = (read_sheet(PREDICTIONS, tables, seed=seed) for seed in range(9))
  assert any(other != rows for other in seeds)
  assert len(read_sheet(PREDICTIONS, tables, size=2)) == 2


def test_cells_of_a_sheet_are_not_formulas():
  tokenizer = make_tokenizer([*TOKENIZER.vocab, "=", "-"], lowercase=True)
  p = predict(["= =", "w5 ="], [(0, 2, "-"), (1, 1, "=")], tokenizer.vocab)
  pairs = [("=", "-"), ("w5", "=")]
  table = SynonymTable.from_pairs(pairs, tokenizer.vocab, source="x")
  assert sorted(row[1:4] for row in read_sheet(p, [table], tokenizer)) == [
    ["'= **=**", "'=", "'-"],
    ["**w5** =", "w5", "'="],
  ]
