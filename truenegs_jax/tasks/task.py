"""Defines tasks: GLUE's, SQuAD and your own; their examples and rows.

TASKS["mrpc"].metrics
"""

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.config import grammar
from truenegs_jax.runtime.errors import DataError, InputError, one_of
from truenegs_jax.tasks import entities

CLASSES = "classes"  # the kinds of tasks
SCORE = "score"
SPANS = "spans"
TAGS = "tags"
# Metrics of each kind; the first is the default of your own tasks.
METRICS = {
  CLASSES: ("accuracy", "matthews", "f1"),
  SCORE: ("spearman", "pearson"),
  SPANS: ("em", "f1"),
  TAGS: (
    *("f1", "precision", "recall"),
    *("strict_f1", "strict_precision", "strict_recall"),
  ),
}
SQUAD = "squad"  # names in configs, besides those of GLUE
OWN = "own"


@dataclasses.dataclass(frozen=True)
class Task:
  """A task to fine-tune on, and its metrics."""

  name: str  # in configs, "cola"
  title: str  # in tables and in GLUE's files, "CoLA"
  # CLASSES, SCORE (regression), SPANS (questions on a context), TAGS (of words)
  kind: str
  labels: tuple[str, ...] = ()  # of classes or tags, in the order of their ids
  metrics: tuple[str, ...] = ()  # names in METRICS, the main one first
  epochs: float = 3.0  # by default
  both_orders: bool = False  # each pair A, B is also trained on as B, A
  scale: tuple[float, float] = (0.0, 1.0)  # target: (score - offset) / scale
  splits: tuple[str, ...] = ("train", "dev", "test")
  columns: tuple[str, ...] = ()  # the one or two of texts in files
  label_column: str = "label"

  def __post_init__(self) -> None:
    """Refuses metrics that the kind of the task does not have."""
    if unknown := set(self.metrics) - set(METRICS[self.kind]):
      raise InputError(
        f"task {self.name!r}: metrics has {', '.join(sorted(unknown))}, but"
        f" kind={self.kind!r} has {', '.join(METRICS[self.kind])}. Choose among"
        " them, or add the metric to METRICS and `scoring`."
      )


@dataclasses.dataclass(frozen=True)
class Example:
  """A labeled text or pair of texts."""

  key: str  # GLUE's index in a test set, else the row's number in its split
  first: str
  second: str | None  # None for tasks of single texts
  gold: str | float | None  # a class or a score; None in a test set
  location: str  # file and line, "train.tsv:17", for messages


@dataclasses.dataclass(frozen=True)
class Question:
  """A question on a context."""

  key: str  # unique in its file
  text: str  # not blank
  context: str  # not blank; holds the answers
  # Text of each answer and index of its first character in the context; one in
  # training, several people's in the dev set.
  answers: tuple[tuple[str, int], ...]
  location: str  # file, article, paragraph and id, for messages

  @property
  def texts(self) -> tuple[str, ...]:
    """Context and question."""
    return self.context, self.text

  @property
  def gold(self) -> tuple[str, ...]:
    """The texts of the answers."""
    return tuple(text for text, _ in self.answers)


@dataclasses.dataclass(frozen=True)
class Sentence:
  """Words with their tags."""

  key: str  # the sentence's number in its split
  words: tuple[str, ...]
  tags: tuple[str, ...] | None  # as in the file; None in a test set
  location: str  # file and first line, for messages

  @property
  def gold(self) -> tuple[str, ...] | None:
    """The tags in BIO."""
    return None if self.tags is None else entities.to_bio(self.tags)


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedRows:
  """Token ids of N rows, without padding; batches are made from them.

  Compared by identity, so that it can be the key of a cache.
  """

  tokens: Sequence[np.ndarray]  # N arrays, int32 [n], of [CLS] A [SEP] B [SEP]
  types: Sequence[np.ndarray]  # N arrays
  # Values of all rows, [N]: "label" (int32 classes, f32 scaled scores), or
  # "start" and "end" (int32 positions in `tokens`); empty for a test set.
  targets: Mapping[str, np.ndarray]
  num_cut: int = 0  # rows that were truncated
  # Of TAGS, N arrays, int [W]: the position of the first piece of each word, -1
  # for a word without pieces; and ids of the words' tags, none for a test set.
  words: Sequence[np.ndarray] = ()
  tags: Sequence[np.ndarray] = ()

  @property
  def lengths_N(self) -> np.ndarray:
    """Number of tokens of each row, int64."""
    return np.array([len(x) for x in self.tokens], np.int64)


BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
NLI = ("contradiction", "entailment", "neutral")
PAIR = ("sentence1", "sentence2")
# Classes of the hub -> BINARY.
HUB_LABELS = {
  **dict.fromkeys(
    ("unacceptable", "negative", "not_equivalent", "not_duplicate"), "0"
  ),
  **dict.fromkeys(("acceptable", "positive", "equivalent", "duplicate"), "1"),
}


def _glue(
  title: str,
  labels: tuple[str, ...],
  columns: tuple[str, ...],
  *metrics: str,
  **more: Any,
) -> Task:
  """Defines a task of GLUE."""
  return Task(
    name=title.lower().replace("-", ""),
    title=title,
    kind=CLASSES if labels else SCORE,
    labels=labels,
    metrics=metrics or ("accuracy",),
    columns=columns,
    **more,
  )


# The tasks of GLUE in the order of table 3, with ELECTRA's class ids (Wang et
# al. 2019, https://openreview.net/forum?id=rJ4km2R5t7), and SQuAD.
_PUBLISHED = (
  _glue("CoLA", BINARY, ("sentence",), "matthews"),
  _glue("SST-2", BINARY, ("sentence",)),
  _glue(
    "MRPC",
    BINARY,
    ("#1 String", "#2 String"),
    "accuracy",
    "f1",
    label_column="Quality",
    both_orders=True,
  ),
  _glue(
    "STS-B",
    (),
    PAIR,
    "spearman",
    "pearson",
    label_column="score",
    scale=(0.0, 5.0),
    epochs=10.0,
    both_orders=True,
  ),
  _glue(
    "QQP",
    BINARY,
    ("question1", "question2"),
    "accuracy",
    "f1",
    label_column="is_duplicate",
  ),
  _glue(
    "MNLI",
    NLI,
    PAIR,
    label_column="gold_label",
    splits=("train", "dev", "test", "dev_mismatched", "test_mismatched"),
  ),
  _glue("QNLI", ENTAILMENT, ("question", "sentence")),
  _glue("RTE", ENTAILMENT, PAIR, epochs=10.0),
  Task(
    SQUAD,
    "SQuAD v1.1",
    SPANS,
    metrics=("em", "f1"),
    epochs=2.0,
    splits=("train", "dev"),
  ),
)
TASKS = {task.name: task for task in _PUBLISHED}

MAX_CLASSES = 1_000  # a column with more values is probably not a label


def define_own_task(
  *, text: str, label: str, kind: str, labels: str = "", metric: str = ""
) -> Task:
  """Defines your own task by the keys of `finetune` of these names."""
  columns = grammar.parse_names(text, key="finetune.text")
  most = 1 if kind == TAGS else 2
  if not (0 < len(columns) <= most and label) or label in columns:
    raise InputError(
      f"finetune.text={text!r} must name one or two columns of your files, one"
      f" for tags, and finetune.label={label!r} another one. Set"
      " --config.finetune.text=COLUMN, or COLUMN,COLUMN for pairs."
    )
  metrics = METRICS[kind]
  main = metric or metrics[0]
  one_of("finetune.metric", main, metrics)
  names = grammar.parse_names(labels, key="finetune.labels")
  others = metrics if kind == TAGS else metrics[:1]
  if kind == TAGS and names:
    names = entities.list_tags(names)
  elif names and (kind == SCORE or len(names) < 2):
    raise InputError(
      f"finetune.labels={labels!r} does not fit finetune.kind={kind!r}. Set two"
      " classes or more, or none for scores."
    )
  ordered = tuple(dict.fromkeys((main, *others)))
  return Task(
    OWN, OWN, kind, names, ordered, columns=columns, label_column=label
  )


def fit_tags(task: Task, train: Sequence[Sentence]) -> Task:
  """Returns your own task with the tags of its training file.

  Types that are not set are those that occur, by the alphabet.
  """
  tags = [x.tags for x in train if x.tags]
  types = {x.type for y in tags for x in entities.find_entities(y)}
  if not types:
    raise DataError(
      f"{train[0].location}: none of the {len(train):,} sentences of this file"
      " has an entity. Choose another file."
    )
  labels = task.labels or entities.list_tags(sorted(types))
  return dataclasses.replace(task, labels=labels)


def fit_own_task(
  task: Task, train: Sequence[Example], *, names: Sequence[str] = ()
) -> Task:
  """Returns your own task with the classes or the scale of its training file.

  Classes that are not set are `names`, those of a ClassLabel of `datasets`, or
  else those that occur: numbers by their value, others by the alphabet. If F1
  is a metric, the rarer of two is the second, whose F1 it is. Scores are scaled
  to mean 0 and standard deviation 1, unless all are equal.
  """
  if task.kind == SCORE:
    scores = np.array([example.gold for example in train])
    if scores.min() < scores.max():  # if equal, `std` is only rounding
      scale = (float(scores.mean()), float(scores.std()))
      return dataclasses.replace(task, scale=scale)
    return task
  labels = task.labels or tuple(names)
  if not labels:
    counts = collections.Counter(str(x.gold) for x in train)
    is_whole = all(re.fullmatch("-?[0-9]{1,18}", x) for x in counts)
    ordered = sorted(sorted(counts), key=int) if is_whole else sorted(counts)
    if "f1" in task.metrics and len(ordered) == 2:
      ordered.sort(key=counts.__getitem__, reverse=True)
    labels = tuple(ordered)
  if not 2 <= len(labels) <= MAX_CLASSES:
    raise DataError(
      f"{train[0].location}: {len(labels):,} classes in this file"
      f" ({', '.join(map(repr, labels[:3]))}). There must be 2 to"
      f" {MAX_CLASSES:,}. Set --config.finetune.label to another column, name"
      " all in --config.finetune.labels, or set --config.finetune.kind=score."
    )
  return dataclasses.replace(task, labels=labels)
