"""Encodes many lines: the same ids as `Tokenizer.encode_lines`, but faster.

Text repeats its words. So for BERT's WordPiece, their ids are cached, and only
new words are tokenized. `tokenizers` alone takes 4 to 6 times as long, and a
dict of the words of a text, without pyarrow, 2.4 times for known words.

  tokens_T, lengths_N = Encoder(tokenizer).encode(["a mute swan", "", "swans"])

The cache is bounded and never changes a result. An encoder starts no threads
and must not be shared between threads.
"""

import contextlib
import itertools
import sys
from collections.abc import Callable, Sequence

import numpy as np
import tokenizers

from truenegs_jax.data import vocabulary
from truenegs_jax.data.tokenizer import MAX_WORD_CHARACTERS, Tokenizer
from truenegs_jax.runtime.errors import InputError

# Of words and their ids, beyond which all are forgotten.
MAX_CACHE_BYTES = 2**26
BATCH_WORDS = 4096  # encoded in one call; bounds its memory
Ids = tuple[np.ndarray, np.ndarray]  # tokens_T of all lines, lengths_N of each
_BETWEEN_WORDS = np.int32(-1).tobytes()


class Encoder:
  """Encodes lines with `tokenizers` and caches the ids of words as bytes."""

  def __init__(self, tokenizer: Tokenizer, backend: str = "fast") -> None:
    """With the backend "tf_text", TensorFlow encodes lines of plain ASCII."""
    self._tokenizer = tokenizer
    self._encode_plain = None
    if backend == "tf_text" and not tokenizer.definition:
      self._encode_plain = _make_plain_encode(tokenizer)
    if not tokenizer.definition:
      self._backend = tokenizer.make_backend()
      # Found before text is normalized, so it splits words joined by it.
      newline = tokenizers.AddedToken("\n", normalized=False)
      self._backend.add_tokens([newline])
      self._newline = len(tokenizer.vocab)
    self._ids: dict[str, bytes] = {}
    self._size = 0

  def encode(self, lines: Sequence[str]) -> Ids:
    """Returns int32 ids of all lines in turn, and their int64 number per line.

    They are without [CLS] and [SEP].
    """
    batches = vocabulary.batch_texts(lines, vocabulary.BATCH_CHARACTERS)
    encoded = [*map(self._encode_batch, batches)]
    tokens = [np.empty(0, np.int32), *(tokens_T for tokens_T, _ in encoded)]
    lengths = [np.empty(0, np.int64), *(lengths_N for _, lengths_N in encoded)]
    return np.concatenate(tokens), np.concatenate(lengths)

  def _encode_batch(self, lines: list[str]) -> Ids:
    if self._tokenizer.definition:
      ids_N = self._tokenizer.encode_lines(lines)
      tokens_T = np.fromiter(itertools.chain.from_iterable(ids_N), np.int32)
      return tokens_T, np.array([*map(len, ids_N)], np.int64)
    if self._encode_plain is None:
      return self._encode_cached(lines)
    # Beyond ASCII, FastBertTokenizer folds characters by NFKC (superscripts,
    # ligatures, the final sigma), keeps control and private-use characters, and
    # has a newer list of punctuation.
    is_plain_N = np.array([x.isascii() and x.isprintable() for x in lines])
    pairs = [*zip(lines, is_plain_N, strict=True)]
    plain_T, plain_N = self._encode_plain([x if p else "" for x, p in pairs])
    others_T, others_N = self._encode_cached(["" if p else x for x, p in pairs])
    lengths_N = plain_N + others_N
    is_plain_T = np.repeat(is_plain_N, lengths_N)
    tokens_T = np.empty(len(is_plain_T), np.int32)
    tokens_T[is_plain_T] = plain_T
    tokens_T[~is_plain_T] = others_T
    return tokens_T, lengths_N

  def _encode_cached(self, lines: list[str]) -> Ids:
    import pyarrow  # takes a quarter of a second

    words_N = vocabulary.split_lines(lines, lowercase=self._tokenizer.lowercase)
    words_W = words_N.values.dictionary_encode()
    if self._size > MAX_CACHE_BYTES:
      self._ids = {}
      self._size = 0
    words = words_W.dictionary.to_pylist()
    new = list(itertools.filterfalse(self._ids.__contains__, words))
    for start in range(0, len(new), BATCH_WORDS):
      self._encode_words(new[start : start + BATCH_WORDS])
    ids = [*map(self._ids.__getitem__, words)]
    # `pyarrow.array` would import pandas.
    ends = pyarrow.py_buffer(np.cumsum([0, *map(len, ids)]))
    buffers = [None, ends, pyarrow.py_buffer(b"".join(ids))]
    kind = pyarrow.large_binary()
    ids_D = pyarrow.LargeBinaryArray.from_buffers(kind, len(ids), buffers)
    ids_W = pyarrow.DictionaryArray.from_arrays(words_W.indices, ids_D)
    _, offsets, data = ids_W.dictionary_decode().buffers()
    lines_N = np.frombuffer(words_N.buffers()[1], np.int32, len(words_N) + 1)
    ends_N = np.frombuffer(offsets, np.int64)[lines_N] // 4
    return np.frombuffer(data, np.int32, ends_N[-1]), np.diff(ends_N)

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


def _make_plain_encode(tokenizer: Tokenizer) -> Callable[[list[str]], Ids]:
  """Makes a function that encodes plain lines, on one core and no GPU."""
  try:
    import tensorflow
    import tensorflow_text
  except ImportError as error:
    raise InputError(
      f"data.tokenizer='tf_text' needs a package that is missing ({error})."
      " Run pip install '.[tf-text]' in the checkout (2 GB), or set"
      " --config.data.tokenizer=fast, which gives the same ids."
    ) from error
  with contextlib.suppress(RuntimeError):  # TensorFlow is already configured
    tensorflow.config.set_visible_devices([], "GPU")  # or it takes all memory
    tensorflow.config.threading.set_intra_op_parallelism_threads(1)
    tensorflow.config.threading.set_inter_op_parallelism_threads(1)
  # No word contains white space, but TensorFlow would match entries that do. It
  # ignores entries that mix letters with punctuation, so one takes their place.
  vocab = [
    f"[{i},]" if any(map(str.isspace, entry)) else entry
    for i, entry in enumerate(tokenizer.vocab)
  ]
  try:
    bert = tensorflow_text.FastBertTokenizer(
      vocab,
      max_bytes_per_word=MAX_WORD_CHARACTERS,
      token_out_type=np.int32,
      lower_case_nfd_strip_accents=tokenizer.lowercase,
    )
  except (RuntimeError, ValueError) as error:
    raise InputError(
      f"data.vocab cannot be used by tensorflow-text ({error}). Set"
      " --config.data.tokenizer=fast."
    ) from error

  def encode(lines: list[str]) -> Ids:
    ragged = bert.tokenize(lines)
    return ragged.flat_values.numpy(), ragged.row_lengths().numpy()

  return encode
