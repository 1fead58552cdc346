"""Rows on disk -> batches: a batch is a function of the step.

There is no iterator, hence no state to save: a resumed run asks for the next
step. Every epoch visits the rows in another order, a keyed permutation that
is computed per index, so nothing is shuffled in memory.

  batch_at(rows, step=7, batch_size=256, seed=0)["tokens"]  # int32 [256, L]
"""

from collections.abc import Iterator

import numpy as np
from grain.experimental import index_shuffle

from truenegs_jax.data.rows.rows_folder import Rows, check_batch_size
from truenegs_jax.runtime.errors import InputError

_ROUNDS = 4  # of the cipher behind index_shuffle; grain's own choice


def batch_at(
  rows: Rows,
  step: int,
  *,
  batch_size: int,
  seed: int,
  process: tuple[int, int] = (0, 1),
) -> dict[str, np.ndarray]:
  """This process's share of the global batch of a step.

  An epoch is the floor(R / batch_size) whole batches of one permutation of
  the rows; the remaining rows are others in every epoch. A row occurs at most
  once in a step and in an epoch.

  Args:
    step: 0, 1, 2, ...
    batch_size: B, rows of the global batch.
    seed: with the number of the epoch, the key of the permutation.
    process: (p, P): process p of P gets rows [p B / P, (p + 1) B / P).

  Returns:
    `tokens`, `types`, `documents` int32 [B/P, L] and `row` int32 [B/P], the
    number of each row in the split.

  Raises:
    DataError: fewer rows than a batch, or a token id beyond the vocabulary.
    InputError: `batch_size` does not divide by the number of processes.
  """
  check_batch_size(rows, batch_size)
  start, stop = _share(batch_size, process)
  num_batches = len(rows) // batch_size
  epoch, batch = divmod(step, num_batches)
  key = _key(seed, epoch)
  first, last = batch * batch_size + start, batch * batch_size + stop
  row_B = np.fromiter(
    (index_shuffle(i, len(rows) - 1, key, _ROUNDS) for i in range(first, last)),
    np.int64,
    count=last - first,
  )
  return {**rows.take(row_B), "row": row_B.astype(np.int32)}


def held_out_batches(
  rows: Rows, batch_size: int, *, process: tuple[int, int] = (0, 1)
) -> Iterator[dict[str, np.ndarray]]:
  """All rows once, in order, in batches of one shape; for evaluation.

  The last batch is filled up with rows of padding: `row` -1, `documents` 0.
  Every process gets the same number of batches.

  Yields:
    What `batch_at` returns.
  """
  start, stop = _share(batch_size, process)
  for first in range(0, len(rows), batch_size):
    numbers_B = np.arange(first + start, first + stop)
    yield _take_padded(rows, numbers_B[numbers_B < len(rows)], stop - start)


def _take_padded(
  rows: Rows, row_B: np.ndarray, size: int
) -> dict[str, np.ndarray]:
  batch = {**rows.take(row_B), "row": row_B.astype(np.int32)}
  fills = {"tokens": rows.pad, "types": 0, "documents": 0, "row": -1}
  for name, array in batch.items():
    missing = [(0, size - len(array))] + [(0, 0)] * (array.ndim - 1)
    batch[name] = np.pad(array, missing, constant_values=fills[name])
  return batch


def _share(batch_size: int, process: tuple[int, int]) -> tuple[int, int]:
  index, count = process
  if batch_size < 1 or batch_size % count:
    raise InputError(
      f"batch_size={batch_size} must be at least 1 and divide by the number"
      f" of processes, {count}; try {max(1, batch_size // count) * count}."
    )
  size = batch_size // count
  return index * size, (index + 1) * size


def _key(seed: int, epoch: int) -> int:
  """32 bits that look unrelated for neighbouring seeds and epochs."""
  return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
