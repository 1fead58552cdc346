"""Encodes the examples of a task as rows of token ids, and batches the rows.

  encoded = encode(examples, task, tokenizer, length=128)
  batch_at(encoded, 7, batch_size=32, seed=0, limit=128)["tokens"]  # [32, L]

A row is [CLS] A [SEP] or [CLS] A [SEP] B [SEP], truncated like ELECTRA's
(google-research/electra, `finetune/classification/classification_tasks.py`).

A batch is a function of the step, so the pipeline has no state to save. Rows
are short and their lengths differ widely. A batch therefore groups rows of
similar length and is padded to one of a few lengths (BUCKETS); the training
step is compiled once for each.
"""

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.tasks.task import SCORE, EncodedRows, Example, Task

BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # row lengths
MIN_WINDOWS = 4  # per epoch; with fewer, the same rows meet in every epoch
INPUTS = ("tokens", "types", "documents")  # of the network
CHUNK_TEXTS = 10_000  # texts tokenized at once; bounds the memory


def encode(
  examples: Sequence[Example],
  task: Task,
  tokenizer: Tokenizer,
  *,
  length: int,
  both_orders: bool = False,
) -> EncodedRows:
  """Encodes each example as a row of at most `length` token ids, in order.

  A pair that is too long loses tokens from the end of its longer text, or of B
  if both are equally long, until it fits. A single text loses its end. An empty
  B is left out. `targets` is empty unless all examples have labels.
  `both_orders` appends every example once more as B, A.
  """
  firsts = [example.first for example in examples]
  seconds = [example.second or "" for example in examples]
  if both_orders:
    examples = [*examples, *examples]
    swapped = [*seconds, *firsts]
    firsts = [*firsts, *seconds]
    seconds = swapped
  tokens = []
  types = []
  num_cut = 0

  def encode_texts(texts: Sequence[str]) -> Iterator[list[int]]:
    for start in range(0, len(texts), CHUNK_TEXTS):
      yield from tokenizer.encode_lines(texts[start : start + CHUNK_TEXTS])

  for a, b in zip(encode_texts(firsts), encode_texts(seconds), strict=True):
    size_a, size_b = truncated_sizes(len(a), len(b), length)
    num_cut += size_a < len(a) or size_b < len(b)
    row = [tokenizer.cls, *a[:size_a], tokenizer.sep]
    if size_b:
      row += [*b[:size_b], tokenizer.sep]
    tokens.append(np.array(row, np.int32))
    types.append((np.arange(len(row)) >= size_a + 2).astype(np.int32))
  return EncodedRows(tokens, types, _targets(examples, task), num_cut)


def truncated_sizes(size_a: int, size_b: int, length: int) -> tuple[int, int]:
  """Returns how many tokens of A and of B `encode` keeps in a row."""
  if not size_b:
    return min(size_a, length - 2), 0
  excess = max(0, size_a + size_b - (length - 3))
  # Closed form of removing one token at a time: first the longer text is cut
  # to the size of the other, then both in turn, B first.
  longer_only = min(excess, abs(size_a - size_b))
  lost_a = (excess - longer_only) // 2
  if size_a > size_b:
    lost_a += longer_only
  return size_a - lost_a, size_b - (excess - lost_a)


def _targets(examples: Sequence[Example], task: Task) -> dict[str, np.ndarray]:
  golds = [example.gold for example in examples]
  if None in golds:
    return {}
  if task.kind == SCORE:
    offset, scale = task.scale
    score_N = (np.array(golds, float) - offset) / scale
    return {"label": score_N.astype(np.float32)}
  ids = {label: i for i, label in enumerate(task.labels)}
  return {"label": np.array([ids[str(x)] for x in golds], np.int32)}


def num_steps(num_rows: int, batch_size: int, epochs: float) -> int:
  """Returns the number of training steps, rounded up.

  The last batch of an epoch counts as one step; rows of weight 0 fill it
  (google-research/electra, `finetune/preprocessing.py`).
  """
  steps = -(-num_rows // batch_size) * epochs
  return max(1, math.ceil(round(steps, 6)))  # 50 * 1.1 > 55 in floats


def batch_at(
  encoded: EncodedRows,
  step: int,
  *,
  batch_size: int,
  seed: int,
  limit: int,
  window: int = 50,
) -> dict[str, np.ndarray]:
  """Returns the training batch of a step.

  Every epoch visits each row once, in a new random order. Windows of that
  order are sorted by length and cut into batches, and the batches of all
  windows are shuffled. The remaining N mod B rows form one batch filled up with
  empty rows. They are drawn at random, not by length, because each of them has
  more weight in its batch.

  Args:
    limit: maximum number of tokens of a row.
    window: batches per window, at most a quarter of an epoch; 1 turns grouping
      by length off.

  Returns:
    `tokens`, `types` and `documents` (1, padding 0), int32 [B, L]; `row`, int32
    [B], the index of each row, -1 for an empty one; `weight`, f32 [B], 1 or 0;
    the targets, [B]; and of TAGS `tags`, int32 [B, L], that of a word at its
    first piece, else -1. L is in BUCKETS, or `limit` if that is smaller.
  """
  num_batches = num_steps(len(encoded.tokens), batch_size, 1)
  epoch, batch = divmod(step, num_batches)
  epoch_batches = _epoch_batches(encoded, epoch, batch_size, seed, window)
  return _make_batch(encoded, epoch_batches[batch], batch_size, limit)


def batches_in_order(
  encoded: EncodedRows, *, batch_size: int, limit: int
) -> Iterator[dict[str, np.ndarray]]:
  """Yields batches of all rows; the longest, first, may exceed the memory."""
  row_N = np.argsort(-encoded.lengths_N, kind="stable")
  for first in range(0, len(row_N), batch_size):
    row_B = row_N[first : first + batch_size]
    yield _make_batch(encoded, row_B, batch_size, limit)


@functools.lru_cache(maxsize=2)
def _epoch_batches(
  encoded: EncodedRows, epoch: int, batch_size: int, seed: int, window: int
) -> list[np.ndarray]:
  """Returns the row indices of each batch of an epoch."""
  length_N = encoded.lengths_N
  row_N = _shuffled(len(length_N), seed, epoch, 0)
  num_full = len(length_N) // batch_size
  size = batch_size * max(1, min(window, num_full // MIN_WINDOWS))
  for first in range(0, num_full * batch_size, size):
    row_W = row_N[first : min(first + size, num_full * batch_size)]
    row_W[:] = row_W[np.argsort(length_N[row_W], kind="stable")]
  starts = range(0, len(row_N), batch_size)
  order = _shuffled(len(starts), seed, epoch, 1)
  return [row_N[starts[i] : starts[i] + batch_size] for i in order]


def _shuffled(size: int, *key: int) -> np.ndarray:
  """Permutes range(size); the same result with every version of numpy."""
  bits = np.random.PCG64(np.random.SeedSequence(key)).random_raw(size)
  return np.argsort(bits, kind="stable")


def _make_batch(
  encoded: EncodedRows, row_B: np.ndarray, batch_size: int, limit: int
) -> dict[str, np.ndarray]:
  """Stacks rows, padded to a length in BUCKETS, and empty rows up to B."""
  longest = max(len(encoded.tokens[i]) for i in row_B)
  length = min(limit, next((x for x in BUCKETS if x >= longest), limit))
  row_B = np.pad(row_B, (0, batch_size - len(row_B)), constant_values=-1)
  batch = {name: np.zeros((batch_size, length), np.int32) for name in INPUTS}
  tags_BxL = np.full((batch_size, length), -1, np.int32)
  for b, i in enumerate(row_B[row_B >= 0]):
    n = len(encoded.tokens[i])
    batch["tokens"][b, :n] = encoded.tokens[i]
    batch["types"][b, :n] = encoded.types[i]
    batch["documents"][b, :n] = 1
    if encoded.tags:
      place_W = encoded.words[i]
      is_kept_W = place_W >= 0
      tags_BxL[b, place_W[is_kept_W]] = encoded.tags[i][is_kept_W]
  for name, values_N in encoded.targets.items():
    values_B = np.where(row_B < 0, 0, values_N[row_B])
    batch[name] = values_B.astype(values_N.dtype)
  if encoded.tags:
    batch["tags"] = tags_BxL
  batch["row"] = row_B.astype(np.int32)
  batch["weight"] = (row_B >= 0).astype(np.float32)
  return batch
