"""Ids of words: remembered, and asked for where a word is new."""

from collections.abc import Callable

import numpy as np

from truenegs_jax.data.word_index import WordIndex, with_room
from truenegs_jax.data.words import Words, take_spans

# Of a table. The two tables of an encoder (words, and their pieces) take 50 MB
# for 36 MB of Wikipedia, which have 380,000 different words, and stay below
# 250 MB where every word of a text is new and long.
MAX_WORDS = 400_000
MAX_LONG_BYTES = 2**23

# Words -> (ids of all, one after another: int32; how many each has: int64).
Encode = Callable[[Words], tuple[np.ndarray, np.ndarray]]


class WordTable:
  """The ids of words met so far; it asks `encode` for others."""

  def __init__(self, encode: Encode) -> None:
    self._encode = encode
    self._forget()

  def ids(self, words: Words) -> tuple[np.ndarray, np.ndarray]:
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

  def _add(self, new: Words, num_old: int) -> None:
    ids_T, lengths_N = self._encode(new)
    size, num_ids = self._index.size, self._num_ids + len(ids_T)
    assert len(lengths_N) == size - num_old, "a word without its ids"
    self._ids_T = with_room(self._ids_T, num_ids)
    self._starts_N = with_room(self._starts_N, size)
    self._lengths_N = with_room(self._lengths_N, size)
    self._used_N = with_room(self._used_N, size)
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


def group_sums(values_N: np.ndarray, ends_G: np.ndarray) -> np.ndarray:
  """Sums of consecutive groups, int64; group g ends before `ends_G[g]`."""
  sums_N = np.zeros(len(values_N) + 1, np.int64)
  np.cumsum(values_N, out=sums_N[1:])
  return np.diff(sums_N[ends_G], prepend=0)


def in_order(
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
