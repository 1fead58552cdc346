"""Whole words that are no stop words may have synonyms."""

import numpy as np
import pytest

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import stop_words
from truenegs_jax.synonyms.stop_words import (
  STOP_WORDS,
  fingerprint,
  may_have_synonyms,
)

WORDS = ("house", "in", "In", "[", "[]", "#")
OTHERS = ("[MASK]", "[unused7]", "##s", "")


def test_there_are_179_english_ones():
  assert len(STOP_WORDS) == 179
  assert {"i", "in", "wouldn't", "the"} <= STOP_WORDS
  assert STOP_WORDS.isdisjoint({"one", "primary", "stay"})
  assert stop_words.load("") == STOP_WORDS


@pytest.mark.parametrize("keep_stop_words", [False, True])
def test_golds_are_whole_words_without_stop_words(keep_stop_words):
  tokens = [*WORDS, *OTHERS]
  golds_V = may_have_synonyms(
    tokens, keep_stop_words=keep_stop_words, stop_words={"in"}
  )
  left_out = set() if keep_stop_words else {"in", "In"}
  assert {tokens[i] for i in np.flatnonzero(golds_V)} == set(WORDS) - left_out
  assert [stop_words.is_word(token) for token in tokens] == [True] * 6 + [
    False
  ] * 4


def test_fingerprints_do_not_depend_on_the_order():
  assert fingerprint(["b", "a", "b"]) == fingerprint({"a", "b"})
  assert fingerprint({"a", "b"}) != fingerprint({"ab"}) != fingerprint(())


def test_a_list_is_read_from_a_file(tmp_path):
  (tmp_path / "words.txt").write_text("\ufeffIn\n\n the \n", encoding="utf-8")
  assert stop_words.load(f"{tmp_path}/words.txt") == {"in", "the"}
  (tmp_path / "words.txt").write_text("\n \n")
  with pytest.raises(InputError, match="no word in it; .*keep_stop_words"):
    stop_words.load(f"{tmp_path}/words.txt")
  (tmp_path / "words.txt").write_bytes(b"caf\xe9\n")
  for path in (f"{tmp_path}/words.txt", "nowhere", "a\0b"):
    with pytest.raises(InputError, match="negatives.stop_words=.*cannot be"):
      stop_words.load(path)
