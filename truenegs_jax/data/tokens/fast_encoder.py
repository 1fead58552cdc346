"""Encodes many lines: the same ids as `Tokenizer.encode_lines`, but faster.

Text repeats its words, so ids are cached per word. A word is looked up by its
bytes between white space; only new words are tokenized.

  encoder = Encoder(tokenizer)
  tokens_T, lengths_N = encoder.encode(["a mute swan", "", "swans"])

The caches are bounded (see `word_cache`) and never change a result. An encoder
starts no threads and must not be shared between threads.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from truenegs_jax.data.tokens import split_words, word_cache
from truenegs_jax.data.tokens.split_words import WordSpans
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.data.tokens.word_cache import Ids
from truenegs_jax.runtime.errors import one_of

BACKENDS = ("fast", "tf_text")
_SPACE = re.compile(r"[ \t\r\n]")


class Encoder:
  """Encodes lines and caches the ids of words."""

  def __init__(self, tokenizer: Tokenizer, backend: str = "fast") -> None:
    """Creates the backend, "fast" or "tf_text" (needs tensorflow-text).

    Raises:
      InputError: it is unknown, not installed, or does not support `tokenizer`.
    """
    one_of("data.tokenizer", backend, BACKENDS)
    encode: Callable[[list[str]], Ids] = _CachedEncoder(tokenizer).encode
    if backend == "tf_text":
      from truenegs_jax.data.tokens import tf_text  # imports TensorFlow

      encode = tf_text.TfTextEncoder(tokenizer, encode).encode
    self._encode_batch = encode

  def encode(self, lines: Sequence[str]) -> Ids:
    """Encodes lines, without [CLS] and [SEP].

    Returns:
      tokens_T: int32, the ids of all lines, one line after another.
      lengths_N: int64, the number of ids of each line.
    """
    sections, ends_N = _cut_long_lines(lines)
    batches = split_words.batch_texts(sections)
    encoded = [self._encode_batch(batch) for batch in batches]
    if not encoded:
      return np.empty(0, np.int32), np.empty(0, np.int64)
    tokens_T, lengths_S = map(np.concatenate, zip(*encoded, strict=True))
    return tokens_T, word_cache.sum_groups(lengths_S, ends_N)


def _cut_long_lines(lines: Sequence[str]) -> tuple[Sequence[str], np.ndarray]:
  """Cuts long lines at white space; returns sections and ends of lines."""
  if max(map(len, lines), default=0) <= split_words.BATCH_CHARACTERS:
    return lines, np.arange(1, len(lines) + 1)
  sections: list[str] = []
  ends = []
  for line in lines:
    start = 0
    while space := _SPACE.search(line, start + split_words.BATCH_CHARACTERS):
      sections.append(line[start : space.start()])
      start = space.start()
    sections.append(line[start:])
    ends.append(len(sections))
  return sections, np.array(ends)


class _CachedEncoder:
  """Encodes lines with `tokenizers` and two caches.

  The keys of the first cache are words between white space. The keys of the
  second are normalized words split at punctuation, of which there are far
  fewer: "Swan", "swan," and "(swan" share one.
  """

  def __init__(self, tokenizer: Tokenizer) -> None:
    self._splitter = split_words.Splitter(
      lowercase=tokenizer.lowercase, strip_accents=tokenizer.strip_accents
    )
    self._model = tokenizers.Tokenizer(tokenizer.model)
    self._model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    self._begins_word_V = np.array([e[:2] != "##" for e in tokenizer.vocab])
    self._raw_cache = word_cache.WordIdCache(self._encode_raw_words)
    self._basic_cache = word_cache.WordIdCache(self._encode_basic_tokens)

  def encode(self, lines: list[str]) -> Ids:
    """Returns the ids of all lines, and the number of ids of each line."""
    words, ends_N = split_words.find_words(lines)
    ids_T, lengths_W = self._raw_cache.lookup(words)
    return ids_T, word_cache.sum_groups(lengths_W, ends_N)

  def _encode_raw_words(self, words: WordSpans) -> Ids:
    is_ascii_W = words.are_ascii()  # the splitter is faster on ASCII alone
    parts = words.take(is_ascii_W), words.take(~is_ascii_W)
    return word_cache.interleave(
      is_ascii_W, *map(self._split_and_encode, parts)
    )

  def _split_and_encode(self, words: WordSpans) -> Ids:
    tokens, ends_W = self._splitter.basic_tokens(words)
    assert len(ends_W) == len(words.starts_W), "the splitter lost a word"
    ids_T, lengths_P = self._basic_cache.lookup(tokens)
    return ids_T, word_cache.sum_groups(lengths_P, ends_W)

  def _encode_basic_tokens(self, tokens: WordSpans) -> Ids:
    # All as one text: one Encoding per token would take most of the time.
    [encoded] = self._model.encode_batch_fast(
      [tokens.lines().decode()], add_special_tokens=False
    )
    ids_T = np.array(encoded.ids, np.int32)
    # Each id without "##" begins a token. No token begins with "##" itself:
    # "#" is punctuation, so it was split off.
    starts_P = np.flatnonzero(self._begins_word_V[ids_T])
    return ids_T, np.diff(starts_P, append=len(ids_T))
