"""A task's rows, and what makes answers and scores of what a network says."""

import collections
import dataclasses
import functools
import os
import pathlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from truenegs_jax.data.corpus.files import MAGIC, existing
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.finetune import leaderboard
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.tasks import scoring, squad, squad_windows
from truenegs_jax.tasks.records import HUB
from truenegs_jax.tasks.task import CLASSES, SPANS, Encoded, Example, Task


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
    return leaderboard.failure(golds, answers_Q)


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


TASK = Task(
  name="squad",
  title="SQuAD v1.1",
  kind=SPANS,
  metrics=("em", "f1"),
  epochs=2.0,
  official={"train": 87_599, "dev": 10_570},
)


def read(
  c: ConfigDict, files: Mapping[str, str]
) -> tuple[Task, dict[str, list[squad.Question]], list[str]]:
  """The task, its questions by split, and what there is to note.

  Args:
    files: by split, in the place of what `finetune.data` has.

  Raises:
    DataError: as `tasks.squad.read_squad`.
  """
  moved, questions = collections.Counter[str](), {}
  for split in TASK.official:
    where = files.get(split) or c.finetune.data
    if split not in files and not where.startswith(HUB):
      where = _find(where, split)
    questions[split] = squad.read_squad(where, split=split, oddities=moved)
  return TASK, questions, [f"{count:,} {name}" for name, count in moved.items()]


def cut(
  c: ConfigDict,
  questions: Mapping[str, list[squad.Question]],
  tokenizer: Tokenizer,
) -> tuple[Encoded, dict[str, Split]]:
  """Windows to train on, and the dev set."""
  make = lambda split, **more: squad_windows.make_windows(
    questions[split],
    tokenizer,
    length=c.length,
    stride=c.finetune.stride,
    question_length=c.finetune.question_length,
    **more,
  )
  train, dev = make("train", train=True), make("dev", train=False)
  return train.encoded, {"dev": _split(c, dev)}


def _split(c: ConfigDict, found: squad_windows.Windows) -> Split:
  golds = {q.key: tuple(x for x, _ in q.answers) for q in found.questions}

  def answers_of(outputs):
    # Logits of all places as [n, 2], or the candidates of the joint head.
    pairs = [x if isinstance(x, tuple) else tuple(x.T) for x in outputs]
    best = squad_windows.best_answers(
      found,
      pairs,
      num_best=c.finetune.num_best,
      max_answer=c.finetune.max_answer,
    )
    return [best[key][0][0] for key in golds]

  return Split(
    encoded=found.encoded,
    keys=tuple(golds),
    golds=tuple(golds.values()),
    answers=answers_of,
    scores=lambda said: scoring.squad_scores(
      dict(zip(golds, said, strict=True)), golds
    ),
  )


def _find(where: str, split: str) -> str:
  """The official file, as it is or compressed."""
  path = pathlib.Path(os.path.expanduser(where), f"{split}-v1.1.json")
  if found := existing(path, packed=True):
    return str(found)
  raise DataError(
    f"{path}: there is no such file, nor one with {' '.join(MAGIC)}. Give"
    " --config.finetune.data=FOLDER of SQuAD's files, the files themselves,"
    " --config.finetune.files='train=FILE dev=FILE', or hf:rajpurkar/squad."
  )
