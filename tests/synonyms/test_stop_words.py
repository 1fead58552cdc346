"""Tests which tokens are words and stop words."""

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
NO_WORDS = ("[MASK]", "[unused7]", "##s", "")


def test_english_stop_words():
  assert len(STOP_WORDS) == 179
  assert {"i", "in", "wouldn't", "the"} <= STOP_WORDS
  assert STOP_WORDS.isdisjoint({"one", "primary", "stay"})
  assert stop_words.load("") == STOP_WORDS


@pytest.mark.parametrize("keep", [False, True])
def test_words_that_are_not_stop_words_may_have_synonyms(keep):
  tokens = [*WORDS, *NO_WORDS]
  may_V = may_have_synonyms(tokens, keep_stop_words=keep, stop_words={"in"})
  excluded = set() if keep else {"in", "In"}
  assert {tokens[i] for i in np.flatnonzero(may_V)} == set(WORDS) - excluded
  assert list(map(stop_words.is_word, tokens)) == [True] * 6 + [False] * 4


def test_fingerprints_do_not_depend_on_the_order():
  assert fingerprint(["b", "a", "b"]) == fingerprint({"a", "b"})
  assert fingerprint({"a", "b"}) != fingerprint({"ab"}) != fingerprint(())


def test_stop_words_are_read_from_a_file(tmp_path):
  (tmp_path / "words.txt").write_text("\ufeffIn\n\n the \n", encoding="utf-8")
  assert stop_words.load(f"{tmp_path}/words.txt") == {"in", "the"}
  (tmp_path / "words.txt").write_text("\n \n")
  with pytest.raises(InputError, match="contains no word.*keep_stop_words"):
    stop_words.load(f"{tmp_path}/words.txt")
  (tmp_path / "words.txt").write_bytes(b"caf\xe9\n")
  for path in (f"{tmp_path}/words.txt", "nowhere", "a\0b"):
    with pytest.raises(InputError, match="negatives.stop_words=.*cannot be"):
      stop_words.load(path)
