"""Reads batches of rows; a batch is a function of the step.

There is no iterator and so no state to save: a resumed run reads the batch of
the next step. Each epoch has its own order of the rows, a keyed permutation
that is computed per index; nothing is shuffled in memory.

  batch_at(rows, step=7, batch_size=256, seed=0)["tokens"]  # int32 [256, L]
"""

import itertools
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from grain.experimental import index_shuffle

from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.rows import Rows, copy_rows, open_rows, verify_rows
from truenegs_jax.data.tokenizer import check_tokens
from truenegs_jax.runtime.errors import DataError

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
  before the first batch.

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
  folder = copy_rows(folder)
  verify_rows(folder)
  rows = open_rows(folder, split)
  for step in itertools.count(start):
    yield batch_at(rows, step, batch_size=batch_size, seed=seed)


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
  epoch. A row occurs at most once per epoch.

  Args:
    step: 0, 1, 2, ...
    batch_size: B, the rows of the global batch.
    seed: the key of the permutation, together with the number of the epoch.
    process: (p, P): process p of P gets rows [p B / P, (p + 1) B / P).

  Returns:
    `tokens`, `types`, `documents` int32 [B/P, L] and `row` int32 [B/P], the
    index of each row in the split.

  Raises:
    DataError: the split has fewer rows than a batch.
  """
  check_batch_size(rows, batch_size)
  start, stop = _slice(batch_size, process)
  epoch, batch = divmod(step, len(rows) // batch_size)
  indices = range(batch * batch_size + start, batch * batch_size + stop)
  row_B = _permute(indices, len(rows), seed, epoch)
  return {**rows.take(row_B), "row": row_B.astype(np.int32)}


def split_rows(
  batch: dict[str, np.ndarray], parts: int
) -> dict[str, np.ndarray]:
  """Reads each row of a batch as `parts` rows, one after the other.

  Those of row i have the indices parts * i to parts * i + parts - 1.
  """
  arrays = {name: x for name, x in batch.items() if name != "row"}
  short = {
    name: x.reshape(-1, x.shape[1] // parts) for name, x in arrays.items()
  }
  row_BxP = batch["row"][:, None] * parts + np.arange(parts, dtype=np.int32)
  return short | {"row": row_BxP.reshape(-1)}


def check_batch_size(rows: Rows, batch_size: int) -> None:
  """Raises DataError if a split has less than one batch."""
  if len(rows) < batch_size:
    raise DataError(
      f"batch_size={batch_size} is more than the {len(rows):,} rows of"
      f" {rows.split!r} in '{rows.folder}'. Add text, or set"
      f" --config.batch_size to at most {len(rows)}."
    )


def _permute(places: Iterable[int], size: int, *seeds: int) -> np.ndarray:
  """Returns which of 0 to size - 1 come at places of a permutation."""
  # Hashed to 32 bits, since nearby keys must give unrelated permutations.
  [key] = np.random.SeedSequence(seeds).generate_state(1).tolist()
  shuffled = [index_shuffle(i, size - 1, key, _ROUNDS) for i in places]
  return np.array(shuffled, np.int64)


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
  """Returns the first place of a slice, and that after its last one."""
  index, count = process
  size = batch_size // count
  return index * size, (index + 1) * size
