"""The texts of a task as rows of ids: [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

  encode(examples, task, tokenizer, length=128).tokens[0]

As ELECTRA's released code does it (google-research/electra,
`finetune/classification/classification_tasks.py`).
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.tasks.task import SCORE, Encoded, Example, Task

CHUNK_TEXTS = 10_000  # tokenized at a time, for the memory that it takes


def encode(
  examples: Sequence[Example],
  task: Task,
  tokenizer: Tokenizer,
  *,
  length: int,
  swap: bool = False,
) -> Encoded:
  """Cuts texts to ids.

  Of a pair that is too long the longer text loses its last token, B where both
  are as long, until it fits; a text alone loses its end. A B without a token
  is none.

  Args:
    length: tokens of a row at most, [CLS] and [SEP] among them; 3 or more.
    swap: all examples follow once more as B, A: what a task that is `doubled`
      is trained on.

  Returns:
    A row an example, in order. No targets where no example has a label.

  Raises:
    DataError: a label that the task lacks, or some examples have none.
  """
  if swap:
    examples = [*examples, *(_swapped(example) for example in examples)]
  firsts = _ids((example.first for example in examples), tokenizer)
  seconds = _ids((example.second or "" for example in examples), tokenizer)
  tokens, types, num_cut = [], [], 0
  for a, b in zip(firsts, seconds, strict=True):
    size_a, size_b = fitting(len(a), len(b), length)
    num_cut += size_a < len(a) or size_b < len(b)
    row = [tokenizer.cls, *a[:size_a], tokenizer.sep]
    if size_b:
      row += [*b[:size_b], tokenizer.sep]
    tokens.append(np.array(row, np.int32))
    types.append(_types(size_a + 2, len(row)))
  return Encoded(tokens, types, _targets(examples, task), num_cut)


def fitting(size_a: int, size_b: int, length: int) -> tuple[int, int]:
  """How many tokens of A and B go into a row; `encode` has the rule."""
  if not size_b:
    return min(size_a, length - 2), 0
  room = length - 3
  over = max(0, size_a + size_b - room)
  # What the longer has more goes first, the rest by turns, B before A.
  alone = min(over, abs(size_a - size_b))
  lost_a = (over - alone) // 2 + (alone if size_a > size_b else 0)
  return size_a - lost_a, size_b - (over - lost_a)


def _swapped(example: Example) -> Example:
  if example.second is None:
    raise ValueError(f"{example.place}: no pair to swap.")
  return dataclasses.replace(
    example, first=example.second, second=example.first
  )


def _ids(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
  texts = list(texts)
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
        f"{example.place}: label {label!r}; those of {task.title} are"
        f" {', '.join(task.labels) or 'numbers'}."
      )
  kind = np.float32 if task.kind == SCORE else np.int32
  return {"label": np.array(targets, kind)}
