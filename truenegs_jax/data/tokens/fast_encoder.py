"""Ids of very many lines: those of `Tokenizer.encode_lines`, sooner.

A text repeats its words. The ids of a word are looked up by its bytes as they
stand between white space; only words not met before are tokenized.

  encoder = Encoder(tokenizer)
  tokens_T, lengths_N = encoder.encode(["a mute swan", "", "swans"])

What is remembered is bounded (see `word_table`) and never changes a result. It
all runs in the calling thread; an encoder serves one thread at a time.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from truenegs_jax.data.tokens.split_words import (
  BATCH_CHARACTERS,
  Splitter,
  WordSpans,
  batch_texts,
  find_words,
)
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.data.tokens.word_cache import (
  WordIdCache,
  interleave,
  sum_groups,
)
from truenegs_jax.runtime.errors import InputError

BACKENDS = ("fast", "tf_text")
_SPACE = re.compile(r"[ \t\r\n]")
Ids = tuple[np.ndarray, np.ndarray]


class Encoder:
  """Encodes lines; remembers words."""

  def __init__(self, tokenizer: Tokenizer, backend: str = "fast") -> None:
    """Args: backend: "fast", or "tf_text" (needs tensorflow-text).

    Raises:
      InputError: the backend is unknown, not installed, or cannot do what the
        tokenizer asks of it.
    """
    if backend not in BACKENDS:
      raise InputError(
        f"data.tokenizer={backend!r} is unknown; known: {', '.join(BACKENDS)}."
      )
    self._encode_batch: Callable[[list[str]], Ids] = _FastLines(tokenizer).ids
    if backend == "tf_text":
      from truenegs_jax.data.tokens.tf_text import (
        TfTextEncoder,  # imports TensorFlow
      )

      self._encode_batch = TfTextEncoder(tokenizer, self._encode_batch).ids

  def encode(self, lines: Sequence[str]) -> Ids:
    """The ids of lines, without [CLS] and [SEP].

    Returns:
      tokens_T: int32, the ids of all lines, one after another.
      lengths_N: int64, the number of ids of each line.
    """
    parts, ends_N = _parts(lines)
    found = [self._encode_batch(batch) for batch in batch_texts(parts)]
    if not found:
      return np.empty(0, np.int32), np.empty(0, np.int64)
    tokens_T, lengths_P = map(np.concatenate, zip(*found, strict=True))
    return tokens_T, sum_groups(lengths_P, ends_N)


def _parts(lines: Sequence[str]) -> tuple[Sequence[str], np.ndarray]:
  """Cuts long lines at white space; returns parts and where lines end."""
  if max(map(len, lines), default=0) <= BATCH_CHARACTERS:
    return lines, np.arange(1, len(lines) + 1)
  parts: list[str] = []
  ends = []
  for line in lines:
    start = 0
    while space := _SPACE.search(line, start + BATCH_CHARACTERS):
      parts.append(line[start : space.start()])
      start = space.start()
    parts.append(line[start:])
    ends.append(len(parts))
  return parts, np.array(ends)


class _FastLines:
  """Ids of lines by `tokenizers`, through two tables.

  The first is of words as they stand between white space, the second of what
  they are when normalised and parted at punctuation. There are far fewer of
  those: "Swan", "swan," and "(swan" share one.
  """

  def __init__(self, tokenizer: Tokenizer) -> None:
    self._splitter = Splitter(
      lowercase=tokenizer.lowercase, strip_accents=tokenizer.strip_accents
    )
    self._model = tokenizers.Tokenizer(tokenizer.model)
    self._model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    self._begins_V = np.array([e[:2] != "##" for e in tokenizer.vocab])
    self._words = WordIdCache(self._ids_of_words)
    self._basic = WordIdCache(self._ids_of_basic)

  def ids(self, lines: list[str]) -> Ids:
    """Ids of lines, and how many each has."""
    words, ends_N = find_words(lines)
    ids_T, lengths_W = self._words.ids(words)
    return ids_T, sum_groups(lengths_W, ends_N)

  def _ids_of_words(self, words: WordSpans) -> Ids:
    is_ascii_W = words.are_ascii()
    return interleave(
      is_ascii_W,
      self._ids_of_some(words.take(is_ascii_W)),
      self._ids_of_some(words.take(~is_ascii_W)),
    )

  def _ids_of_some(self, words: WordSpans) -> Ids:
    basic, ends_W = self._splitter.basic_tokens(words)
    assert len(ends_W) == len(words.starts_W), "a word was lost"
    ids_T, lengths_P = self._basic.ids(basic)
    return ids_T, sum_groups(lengths_P, ends_W)

  def _ids_of_basic(self, basic: WordSpans) -> Ids:
    # One text of all: an Encoding for each would take most of the time.
    [encoded] = self._model.encode_batch_fast(
      [basic.lines().decode()], add_special_tokens=False
    )
    ids_T = np.array(encoded.ids, np.int32)
    # A token begins where no "##" does; it cannot hold one itself: punctuation.
    starts_P = np.flatnonzero(self._begins_V[ids_T])
    return ids_T, np.diff(starts_P, append=len(ids_T))
