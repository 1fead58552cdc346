"""Tests cases of corrections on small predictions."""

import dataclasses

import numpy as np
import pytest

from support import tiny
from support.html_tables import read_rows
from support.small_predictions import (
  TOKENS,
  make_predictions,
  random_predictions,
  random_table,
  render,
)
from truenegs_jax.data.tokenizer import (
  SPECIALS,
  Tokenizer,
  make_tokenizer,
)
from truenegs_jax.pretrain import cases
from truenegs_jax.report.pretraining import show_cases
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
TABLE = SynonymTable.from_pairs(PAIRS, TOKENIZER.vocab, source="x")


def search(limit=10):
  finder = cases.CaseFinder(TABLE, TOKENIZER, limit=limit)
  finder.add(PREDICTIONS)
  return finder.finish()


def test_cases_of_different_pairs_come_first():
  result = search()
  assert (result.searched, result.corrected, result.source) == (6, 4, "x")
  first, *others = result.cases
  assert first == cases.Case(
    sentence="[MASK] w6ly w7 w5",
    gold="w5",
    prediction="w8",
    probability=pytest.approx(0.9),
    synonyms=("w6", "w8"),
    count=3,
  )
  assert [(c.gold, c.prediction, c.sentence[:12]) for c in others] == [
    ("w8", "w9", "w5 [MASK]"),
    ("w5", "w8", "w5 w6ly w7 ["),
    ("w5", "w8", "w9 w9 w9 w9 "),
  ]
  assert search(limit=2).cases == [first, others[0]]


@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_searching_in_batches_finds_the_same_cases(limit):
  table = random_table(0)
  p = random_predictions(0, 400)
  vocab = (*TOKENS, "[MASK]")
  tokenizer = Tokenizer(vocab, True, True, 0, 0, 0, 1, len(TOKENS))
  both = (cases.CaseFinder(table, tokenizer, limit=limit) for _ in range(2))
  finder, other = both
  other.add(p)
  at_once = other.finish()
  for chunk_N in np.array_split(np.arange(len(p.gold_M)), 5):
    fields = [f.name for f in dataclasses.fields(p) if f.name.endswith("_M")]
    arrays = {name: getattr(p, name)[chunk_N] for name in fields}
    finder.add(dataclasses.replace(p, **arrays))
  assert finder.finish() == at_once
  assert at_once.corrected == p.corrected_M(table).sum() > 30
  pairs = {(c.gold, c.prediction): c.count for c in at_once.cases}
  first = at_once.cases[: len(pairs)]  # different pairs come first
  assert len(at_once.cases) == min(limit, at_once.corrected)
  assert pairs == {(c.gold, c.prediction): c.count for c in first}
  if limit > at_once.corrected:
    assert sum(pairs.values()) == at_once.corrected > len(pairs)


def test_cases_are_printed_like_figure_3():
  results = search()
  text = render(cases.make_cases_table(results, results.cases[:3]))
  assert "w8, w6" in text and "w8 (90%)" in text
  # The page counts with the same words.
  first, *_ = show_cases(dataclasses.asdict(results))
  counts = "4 of 6 predictions are corrected (taken out of the loss);"
  assert f"{counts} 3 are shown." in " ".join(text.split())
  assert f"{counts} 4 are shown." in first
  empty = cases.Search(6, 0, "x", [])
  assert "No corrections found in 6" in render(
    cases.make_cases_table(empty, [])
  )


def test_at_most_eight_synonyms_are_shown_the_prediction_first():
  case, *_ = search().cases
  case = dataclasses.replace(
    case, prediction="s19", synonyms=tuple(f"s{i}" for i in range(20))
  )
  shown = "s19, s0, s1, s2, s3, s4, s5, s6, +12 more"
  results = cases.Search(6, 1, "x", [case])
  [row] = cases.make_cases_table(results, [case]).rows
  assert row["synonyms of gold"] == shown
  *_, table = show_cases(dataclasses.asdict(results))
  assert read_rows(table)[0][0][-1] == shown
  eight = dataclasses.replace(case, synonyms=case.synonyms[12:])
  text = render(cases.make_cases_table(results, [eight]))
  assert "s18" in text and "more" not in text
