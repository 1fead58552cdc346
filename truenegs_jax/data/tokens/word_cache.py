"""Caches the ids of words, so that each distinct word is encoded once.

  cache = WordIdCache(encode)
  ids_T, lengths_W = cache.lookup(words)

A `WordIndex` numbers distinct words 0, 1, 2, ... as they are added. Words
of up to 16 bytes are hashed and compared as two 64-bit numbers, all at once in
numpy, in 30 ns per word; a Python dict would take 100 ns. Longer words go into
a dict. A `WordIdCache` stores the ids by these numbers. When it is full, it
drops the words that were looked up only once.
"""

from collections.abc import Callable

import numpy as np

from truenegs_jax.data.tokens.split_words import PADDING, WordSpans, take_spans

MAX_SHORT = 16  # bytes; one word in a thousand of English text is longer
assert PADDING >= MAX_SHORT
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], "<u8")
_SIZES = np.arange(MAX_SHORT + 1)
_LOW_MASKS = _MASKS[np.minimum(_SIZES, 8)]
_HIGH_MASKS = _MASKS[np.maximum(_SIZES - 8, 0)]
# Odd numbers with about as many ones as zeros, as in xxHash.
_LOW_FACTOR, _HIGH_FACTOR = np.array(
  [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64
)

# Limits of one cache. The two caches of an encoder take 50 MB for 36 MB of
# Wikipedia (380,000 distinct words), and less than 250 MB for a text of which
# every word is new and long.
MAX_WORDS = 400_000
MAX_LONG_BYTES = 2**23

# ids_T of all words or lines, int32, and lengths_N, the number of ids of each.
Ids = tuple[np.ndarray, np.ndarray]


class WordIndex:
  """Maps words to rows, with a hash table of slots and linear probing.

  Attributes:
    size: the number of rows.
    long: maps words of more than MAX_SHORT bytes to rows.
    long_bytes: the number of bytes of all words in `long`.
  """

  def __init__(self) -> None:
    self.size = 0
    self.long: dict[bytes, int] = {}
    self.long_bytes = 0
    # Bytes 0 to 7 and 8 to 15 of the word of each row, with spare capacity.
    self._low_N = np.empty(1, np.uint64)
    self._high_N = np.empty(1, np.uint64)
    self._build_slots(1 << 12)

  def lookup(self, words: WordSpans) -> tuple[np.ndarray, np.ndarray]:
    """Returns the int32 rows of words, and adds new words.

    Also returns, for each new row in order, the index of its word in `words`.
    Zero bytes at the end of a short word are ignored; BERT drops them too.
    """
    size = self.size + len(words.starts_W)  # if all words are new
    while 2 * size > len(self._row_of_slot):
      self._build_slots(2 * len(self._row_of_slot))
    self._low_N = ensure_capacity(self._low_N, size)
    self._high_N = ensure_capacity(self._high_N, size)
    low_W, high_W = _keys(words)
    slots_W = self._first_slots(low_W, high_W)
    rows_W, slots_W = self._search(low_W, high_W, slots_W)
    is_long_W = words.lengths_W > MAX_SHORT
    pending = np.flatnonzero((rows_W < 0) & ~is_long_W)
    new = []
    while len(pending):
      low, high, slots = low_W[pending], high_W[pending], slots_W[pending]
      new.append(pending[self._add(low, high, slots)])
      # Added words now have a row; for the others the search continues.
      rows_W[pending], slots_W[pending] = self._search(low, high, slots)
      pending = pending[rows_W[pending] < 0]
    new_long = []
    for i in np.flatnonzero(is_long_W).tolist():
      start = words.starts_W[i]
      word = words.data_B[start : start + words.lengths_W[i]].tobytes()
      rows_W[i] = row = self.long.setdefault(word, self.size)
      if row == self.size:
        self.size += 1
        self.long_bytes += len(word)
        new_long.append(i)
    return rows_W, np.concatenate([*new, np.array(new_long, np.intp)])

  def words(self) -> list[bytes]:
    """Returns the word of every row."""
    keys_Nx2 = np.stack([self._low_N, self._high_N], 1)[: self.size]
    words = keys_Nx2.view(f"S{MAX_SHORT}").ravel().tolist()
    for word, row in self.long.items():
      words[row] = word
    return words

  def keep(self, is_kept_N: np.ndarray) -> None:
    """Drops all other rows and renumbers the kept ones in order."""
    new_row_N = np.cumsum(is_kept_N) - 1
    self._low_N = self._low_N[: self.size][is_kept_N]
    self._high_N = self._high_N[: self.size][is_kept_N]
    self.long = {
      word: int(new_row_N[row])
      for word, row in self.long.items()
      if is_kept_N[row]
    }
    self.long_bytes = sum(map(len, self.long))
    self.size = len(self._low_N)
    self._build_slots(len(self._row_of_slot))

  def _build_slots(self, count: int) -> None:
    """Builds a hash table of `count` slots, a power of 2, for all rows."""
    self._row_of_slot = np.full(count, -1, np.int32)
    is_short_N = np.ones(self.size, bool)
    is_short_N[list(self.long.values())] = False
    low_N, high_N = self._low_N[: self.size], self._high_N[: self.size]
    slots_N = self._first_slots(low_N, high_N)
    pending = np.flatnonzero(is_short_N)
    while len(pending):
      free = pending[self._row_of_slot[slots_N[pending]] < 0]
      self._row_of_slot[slots_N[free]] = free  # for equal slots the last wins
      pending = pending[self._row_of_slot[slots_N[pending]] != pending]
      slots_N[pending] = (slots_N[pending] + 1) & (count - 1)

  def _first_slots(self, low_W: np.ndarray, high_W: np.ndarray) -> np.ndarray:
    """Hashes words to the slots at which the search for them begins."""
    hashes_W = low_W * _LOW_FACTOR ^ high_W * _HIGH_FACTOR
    hashes_W ^= hashes_W >> np.uint64(32)
    hashes_W *= _HIGH_FACTOR
    bits = len(self._row_of_slot).bit_length() - 1
    return (hashes_W >> np.uint64(64 - bits)).astype(np.intp)

  def _search(
    self, low_W: np.ndarray, high_W: np.ndarray, slots_W: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Searches words from `slots_W` on, until their slot or a free one.

    Returns the rows, -1 for missing words, and the slots.
    """
    rows_W, slots_W = self._row_of_slot[slots_W], slots_W.copy()
    pending = np.flatnonzero(self._is_taken(rows_W, low_W, high_W))
    while len(pending):
      slots_W[pending] = (slots_W[pending] + 1) & (len(self._row_of_slot) - 1)
      rows_W[pending] = rows = self._row_of_slot[slots_W[pending]]
      pending = pending[self._is_taken(rows, low_W[pending], high_W[pending])]
    return rows_W, slots_W

  def _is_taken(
    self, rows_W: np.ndarray, low_W: np.ndarray, high_W: np.ndarray
  ) -> np.ndarray:
    """Returns bool `[W]`: whether a row exists and belongs to another word."""
    differs_W = self._low_N[rows_W] != low_W
    differs_W |= self._high_N[rows_W] != high_W
    return differs_W & (rows_W >= 0)

  def _add(
    self, low_M: np.ndarray, high_M: np.ndarray, slots_M: np.ndarray
  ) -> np.ndarray:
    """Adds one word at each of the free slots; returns which words."""
    index_M = np.arange(len(slots_M))
    self._row_of_slot[slots_M] = index_M  # for equal slots the last wins
    added = np.flatnonzero(self._row_of_slot[slots_M] == index_M)
    rows = self.size + np.arange(len(added))
    self._low_N[rows], self._high_N[rows] = low_M[added], high_M[added]
    self._row_of_slot[slots_M[added]] = rows
    self.size += len(added)
    return added


def ensure_capacity(array_N: np.ndarray, size: int) -> np.ndarray:
  """Returns the array, or a copy of at least twice its length if too short."""
  if size <= len(array_N):
    return array_N
  grown = np.empty(max(size, 2 * len(array_N)), array_N.dtype)
  grown[: len(array_N)] = array_N
  return grown


def _keys(words: WordSpans) -> tuple[np.ndarray, np.ndarray]:
  """Returns the first 16 bytes of words, padded by zeros, as two numbers."""
  data_B, starts_W, lengths_W = words
  # An overlapping view: the eight bytes that begin at each byte.
  eights_B = np.ndarray((len(data_B) - 7,), "<u8", data_B, strides=(1,))
  sizes_W = np.minimum(lengths_W, MAX_SHORT)
  low_W = eights_B[starts_W] & _LOW_MASKS[sizes_W]
  high_W = eights_B[starts_W + 8] & _HIGH_MASKS[sizes_W]
  return low_W, high_W


class WordIdCache:
  """Stores the ids of words and calls `encode` for new ones."""

  def __init__(self, encode: Callable[[WordSpans], Ids]) -> None:
    self._encode = encode
    self._clear()

  def lookup(self, words: WordSpans) -> Ids:
    """Returns the ids of all words, and the number of ids of each word."""
    index = self._index
    try:
      if index.size > MAX_WORDS or index.long_bytes > MAX_LONG_BYTES:
        self._drop_unused()
      num_old = index.size
      rows_W, new_N = index.lookup(words)
      self._used_N[rows_W[rows_W < num_old]] = True
      if len(new_N):
        self._add(words.take(new_N), num_old)
    except BaseException:
      self._clear()  # the index may hold words without ids
      raise
    lengths_W = self._lengths_N[rows_W]
    ids_T, _ = take_spans(self._ids_T, self._starts_N[rows_W], lengths_W)
    return ids_T, lengths_W

  def _clear(self) -> None:
    self._index = WordIndex()
    self._num_ids = 0
    # All arrays have spare capacity.
    self._ids_T = np.empty(0, np.int32)
    self._starts_N = np.empty(0, np.int64)
    self._lengths_N = np.empty(0, np.int64)
    self._used_N = np.empty(0, bool)  # looked up again by a later call

  def _add(self, new: WordSpans, num_old: int) -> None:
    ids_T, lengths_N = self._encode(new)
    size, num_ids = self._index.size, self._num_ids + len(ids_T)
    assert len(lengths_N) == size - num_old, "encode skipped a word"
    self._ids_T = ensure_capacity(self._ids_T, num_ids)
    self._starts_N = ensure_capacity(self._starts_N, size)
    self._lengths_N = ensure_capacity(self._lengths_N, size)
    self._used_N = ensure_capacity(self._used_N, size)
    self._ids_T[self._num_ids : num_ids] = ids_T
    starts_N = self._num_ids + np.cumsum(lengths_N) - lengths_N
    self._starts_N[num_old:size] = starts_N
    self._lengths_N[num_old:size] = lengths_N
    self._used_N[num_old:size] = False
    self._num_ids = num_ids

  def _drop_unused(self) -> None:
    """Keeps only the words looked up again since this was last called."""
    is_kept_N = self._used_N[: self._index.size]
    kept = np.flatnonzero(is_kept_N)
    self._index.keep(is_kept_N)
    self._lengths_N = self._lengths_N[kept]
    self._ids_T, ends_N = take_spans(
      self._ids_T, self._starts_N[kept], self._lengths_N
    )
    self._starts_N = ends_N - self._lengths_N
    self._num_ids = len(self._ids_T)
    self._used_N = np.zeros(len(kept), bool)


def sum_groups(values_N: np.ndarray, ends_G: np.ndarray) -> np.ndarray:
  """Sums consecutive groups, as int64; group g ends before `ends_G[g]`."""
  sums_N = np.zeros(len(values_N) + 1, np.int64)
  np.cumsum(values_N, out=sums_N[1:])
  return np.diff(sums_N[ends_G], prepend=0)


def interleave(is_first_N: np.ndarray, first: Ids, second: Ids) -> Ids:
  """Merges the ids of two groups of texts; `is_first_N` selects the first."""
  ids_T, lengths_N = map(np.concatenate, zip(first, second, strict=True))
  starts_N = np.cumsum(lengths_N) - lengths_N
  order_N = np.argsort(np.argsort(~is_first_N, kind="stable"))
  ids_T, _ = take_spans(ids_T, starts_N[order_N], lengths_N[order_N])
  return ids_T, lengths_N[order_N]
