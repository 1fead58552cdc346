"""Tests how many words of a text are said to have synonyms."""

import numpy as np
import pytest

from truenegs_jax.data.tokenizer import SPECIALS
from truenegs_jax.synonyms.run_table import TableRequest, describe_text
from truenegs_jax.synonyms.table import SynonymTable

WORDS = ("the", "house", "homes", "took", "fish", "cat", "7", ".", "in")
TOKENS = (*SPECIALS, *WORDS, "##s")
TABLE = SynonymTable.from_pairs(
  [("house", "cat"), ("homes", "cat")], TOKENS, source="x"
)


def describe(stop_words=None, path=None, **occurrences):
  """Describes a text with 50 of each token that is not counted."""
  counts_V = np.zeros(len(TOKENS), int)
  for word in (*SPECIALS, "the", "7", ".", "in", "##s"):
    counts_V[TOKENS.index(word)] = 50
  for word, number in occurrences.items():
    counts_V[TOKENS.index(word)] = number
  if path and stop_words:
    path.write_text(stop_words)
  request = TableRequest(
    "pairs path=x.tsv", key="a.key", stop_words=str(path or "")
  )
  return describe_text(request, TABLE, counts_V)


@pytest.mark.parametrize(
  "counts, share, examples",
  [
    ({"house": 3, "homes": 2, "fish": 1, "cat": 4}, "50.0%", "cat, fish"),
    ({"house": 3, "cat": 7}, "30.0%", "cat"),
    ({"house": 3}, "100.0%", "none"),
    ({}, "100.0%", "none"),
  ],
)
def test_symbols_pieces_and_stop_words_are_no_words_of_a_text(
  counts, share, examples
):
  line, warning = describe(**counts)
  assert line.startswith(share) and line.endswith(f"without: {examples}")
  assert not warning


def test_a_small_share_of_a_text_is_warned_of_with_what_to_set(tmp_path):
  few = {"house": 2, "cat": 6, "fish": 1}
  _, warning = describe(**few)
  for words in ("a.key='pairs path=x.tsv'", "22.2%", "none for cat, fish."):
    assert words in warning
  line, _ = describe("cat\n", tmp_path / "stops", **few)
  assert line.endswith("without: the, in, fish")
  # A resumed run may have lost its list of stop words.
  assert describe(None, tmp_path / "lost", **few)[0].startswith("22.2%")


def test_senses_that_are_left_out_on_purpose_are_not_warned_of():
  counts_V = np.zeros(len(TOKENS), int)
  counts_V[TOKENS.index("cat")] = 1
  assert describe_text(TableRequest("wordnet"), TABLE, counts_V)[1]
  line, warning = describe_text(
    TableRequest("wordnet senses=1"), TABLE, counts_V
  )
  assert line.startswith("0.0%") and not warning
