"""A task's rows, and what makes answers and scores of what a network says."""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.evals import scoring
from truenegs_jax.finetune import seeds
from truenegs_jax.tasks.examples import (
  CLASSES,
  Encoded,
  Example,
  Task,
)


@dataclasses.dataclass(frozen=True)
class Split:
  """Rows to answer.

  Attributes:
    encoded: the rows, as ids.
    keys: of each example, whose number may be smaller: a long context has
      several rows.
    golds: what is right: a class by name, a score, or texts; empty where nobody
      here knows.
    answers: outputs of the rows -> an answer for each key.
    scores: answers -> value by metric, in percent.
  """

  encoded: Encoded
  keys: tuple[str, ...]
  golds: tuple[Any, ...]
  answers: Callable[[Sequence[Any]], list[Any]]
  scores: Callable[[Sequence[Any]], dict[str, float]]

  def failure(self, answers_Q: Sequence[Any]) -> str:
    """Why these answers show that nothing was learned, or ""."""
    texts = isinstance(self.golds[0], tuple)  # the answers of several people
    golds = [gold[0] for gold in self.golds] if texts else self.golds
    return seeds.failure(golds, answers_Q)


@dataclasses.dataclass(frozen=True)
class Material:
  """What a task trains on, and what it is tested on.

  Attributes:
    splits: "dev", and maybe "dev_mismatched", "test", ...
    notes: in what these are not the task as it was published.
  """

  task: Task
  train: Encoded
  splits: Mapping[str, Split]
  notes: tuple[str, ...]

  @property
  def dev(self) -> Split:
    """What the task is judged by."""
    return self.splits["dev"]

  def fingerprints(self) -> dict[str, str]:
    """8 hex digits over what is trained on, and over each split."""
    train = [*self.train.tokens, *self.train.targets.values()]
    found = {"train": _crc(x.tobytes() for x in train)}
    for name, split in self.splits.items():
      rows = [x.tobytes() for x in split.encoded.tokens]
      found[name] = _crc([*rows, repr((split.keys, split.golds)).encode()])
    return found

  @property
  def num_outputs(self) -> int:
    """Numbers that the head gives a row, or a place."""
    return max(1, len(self.task.labels))


def predictions(split: Split, answers_Q: Sequence[Any]) -> dict[str, Any]:
  """Answers with their keys and what is right, in JSON's types."""
  return {
    "keys": list(split.keys),
    "golds": list(split.golds),
    "answers": list(answers_Q),
  }


def scores_of(
  task: Task, golds: Sequence[Any], answers_Q: Sequence[Any]
) -> dict[str, float]:
  """Value by metric, of classes by name or of scores."""
  gold_N, said_N = as_numbers(task, golds), as_numbers(task, answers_Q)
  return {name: scoring.METRICS[name](gold_N, said_N) for name in task.metrics}


def as_numbers(task: Task, answers_Q: Sequence[Any]) -> np.ndarray:
  """Ids of classes, or scores, [N]."""
  if task.kind != CLASSES:
    return np.array(answers_Q, np.float64)
  number = {label: i for i, label in enumerate(task.labels)}
  return np.array([number[label] for label in answers_Q], np.int64)


def _crc(parts: Iterable[bytes]) -> str:
  return f"{functools.reduce(lambda crc, x: zlib.crc32(x, crc), parts, 0):08x}"


def of_examples(task: Task, rows: Sequence[Example], encoded: Encoded) -> Split:
  """A split of a task of classes or scores; a test set has no golds."""
  known = bool(rows) and rows[0].label is not None
  golds = tuple(row.label for row in rows) if known else ()
  offset, scale = task.scale

  def answers_of(outputs):
    if task.kind == CLASSES:
      return [task.labels[int(x_C.argmax())] for x_C in outputs]
    return [float(offset + scale * x_C[0]) for x_C in outputs]

  return Split(
    encoded=encoded,
    keys=tuple(row.key for row in rows),
    golds=golds,
    answers=answers_of,
    scores=lambda said: scores_of(task, golds, said),
  )
