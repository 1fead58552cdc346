"""Tests cases of corrections on small predictions."""

import dataclasses

import numpy as np
import pytest

from support import tiny
from support.small_predictions import (
  TOKENS,
  make_predictions,
  random_predictions,
  random_table,
)
from truenegs_jax.data.tokenizer import SPECIALS, Tokenizer, make_tokenizer
from truenegs_jax.pretrain import cases
from truenegs_jax.synonyms.table import SynonymTable

WORDS = [f"w{i}" for i in range(5, tiny.V - 1)]
TOKENIZER = make_tokenizer([*SPECIALS, *WORDS, "##ly"], lowercase=True)
ROWS = ("w5 w6 ##ly w7 w5", "w5 w8", "w9 " * 60 + "w5 " + "w10 " * 60)
SLOTS = [  # sequence, position, prediction
  (0, 1, "w8"),  # corrected
  (0, 5, "w8"),  # the same pair again
  (0, 2, "w7"),  # wrong
  (1, 1, "w5"),  # right
  (1, 2, "w9"),  # corrected, another pair
  (2, 61, "w8"),  # corrected, the first pair
]
PAIRS = [("w5", "w8"), ("w5", "w6"), ("w8", "w9")]


def search(limit=10):
  ids = TOKENIZER.vocab.index
  sequences = [
    np.array([tiny.CLS, *map(ids, row.split()), tiny.SEP]) for row in ROWS
  ]
  predicted = [ids(word) for *_, word in SLOTS]
  p = make_predictions(sequences, [x[:2] for x in SLOTS], predicted)
  probability_M = np.linspace(0.9, 0.1, len(SLOTS)).astype(np.float32)
  p = dataclasses.replace(p, probability_M=probability_M)
  table = SynonymTable.from_pairs(PAIRS, TOKENIZER.vocab, source="x")
  return cases.find_cases([p], table, TOKENIZER, limit=limit)


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


def test_searching_in_batches_finds_the_same_cases():
  table = random_table(0)
  p = random_predictions(0, 400)
  vocab = (*TOKENS, "[MASK]")
  tokenizer = Tokenizer(vocab, True, True, 0, 0, 0, 1, len(TOKENS))
  at_once = cases.find_cases([p], table, tokenizer, limit=99)
  names = [f.name for f in dataclasses.fields(p) if f.name.endswith("_M")]
  batches = [
    dataclasses.replace(p, **{x: getattr(p, x)[chunk_N] for x in names})
    for chunk_N in np.array_split(np.arange(len(p.gold_M)), 5)
  ]
  assert cases.find_cases(batches, table, tokenizer, limit=99) == at_once
  assert at_once.corrected == p.corrected_M(table).sum() > 30
  pairs = p.corrected_pairs(table)
  shown = [(c.gold, c.prediction) for c in at_once.cases]
  assert len(set(shown[: len(pairs)])) == min(len(pairs), 99)


def test_eight_synonyms_are_shown_first_the_prediction():
  results = search()
  many = tuple(f"s{i}" for i in range(20))
  case = dataclasses.replace(results.cases[0], prediction="s19", synonyms=many)
  [row] = cases.make_cases_table(results, [case]).rows
  shown = "s19, s0, s1, s2, s3, s4, s5, s6, +12 more"
  assert row["synonyms of gold"] == shown
