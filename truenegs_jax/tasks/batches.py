"""Texts of a task as rows of ids, and these rows as batches.

  encoded = encode(examples, task, tokenizer, length=128)
  batch_at(encoded, 7, batch_size=32, seed=0, limit=128)["tokens"]  # [32, L]

A row is [CLS] A [SEP] or [CLS] A [SEP] B [SEP], as ELECTRA's released code cuts
it (google-research/electra, `finetune/classification/classification_tasks.py`).

A batch is a function of the step, so there is no state to save: a resumed run
asks for the next step. Rows are short and of very different lengths, so a batch
groups rows of like length and is as long as its longest, rounded up to one of a
few lengths, for each of which the step is compiled once.
"""

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.tasks.task import SCORE, EncodedRows, Example, Task

BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # tokens of a row
MIN_WINDOWS = 4  # of an epoch; else the same rows would meet in each of them
CHUNK_TEXTS = 10_000  # tokenized at a time, for the memory that it takes


def encode(
  examples: Sequence[Example],
  task: Task,
  tokenizer: Tokenizer,
  *,
  length: int,
  swap: bool = False,
) -> EncodedRows:
  """Cuts texts to ids.

  Of a pair that is too long the longer text loses its last token, B where both
  are as long, until it fits; a text alone loses its end. A B without a token
  is none.

  Args:
    length: tokens of a row at most, [CLS] and [SEP] among them; 3 or more.
    swap: all examples follow once more as B, A: what `Task.both_orders` wants.

  Returns:
    A row an example, in order. No targets where no example has a label.

  Raises:
    DataError: a label that the task lacks, or some examples have none.
  """
  firsts = [example.first for example in examples]
  seconds = [example.second or "" for example in examples]
  if swap:
    examples = [*examples, *examples]
    firsts, seconds = firsts + seconds, seconds + firsts
  tokens, types, num_cut = [], [], 0
  pairs = zip(_ids(firsts, tokenizer), _ids(seconds, tokenizer), strict=True)
  for a, b in pairs:
    size_a, size_b = truncated_sizes(len(a), len(b), length)
    num_cut += size_a < len(a) or size_b < len(b)
    row = [tokenizer.cls, *a[:size_a], tokenizer.sep]
    if size_b:
      row += [*b[:size_b], tokenizer.sep]
    tokens.append(np.array(row, np.int32))
    types.append(_types(size_a + 2, len(row)))
  return EncodedRows(tokens, types, _targets(examples, task), num_cut)


def truncated_sizes(size_a: int, size_b: int, length: int) -> tuple[int, int]:
  """How many tokens of A and B go into a row; `encode` has the rule."""
  if not size_b:
    return min(size_a, length - 2), 0
  room = length - 3
  over = max(0, size_a + size_b - room)
  # What the longer has more goes first, the rest by turns, B before A.
  alone = min(over, abs(size_a - size_b))
  lost_a = (over - alone) // 2 + (alone if size_a > size_b else 0)
  return size_a - lost_a, size_b - (over - lost_a)


def _ids(texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
  for start in range(0, len(texts), CHUNK_TEXTS):
    yield from tokenizer.encode_lines(texts[start : start + CHUNK_TEXTS])


@functools.cache
def _types(size_a: int, size: int) -> np.ndarray:
  """Shared by the rows that have the same: there are few different ones."""
  types_L = np.zeros(size, np.int32)
  types_L[size_a:] = 1
  types_L.flags.writeable = False
  return types_L


def _targets(examples: Sequence[Example], task: Task) -> dict[str, np.ndarray]:
  if all(example.label is None for example in examples):
    return {}
  ids = {label: i for i, label in enumerate(task.labels)}
  offset, scale = task.scale
  targets = []
  for example in examples:
    label = example.label
    if task.kind == SCORE and isinstance(label, float):
      targets.append((label - offset) / scale)
    elif task.kind != SCORE and label in ids:
      targets.append(ids[label])
    else:
      raise DataError(
        f"{example.location}: label {label!r}; those of {task.title} are"
        f" {', '.join(task.labels) or 'numbers'}."
      )
  kind = np.float32 if task.kind == SCORE else np.int32
  return {"label": np.array(targets, kind)}


def num_steps(num_rows: int, batch_size: int, epochs: float) -> int:
  """Steps of so many epochs, rounded up, as is the last batch of each.

  So google-research/electra, which fills up the last batch of an epoch with
  rows of no weight (`finetune/preprocessing.py`).
  """
  _check(num_rows, batch_size)
  steps = -(-num_rows // batch_size) * epochs
  return max(1, math.ceil(round(steps, 6)))  # 50 * 1.1 is above 55


def batch_at(
  encoded: EncodedRows,
  step: int,
  *,
  batch_size: int,
  seed: int,
  limit: int,
  window: int = 50,
) -> dict[str, np.ndarray]:
  """The batch of a step of training.

  An epoch visits every row once, in a permutation of its own. Windows of it are
  sorted by length and cut into batches, and the batches of all windows come in
  random order. What is left over, N mod B rows, is a batch that is filled up:
  those rows are drawn at random, not by length, as each of them weighs more.

  Args:
    step: 0, 1, 2, ...
    batch_size: B.
    seed: with the number of the epoch, the key of the permutation.
    limit: tokens of the longest row that the task allows.
    window: batches of a window, at most a quarter of an epoch; 1: no grouping.

  Returns:
    `tokens`, `types` and `documents` (1, or 0 for padding) int32 [B, L], `row`
    int32 [B] (its number, -1 where there is none), `weight` f32 [B] (1 or 0),
    and the targets [B]. L is in BUCKETS, or `limit` where that is smaller.

  Raises:
    DataError: there are no rows.
    InputError: `batch_size` is below 1, or a row is longer than `limit`.
  """
  num_batches = num_steps(len(encoded.tokens), batch_size, 1)
  epoch, batch = divmod(step, num_batches)
  epoch_batches = _epoch(encoded, epoch, batch_size, seed, window)
  return _take(encoded, epoch_batches[batch], batch_size, limit)


def batches_in_order(
  encoded: EncodedRows, *, batch_size: int, limit: int
) -> Iterator[dict[str, np.ndarray]]:
  """Every row once, the longest first; for evaluation.

  The last batch is filled up. What does not fit into memory shows at once.

  Yields:
    What `batch_at` returns; raises what it does.
  """
  _check(len(encoded.tokens), batch_size)
  row_N = np.argsort(-encoded.lengths_N, kind="stable")
  for first in range(0, len(row_N), batch_size):
    yield _take(encoded, row_N[first : first + batch_size], batch_size, limit)


@functools.lru_cache(maxsize=2)
def _epoch(
  encoded: EncodedRows, epoch: int, batch_size: int, seed: int, window: int
) -> list[np.ndarray]:
  """The numbers of the rows of each batch of an epoch."""
  length_N = encoded.lengths_N
  row_N = _shuffled(len(length_N), seed, epoch, 0)
  num_full = len(length_N) // batch_size
  size = batch_size * max(1, min(window, num_full // MIN_WINDOWS))
  for first in range(0, num_full * batch_size, size):
    part = row_N[first : min(first + size, num_full * batch_size)]
    part[:] = part[np.argsort(length_N[part], kind="stable")]
  cuts = range(0, len(row_N), batch_size)
  order = _shuffled(len(cuts), seed, epoch, 1)
  return [row_N[cuts[i] : cuts[i] + batch_size] for i in order]


def _shuffled(size: int, *key: int) -> np.ndarray:
  """A permutation of range(size), the same with every version of numpy."""
  bits = np.random.PCG64(np.random.SeedSequence(key)).random_raw(size)
  return np.argsort(bits, kind="stable")


def _take(
  encoded: EncodedRows, row_B: np.ndarray, batch_size: int, limit: int
) -> dict[str, np.ndarray]:
  """Rows side by side, padded to a length of few, and filled up to B rows."""
  longest = max(len(encoded.tokens[i]) for i in row_B)
  if longest > limit:
    raise InputError(
      f"A row has {longest} tokens, the limit is {limit}: cut rows to it, or"
      f" give a limit of {longest}."
    )
  length = min(limit, next((x for x in BUCKETS if x >= longest), limit))
  filled = np.pad(row_B, (0, batch_size - len(row_B)), constant_values=-1)
  batch = {
    name: np.zeros((batch_size, length), np.int32)
    for name in ("tokens", "types", "documents")
  }
  for b, i in enumerate(row_B):
    n = len(encoded.tokens[i])
    batch["tokens"][b, :n] = encoded.tokens[i]
    batch["types"][b, :n] = encoded.types[i]
    batch["documents"][b, :n] = 1
  for name, values_N in encoded.targets.items():
    batch[name] = np.where(filled < 0, 0, values_N[filled]).astype(
      values_N.dtype
    )
  return {
    **batch,
    "row": filled.astype(np.int32),
    "weight": (filled >= 0).astype(np.float32),
  }


def _check(num_rows: int, batch_size: int) -> None:
  if num_rows < 1:
    raise DataError("There are no rows to batch; look at the task's files.")
  if batch_size < 1:
    raise InputError(f"batch_size={batch_size} must be at least 1.")
