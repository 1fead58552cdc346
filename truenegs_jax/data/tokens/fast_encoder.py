"""Encodes many lines: the same ids as `Tokenizer.encode_lines`, but faster.

Text repeats its words, so their ids are cached; only new words are tokenized.

  encoder = Encoder(tokenizer)
  tokens_T, lengths_N = encoder.encode(["a mute swan", "", "swans"])

The cache is bounded and never changes a result. An encoder starts no threads
and must not be shared between threads.
"""

import itertools
import sys
from collections.abc import Callable, Sequence

import numpy as np
import tokenizers

from truenegs_jax.data.tokens import split_words
from truenegs_jax.data.tokens.spans import Ids
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import one_of

BACKENDS = ("fast", "tf_text")
# Of words and their ids, beyond which all are forgotten.
MAX_CACHE_BYTES = 2**26
BATCH_WORDS = 4096  # encoded in one call; bounds its memory
_BETWEEN_WORDS = np.int32(-1).tobytes()


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
    encoded = [self._encode_batch(b) for b in split_words.batch_texts(lines)]
    if not encoded:
      return np.empty(0, np.int32), np.empty(0, np.int64)
    tokens_T, lengths_N = map(np.concatenate, zip(*encoded, strict=True))
    return tokens_T, lengths_N


class _CachedEncoder:
  """Encodes distinct words with `tokenizers` and caches their ids as bytes."""

  def __init__(self, tokenizer: Tokenizer) -> None:
    self._lowercase = tokenizer.lowercase
    self._backend = tokenizer.make_backend()
    # Found before text is normalized, so it splits words that are joined by it.
    self._backend.add_tokens([tokenizers.AddedToken("\n", normalized=False)])
    self._newline = len(tokenizer.vocab)
    self._ids: dict[str, bytes] = {}
    self._size = 0

  def encode(self, lines: list[str]) -> Ids:
    """Returns the ids of all lines, and the number of ids of each line."""
    import pyarrow  # takes a quarter of a second

    words_N = split_words.split_lines(lines, lowercase=self._lowercase)
    words_W = words_N.values.dictionary_encode()
    ids = self._lookup(words_W.dictionary.to_pylist())
    ids_W = pyarrow.DictionaryArray.from_arrays(
      words_W.indices, pyarrow.array(ids, pyarrow.large_binary())
    ).dictionary_decode()
    _, offsets, data = ids_W.buffers()
    ends_N = np.frombuffer(offsets, np.int64)[words_N.offsets] // 4
    return np.frombuffer(data, np.int32, ends_N[-1]), np.diff(ends_N)

  def _lookup(self, words: list[str]) -> list[bytes]:
    """Returns the ids of distinct words."""
    if self._size > MAX_CACHE_BYTES:
      self._ids, self._size = {}, 0
    new = list(itertools.filterfalse(self._ids.__contains__, words))
    for start in range(0, len(new), BATCH_WORDS):
      self._encode_words(new[start : start + BATCH_WORDS])
    return list(map(self._ids.__getitem__, words))

  def _encode_words(self, words: list[str]) -> None:
    # All as one text: one Encoding per word would take most of the time.
    [encoded] = self._backend.encode_batch_fast(
      ["\n".join([*words, ""])], add_special_tokens=False
    )
    ids_T = np.array(encoded.ids, np.int32)
    ids_T[ids_T == self._newline] = -1
    # Ids are below 2**24, so the bytes at no other place look like -1.
    ids = ids_T.tobytes().split(_BETWEEN_WORDS)[:-1]
    self._ids.update(zip(words, ids, strict=True))
    self._size += sum(map(sys.getsizeof, itertools.chain(words, ids)))
