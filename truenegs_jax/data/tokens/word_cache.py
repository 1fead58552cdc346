"""Remembers the ids of words: each different word is encoded once.

  table = WordTable(encode)
  ids_T, lengths_W = table.ids(words)

A `WordIndex` numbers words: equal ones get equal numbers, 0, 1, 2, ... as they
come. Python takes 50 ns to make a word and as much to look it up; here words
are compared as two numbers of 64 bits, all at once in numpy: 30 ns. Long words
are left to a dictionary. A `WordIdCache` keeps the ids by these numbers, and
forgets words that were met once when there are too many.
"""

from collections.abc import Callable

import numpy as np

from truenegs_jax.data.tokens.split_words import PADDING, WordSpans, take_spans

LONG = 16  # bytes; in English one word in a thousand is longer
assert PADDING >= LONG
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], "<u8")
_SIZES = np.arange(LONG + 1)
_LOW_MASKS = _MASKS[np.minimum(_SIZES, 8)]
_HIGH_MASKS = _MASKS[np.maximum(_SIZES - 8, 0)]
# Odd numbers with about as many ones as zeros, as in xxHash.
_LOW_FACTOR, _HIGH_FACTOR = np.array(
  [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64
)


# Of a table. The two tables of an encoder (words, and basic tokens) take 50 MB
# for 36 MB of Wikipedia, which have 380,000 different words, and stay below
# 250 MB where every word of a text is new and long.
MAX_WORDS = 400_000
MAX_LONG_BYTES = 2**23

# Words -> (ids of all, one after another: int32; how many each has: int64).
Encode = Callable[[WordSpans], tuple[np.ndarray, np.ndarray]]


class WordIndex:
  """Words -> rows, in a table of slots with linear probing.

  Attributes:
    size: the number of rows.
    long: word of more than LONG bytes -> row.
    long_bytes: of all of them.
  """

  def __init__(self) -> None:
    self.size = 0
    self.long: dict[bytes, int] = {}
    self.long_bytes = 0
    # Bytes 0 to 7 and 8 to 15 of the word of a row; with room to grow.
    self._low_N = np.empty(1, np.uint64)
    self._high_N = np.empty(1, np.uint64)
    self._make_slots(1 << 12)

  def rows(self, words: WordSpans) -> tuple[np.ndarray, np.ndarray]:
    """The rows of words; adds those that are new.

    Bytes 0 at the end of a short word do not count; BERT drops them.

    Returns:
      rows_W: int32.
      new_N: of every row that is new, in order, where in `words` its word is.
    """
    count = len(words.starts_W)
    while 2 * (self.size + count) > len(self._row_of_slot):
      self._make_slots(2 * len(self._row_of_slot))
    self._low_N = ensure_capacity(self._low_N, self.size + count)
    self._high_N = ensure_capacity(self._high_N, self.size + count)
    low_W, high_W = _keys(words)
    slots_W = self._slots(low_W, high_W)
    rows_W = self._search(low_W, high_W, slots_W)
    is_long_W = words.lengths_W > LONG
    left = np.flatnonzero((rows_W < 0) & ~is_long_W)
    new = [self._add(low_W[left], high_W[left], slots_W[left], left, rows_W)]
    if is_long_W.any():
      new.append(self._add_long(words, np.flatnonzero(is_long_W), rows_W))
    return rows_W, np.concatenate(new)

  def words(self) -> list[bytes]:
    """The word of every row."""
    keys_Nx2 = np.stack([self._low_N, self._high_N], 1)[: self.size]
    words = keys_Nx2.view(f"S{LONG}").ravel().tolist()
    for word, row in self.long.items():
      words[row] = word
    return words

  def keep(self, is_kept_N: np.ndarray) -> None:
    """Forgets the other rows; those kept are numbered anew, in order."""
    row_of_old_N = np.cumsum(is_kept_N) - 1
    self._low_N = self._low_N[: self.size][is_kept_N]
    self._high_N = self._high_N[: self.size][is_kept_N]
    self.long = {
      word: int(row_of_old_N[row])
      for word, row in self.long.items()
      if is_kept_N[row]
    }
    self.long_bytes = sum(map(len, self.long))
    self.size = len(self._low_N)
    self._make_slots(len(self._row_of_slot))

  def _make_slots(self, count: int) -> None:
    """Makes a table of 2**n slots for the rows there are."""
    self._row_of_slot = np.full(count, -1, np.int32)
    is_short_N = np.ones(self.size, bool)
    is_short_N[list(self.long.values())] = False
    slots_N = self._slots(self._low_N[: self.size], self._high_N[: self.size])
    left = np.flatnonzero(is_short_N)
    while len(left):
      free = left[self._row_of_slot[slots_N[left]] < 0]
      self._row_of_slot[slots_N[free]] = free  # of several the last stays
      left = left[self._row_of_slot[slots_N[left]] != left]
      slots_N[left] = (slots_N[left] + 1) & (count - 1)

  def _slots(self, low_W: np.ndarray, high_W: np.ndarray) -> np.ndarray:
    """Where the search for words begins."""
    hashes_W = low_W * _LOW_FACTOR ^ high_W * _HIGH_FACTOR
    hashes_W ^= hashes_W >> np.uint64(32)
    hashes_W *= _HIGH_FACTOR
    bits = len(self._row_of_slot).bit_length() - 1
    return (hashes_W >> np.uint64(64 - bits)).astype(np.intp)

  def _search(
    self, low_W: np.ndarray, high_W: np.ndarray, slots_W: np.ndarray
  ) -> np.ndarray:
    """Moves `slots_W` to the slots of words, or to free ones; their rows."""
    rows_W = self._row_of_slot[slots_W]
    left = np.flatnonzero(self._are_others(rows_W, low_W, high_W))
    while len(left):
      slots_W[left] = (slots_W[left] + 1) & (len(self._row_of_slot) - 1)
      rows_W[left] = rows = self._row_of_slot[slots_W[left]]
      left = left[self._are_others(rows, low_W[left], high_W[left])]
    return rows_W

  def _are_others(
    self, rows_W: np.ndarray, low_W: np.ndarray, high_W: np.ndarray
  ) -> np.ndarray:
    is_other_W = self._low_N[rows_W] != low_W
    is_other_W |= self._high_N[rows_W] != high_W
    return is_other_W & (rows_W >= 0)

  def _add(
    self,
    low_M: np.ndarray,
    high_M: np.ndarray,
    slots_M: np.ndarray,
    places_M: np.ndarray,
    rows_W: np.ndarray,
  ) -> np.ndarray:
    """Adds words that came to a free slot; tells `rows_W` at their places."""
    added = [places_M[:0]]
    left = np.arange(len(places_M))
    while len(left):
      self._row_of_slot[slots_M[left]] = left  # of several the last stays
      winners = left[self._row_of_slot[slots_M[left]] == left]
      rows = np.arange(self.size, self.size + len(winners))
      self._low_N[rows], self._high_N[rows] = low_M[winners], high_M[winners]
      self._row_of_slot[slots_M[winners]] = rows
      self.size += len(winners)
      added.append(places_M[winners])
      # Equal words have found theirs; others of the same slot go on.
      slots = slots_M[left]
      found = self._search(low_M[left], high_M[left], slots)
      slots_M[left] = slots
      rows_W[places_M[left]] = found
      left = left[found < 0]
    return np.concatenate(added)

  def _add_long(
    self, words: WordSpans, places: np.ndarray, rows_W: np.ndarray
  ) -> np.ndarray:
    added = []
    data = words.data_B.data
    for place in places.tolist():
      start = words.starts_W[place]
      word = bytes(data[start : start + words.lengths_W[place]])
      row = self.long.setdefault(word, self.size)
      if row == self.size:
        self.size += 1
        self.long_bytes += len(word)
        added.append(place)
      rows_W[place] = row
    return np.array(added, np.intp)


def ensure_capacity(array_N: np.ndarray, size: int) -> np.ndarray:
  """The array, or a copy that is at least twice as long where it is short."""
  if size <= len(array_N):
    return array_N
  grown = np.empty(max(size, 2 * len(array_N)), array_N.dtype)
  grown[: len(array_N)] = array_N
  return grown


def _keys(words: WordSpans) -> tuple[np.ndarray, np.ndarray]:
  """The first 16 bytes of words, zeros after their end, as two numbers."""
  data_B, starts_W, lengths_W = words
  # The eight bytes from every byte on.
  eights_B = np.ndarray((len(data_B) - 7,), "<u8", data_B, strides=(1,))
  sizes_W = np.minimum(lengths_W, LONG)
  low_W = eights_B[starts_W] & _LOW_MASKS[sizes_W]
  high_W = eights_B[starts_W + 8] & _HIGH_MASKS[sizes_W]
  return low_W, high_W


class WordIdCache:
  """The ids of words met so far; it asks `encode` for others."""

  def __init__(self, encode: Encode) -> None:
    self._encode = encode
    self._forget()

  def ids(self, words: WordSpans) -> tuple[np.ndarray, np.ndarray]:
    """Ids of words, one after another, and how many each has."""
    try:
      if (
        self._index.size > MAX_WORDS or self._index.long_bytes > MAX_LONG_BYTES
      ):
        self._purge()
      num_old = self._index.size
      rows_W, new_N = self._index.rows(words)
      self._used_N[rows_W[rows_W < num_old]] = True
      if len(new_N):
        self._add(words.take(new_N), num_old)
    except BaseException:
      self._forget()  # or words would be left without ids
      raise
    lengths_W = self._lengths_N[rows_W]
    ids_T, _ = take_spans(self._ids_T, self._starts_N[rows_W], lengths_W)
    return ids_T, lengths_W

  def _forget(self) -> None:
    self._index = WordIndex()
    self._num_ids = 0
    self._ids_T = np.empty(0, np.int32)  # these have room to grow
    self._starts_N = np.empty(0, np.int64)
    self._lengths_N = np.empty(0, np.int64)
    self._used_N = np.empty(0, bool)  # met in another call than the first

  def _add(self, new: WordSpans, num_old: int) -> None:
    ids_T, lengths_N = self._encode(new)
    size, num_ids = self._index.size, self._num_ids + len(ids_T)
    assert len(lengths_N) == size - num_old, "a word without its ids"
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

  def _purge(self) -> None:
    """Keeps the words that were met again since the last time."""
    kept_N = self._used_N[: self._index.size].copy()
    self._lengths_N = self._lengths_N[: self._index.size][kept_N]
    self._ids_T, ends_N = take_spans(
      self._ids_T, self._starts_N[: self._index.size][kept_N], self._lengths_N
    )
    self._starts_N = ends_N - self._lengths_N
    self._num_ids = len(self._ids_T)
    self._used_N = np.zeros(len(self._lengths_N), bool)
    self._index.keep(kept_N)


def sum_groups(values_N: np.ndarray, ends_G: np.ndarray) -> np.ndarray:
  """Sums of consecutive groups, int64; group g ends before `ends_G[g]`."""
  sums_N = np.zeros(len(values_N) + 1, np.int64)
  np.cumsum(values_N, out=sums_N[1:])
  return np.diff(sums_N[ends_G], prepend=0)


def interleave(
  is_first_N: np.ndarray,
  first: tuple[np.ndarray, np.ndarray],
  second: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
  """Puts ids and lengths of two kinds of texts into one order.

  Args:
    is_first_N: which kind the texts are of.
    first, second: ids and lengths of the texts of either kind.
  """
  ids_T = np.concatenate([first[0], second[0]])
  lengths_N = np.concatenate([first[1], second[1]])
  starts_N = np.cumsum(lengths_N) - lengths_N
  places_N = np.argsort(np.argsort(~is_first_N, kind="stable"))
  ids_T, _ = take_spans(ids_T, starts_N[places_N], lengths_N[places_N])
  return ids_T, lengths_N[places_N]
