"""Reads batches of rows; a batch is a function of the step.

There is no iterator and so no state to save: a resumed run reads the batch of
the next step. Each epoch has its own order of the rows, a keyed permutation
that is computed per index; nothing is shuffled in memory.

  batch_at(rows, step=7, batch_size=256, seed=0)["tokens"]  # int32 [256, L]
"""

import functools
import itertools
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, cast

import numpy as np
from grain.experimental import index_shuffle

from truenegs_jax.data.rows import rows_folder
from truenegs_jax.data.rows.copies import open_verification
from truenegs_jax.data.rows.rows_folder import Rows, Verification, open_rows
from truenegs_jax.data.tokens.tokenizer import check_tokens
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.paths import is_bucket

_ROUNDS = 4  # rounds of the cipher in index_shuffle, grain's default


def batches(
  folder: str | pathlib.Path,
  batch_size: int,
  *,
  tokenizer: Any,
  seed: int = 0,
  start: int = 0,
  split: str = "train",
) -> Iterator[dict[str, np.ndarray]]:
  """Yields the batches of a rows folder from step `start` on, without end.

  >>> tokenizer = load_tokenizer("rows/vocab.txt", lowercase=True)
  >>> steps = batches("rows", 4, tokenizer=tokenizer, seed=1)
  >>> {name: (x.shape, str(x.dtype)) for name, x in next(steps).items()}
  ... # doctest: +NORMALIZE_WHITESPACE
  {'tokens': ((4, 32), 'int32'), 'types': ((4, 32), 'int32'),
   'documents': ((4, 32), 'int32'), 'row': ((4,), 'int32')}
  >>> resumed = batches("rows", 4, tokenizer=tokenizer, seed=1, start=1)
  >>> bool((next(steps)["tokens"] == next(resumed)["tokens"]).all())
  True

  `truenegs prepare` writes such a folder. Checksums of its files are compared
  in a thread meanwhile.

  Args:
    batch_size: rows of a batch.
    tokenizer: the model's, whose tokens those of the rows must be.
    seed: decides the order of the rows.
    start: the first step; a loop that is resumed passes its number of steps.
    split: "train" or "held_out".

  Raises:
    DataError: rows of another vocabulary, or damaged ones.
  """
  fix = "Prepare them again with --config.data.vocab=FOLDER, that of the model."
  saved = rows_folder.load_vocabulary(folder)
  check_tokens(f"The rows in '{folder}'", saved, tokenizer, fix)
  verification = open_verification(folder)
  rows = open_rows(folder, split, verification)
  read = Reader(rows, verification, batch_size=batch_size, seed=seed)
  for step in itertools.count(start):
    verification.check()
    yield read(step)


class Reader:
  """Reads the batches of consecutive steps by `batch_at`.

  Of rows in a bucket it reads the next two meanwhile. So if one cannot be read,
  `verification.error` says so while all processes can still take two steps:
  that many they need to agree on the step after which they save. `options` are
  those of `batch_at`.
  """

  AHEAD = 2

  def __init__(
    self, rows: Rows, verification: Verification, **options: Any
  ) -> None:
    self._rows, self._verification, self._options = rows, verification, options
    self._futures: dict[int, Future[dict[str, np.ndarray]]] = {}

  def __call__(self, step: int) -> dict[str, np.ndarray]:
    """Returns the batch of a step."""

    def read(number: int) -> dict[str, np.ndarray]:
      return batch_at(self._rows, number, **self._options)

    if not is_bucket(self._rows.folder):
      return read(step)
    if self._rows.block_shards:
      size, seed = self._options["batch_size"], self._options["seed"]
      self._verification.keep(_find_files(self._rows, step, size, seed))
    last = step + self.AHEAD
    self._futures = {
      number: self._futures.get(number) or _start(read, number)
      for number in range(step, last + 1)
    }
    # Once an error is known, no other request is waited for.
    if not self._verification.error:
      error = cast(Exception | None, self._futures[last].exception())
      self._verification.error = error and errors.explain(error)
    return self._futures[step].result()


def _start(read: Callable[[int], Any], step: int) -> "Future[Any]":
  """Reads in a thread for which the end of the process does not wait."""
  future: Future[Any] = Future()

  def run() -> None:
    try:
      future.set_result(read(step))
    except Exception as error:  # raised where it is needed
      future.set_exception(error)

  threading.Thread(target=run, daemon=True).start()
  return future


def batch_at(
  rows: Rows,
  step: int,
  *,
  batch_size: int,
  seed: int,
  process: tuple[int, int] = (0, 1),
) -> dict[str, np.ndarray]:
  """Returns the slice of a step's global batch that belongs to this process.

  An epoch consists of the first floor(R / batch_size) batches of one
  permutation of the R rows; it skips the rest, which differs from epoch to
  epoch. A row occurs at most once per epoch. With `rows.block_shards`, shards
  are permuted, and rows within blocks of as many shards.

  Args:
    step: 0, 1, 2, ...
    batch_size: B, the rows of the global batch.
    seed: the key of the permutation, together with the number of the epoch.
    process: (p, P): process p of P gets rows [p B / P, (p + 1) B / P).

  Returns:
    `tokens`, `types`, `documents` int32 [B/P, L] and `row` int32 [B/P], the
    index of each row in the split.

  Raises:
    DataError: the split has fewer rows than a batch, or a token id is not in
      the vocabulary.
    InputError: `batch_size` is not divisible by the number of processes.
  """
  rows_folder.check_batch_size(rows, batch_size)
  start, stop = _slice(batch_size, process)
  epoch, batch = divmod(step, len(rows) // batch_size)
  indices = range(batch * batch_size + start, batch * batch_size + stop)
  if rows.block_shards:
    row_B = _permute_in_blocks(rows, indices, seed, epoch)
  else:
    row_B = _permute(indices, len(rows), seed, epoch)
  return {**rows.take(row_B), "row": row_B.astype(np.int32)}


def _permute(places: Iterable[int], size: int, *seeds: int) -> np.ndarray:
  """Returns which of 0 to size - 1 come at places of a permutation."""
  # Hashed to 32 bits, since nearby keys must give unrelated permutations.
  [key] = np.random.SeedSequence(seeds).generate_state(1).tolist()
  shuffled = [index_shuffle(i, size - 1, key, _ROUNDS) for i in places]
  return np.array(shuffled, np.int64)


_permute_cached = functools.lru_cache(maxsize=4)(_permute)


def _list_blocks(
  rows: Rows, seed: int, epoch: int
) -> tuple[list[np.ndarray], np.ndarray]:
  """Returns the shards of each block of an epoch, and where blocks begin."""
  size_S = np.diff(rows.starts)
  number = len(size_S)
  shard_S = _permute_cached(range(number), number, seed, epoch)
  num_blocks = -(-number // rows.block_shards)
  blocks = np.array_split(shard_S, num_blocks)  # of nearly as many shards
  return blocks, np.cumsum([0, *(size_S[block].sum() for block in blocks)])


def _permute_in_blocks(
  rows: Rows, places: Iterable[int], seed: int, epoch: int
) -> np.ndarray:
  place_B = np.array(places, np.int64)
  blocks, starts = _list_blocks(rows, seed, epoch)
  number_B = np.searchsorted(starts, place_B, side="right") - 1
  for number in np.unique(number_B):
    chosen_B, shards = number_B == number, blocks[number]
    at_B = place_B[chosen_B] - starts[number]
    size = int(starts[number + 1] - starts[number])
    at_B = _permute(at_B.tolist(), size, seed, epoch, int(number) + 1)
    ends = np.cumsum(np.diff(rows.starts)[shards])
    shard_B = np.searchsorted(ends, at_B, side="right")
    # From the end of a shard in its block to that in the split.
    shift_B = rows.starts[shards[shard_B] + 1] - ends[shard_B]
    place_B[chosen_B] = at_B + shift_B
  return place_B


def _find_files(rows: Rows, step: int, batch_size: int, seed: int) -> list[str]:
  """Returns the files of the block of a step, and of the next block."""
  epoch, batch = divmod(step, len(rows) // batch_size)
  blocks, starts = _list_blocks(rows, seed, epoch)
  number = np.searchsorted(starts, batch * batch_size, side="right") - 1
  later = [*blocks[number + 1 :], *_list_blocks(rows, seed, epoch + 1)[0]]
  shards = [*blocks[number], *later[0]]
  return [file.path.name for shard in shards for file in rows.shards[shard]]


def held_out_batches(
  rows: Rows,
  batch_size: int,
  *,
  limit: int | None = None,
  process: tuple[int, int] = (0, 1),
) -> Iterator[dict[str, np.ndarray]]:
  """Yields rows, all or the first `limit`, once and in order, to evaluate.

  Batches have the arrays of `batch_at`. The last one is filled up with padding
  rows: `row` -1, `documents` 0. Every process gets the same number of batches.
  """
  start, stop = _slice(batch_size, process)
  fills = {"tokens": rows.pad, "types": 0, "documents": 0, "row": -1}
  num_rows = len(rows) if limit is None else min(limit, len(rows))
  for first in range(0, num_rows, batch_size):
    row_B = np.arange(first + start, min(first + stop, num_rows))
    batch = {**rows.take(row_B), "row": row_B.astype(np.int32)}
    for name, array in batch.items():
      widths = [(0, stop - start - len(array))] + [(0, 0)] * (array.ndim - 1)
      batch[name] = np.pad(array, widths, constant_values=fills[name])
    yield batch


def _slice(batch_size: int, process: tuple[int, int]) -> tuple[int, int]:
  index, count = process
  if batch_size < 1 or batch_size % count:
    raise errors.InputError(
      f"batch_size={batch_size} is not a positive multiple of the number of"
      f" processes, {count}. Set --config.batch_size to"
      f" {max(1, batch_size // count) * count}."
    )
  size = batch_size // count
  return index * size, (index + 1) * size
