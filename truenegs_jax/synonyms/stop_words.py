"""Tokens that may have synonyms: whole words that are no stop words.

The English stop words are kept here, and not read from NLTK's data, because
later releases of that list are longer and a table must not change with the
version of a data package.
"""

import os
import pathlib
from collections.abc import Collection, Sequence

import numpy as np

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import short_sha256

# The 179 English words of `stopwords` in nltk_data as released from 2018 to
# 2023 (after the stop list of the Snowball project, M. Porter); 150 of them are
# tokens of the uncased BERT vocabulary.
STOP_WORDS = frozenset(
  """
  i me my myself we our ours ourselves you you're you've you'll you'd your
  yours yourself yourselves he him his himself she she's her hers herself it
  it's its itself they them their theirs themselves what which who whom this
  that that'll these those am is are was were be been being have has had
  having do does did doing a an the and but if or because as until while of at
  by for with about against between into through during before after above
  below to from up down in out on off over under again further then once here
  there when where why how all any both each few more most other some such no
  nor not only own same so than too very s t can will just don don't should
  should've now d ll m o re ve y ain aren aren't couldn couldn't didn didn't
  doesn doesn't hadn hadn't hasn hasn't haven haven't isn isn't ma mightn
  mightn't mustn mustn't needn needn't shan shan't shouldn shouldn't wasn
  wasn't weren weren't won won't wouldn wouldn't
  """.split()
)


def is_word(token: str) -> bool:
  """True for a whole word; False for `##piece` and for `[SPECIAL]` tokens."""
  special = len(token) > 2 and token[0] == "[" and token[-1] == "]"
  return bool(token) and not special and not token.startswith("##")


def load(path: str) -> frozenset[str]:
  """The stop words of a UTF-8 file, one per line; of "" the English ones.

  Raises:
    InputError: there is no such file, or no word in it.
  """
  if not path:
    return STOP_WORDS
  try:
    file = pathlib.Path(os.path.expanduser(path))
    text = file.read_text(encoding="utf-8-sig")
  except (OSError, ValueError) as e:  # not UTF-8; "\0" in its name
    raise InputError(
      f"negatives.stop_words={path}: it cannot be read ({e}); give a UTF-8 file"
      " with one word per line."
    ) from e
  words = frozenset(line.strip().lower() for line in text.splitlines()) - {""}
  if not words:
    raise InputError(
      f"negatives.stop_words={path}: there is no word in it; to do without any"
      " set negatives.keep_stop_words=True."
    )
  return words


def fingerprint(words: Collection[str]) -> str:
  """16 hex digits over stop words, by which a table's options name them."""
  return short_sha256("\n".join(sorted(set(words))))


def may_have_synonyms(
  tokens: Sequence[str],
  *,
  keep_stop_words: bool = False,
  stop_words: Collection[str] = STOP_WORDS,
) -> np.ndarray:
  """bool_V: the tokens that may have synonyms.

  Args:
    tokens: the vocabulary, token `i` at position `i`.
    keep_stop_words: stop words may have some, too.
    stop_words: words in lower case.
  """
  left_out = () if keep_stop_words else stop_words
  return np.array(
    [is_word(token) and token.lower() not in left_out for token in tokens], bool
  )
