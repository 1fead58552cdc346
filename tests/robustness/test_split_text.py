"""Tests which characters of a text are one token."""

import pytest

from truenegs_jax.robustness.split_text import split_sentences


@pytest.mark.parametrize(
  "tokens",
  [
    "in 720p at 6 p.m. or later",
    "the U.S population and the U.S. army",
    "21st 1990s 1,000.5 3D",
    "$ 5 or 10 %",
  ],
)
def test_tokens_stay_whole(tokens):
  text = tokens.replace("$ ", "$").replace(" %", "%")
  [spans] = split_sentences(text)
  assert [text[a:b] for a, b in spans] == tokens.split()
