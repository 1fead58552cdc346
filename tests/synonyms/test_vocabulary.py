"""Tests which tokens are words and stop words."""

import numpy as np
import pytest

from truenegs_jax.synonyms.vocabulary import STOP_WORDS, may_have_synonyms

WORDS = ("house", "in", "In", "[", "[]", "#")
NO_WORDS = ("[MASK]", "[unused7]", "##s", "")


def test_english_stop_words():
  assert len(STOP_WORDS) == 179
  assert {"i", "in", "wouldn't", "the"} <= STOP_WORDS
  assert STOP_WORDS.isdisjoint({"one", "primary", "stay"})


@pytest.mark.parametrize("keep", [False, True])
def test_words_that_are_not_stop_words_may_have_synonyms(keep):
  tokens = [*WORDS, *NO_WORDS]
  may_V = may_have_synonyms(tokens, () if keep else {"in"})
  excluded = set() if keep else {"in", "In"}
  assert {tokens[i] for i in np.flatnonzero(may_V)} == set(WORDS) - excluded
