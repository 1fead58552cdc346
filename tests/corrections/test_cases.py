"""Cases of corrections, on predictions made up here."""

import csv
import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from support import tiny
from support.small_predictions import predictions
from truenegs_jax.corrections import cases as cases_lib
from truenegs_jax.data.tokens.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms.table import build_table

WORDS = [f"w{i}" for i in range(5, tiny.V - 1)]
TOKENIZER = make_tokenizer([*SPECIALS, *WORDS, "##ly"], lowercase=True)


def fill(rows, slots, tokens=TOKENIZER.vocab):
  """Predictions of slots, (sequence, position, predicted word)."""
  ids = tokens.index
  sequences = [
    np.array([tiny.CLS, *map(ids, row.split()), tiny.SEP]) for row in rows
  ]
  filled = predictions(
    sequences, [slot[:2] for slot in slots], [ids(slot[2]) for slot in slots]
  )
  probability_M = np.linspace(0.9, 0.1, len(slots)).astype(np.float32)
  return dataclasses.replace(filled, probability_M=probability_M)


FILLED = fill(
  ("w5 w6 ##ly w7 w5", "w5 w8", "w9 " * 60 + "w5 " + "w10 " * 60),
  [
    (0, 1, "w8"),  # corrected
    (0, 5, "w8"),  # the same pair again
    (0, 2, "w7"),  # wrong
    (1, 1, "w5"),  # right
    (1, 2, "w9"),  # corrected, the other pair
    (2, 61, "w8"),  # corrected, once more
  ],
)
PAIRS = [("w5", "w8"), ("w5", "w6"), ("w8", "w9")]
# In a table that lists the gold itself the gold is no correction, either.
TABLE = build_table(PAIRS, TOKENIZER.vocab, source="x", include_self=True)


def choose(filled=FILLED, only="", limit=10):
  only = cases_lib.parse_filter(only, TOKENIZER)
  return cases_lib.choose_cases(
    filled, TABLE, TOKENIZER, only=only, limit=limit
  )


def sheet_rows(filled, tables, tokenizer=TOKENIZER, *, size=200, seed=0):
  text = cases_lib.build_sheet(filled, tables, tokenizer, size=size, seed=seed)
  head, *rows = csv.reader(io.StringIO(text))
  assert len(head) == 6 and head[1:4] == ["sentence", "gold", "prediction"]
  return rows


def test_corrected_cases_come_by_different_pairs_first():
  first, *others = choose()
  assert first == cases_lib.Case(
    sentence="[MASK] w6ly w7 w5",
    gold="w5",
    prediction="w8",
    probability=pytest.approx(0.9),
    synonyms=("w5", "w6", "w8"),
    verdict="corrected",
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
    ("W5:W8", ["corrected"] * 3),  # of a lower-case vocabulary
    ("w5", ["corrected", "right", "corrected", "corrected"]),
    ("w6, w8:w9", ["wrong", "corrected"]),
    ("w5:w5", ["right"]),
    ("w8:w5", []),
  ],
)
def test_a_filter_shows_every_verdict(only, verdicts):
  cases = choose(only=only)
  assert [case.verdict for case in cases] == verdicts
  printed = io.StringIO()
  Console(file=printed, width=120).print(cases_lib.render_cases(cases, 6))
  assert all(case.verdict in printed.getvalue() for case in cases)
  assert ("nothing found" in printed.getvalue()) == (not cases)


@pytest.mark.parametrize("only", ["w5, yes:w6", "w5:w6:w7", "w6ly"])
def test_other_words_are_refused(only):
  with pytest.raises(InputError, match="corrections.only"):
    cases_lib.parse_filter(only, TOKENIZER)


def test_slots_that_correction_may_not_touch_are_no_cases():
  filled = dataclasses.replace(FILLED, eligible_M=np.arange(6) != 1)
  case = choose()[2]
  assert [c for c in choose() if c not in choose(filled)] == [case]
  [spared] = [c for c in choose(filled, "w5:w8") if c.verdict == "wrong"]
  assert spared == dataclasses.replace(case, verdict="wrong")
  assert len(sheet_rows(filled, [TABLE])) == len(choose(filled)) == 3


def test_a_sheet_is_drawn_blind_from_all_that_any_source_corrects():
  tables = [TABLE, build_table([("w6", "w7")], TOKENIZER.vocab, source="y")]
  rows = sheet_rows(FILLED, tables)
  drawn = sorted((row[2], row[3], row[5]) for row in rows)
  assert drawn == [("w5", "w8", "")] * 3 + [("w6", "w7", ""), ("w8", "w9", "")]
  [six] = [row for row in rows if row[2] == "w6"]
  assert six[1] == "w5 **w6**ly w7 w5"
  assert rows == sheet_rows(FILLED, tables)
  seeds = (sheet_rows(FILLED, tables, seed=seed) for seed in range(9))
  assert any(other != rows for other in seeds)
  assert len(sheet_rows(FILLED, tables, size=2)) == 2


def test_no_cell_of_a_sheet_is_a_formula():
  tokenizer = make_tokenizer([*TOKENIZER.vocab, "=", "-"], lowercase=True)
  filled = fill(["= =", "w5 ="], [(0, 2, "-"), (1, 1, "=")], tokenizer.vocab)
  pairs = [("=", "-"), ("w5", "=")]
  table = build_table(pairs, tokenizer.vocab, source="x")
  assert sorted(row[1:4] for row in sheet_rows(filled, [table], tokenizer)) == [
    ["'= **=**", "'=", "'-"],
    ["**w5** =", "w5", "'="],
  ]
