"""Reads the user's own task: texts or pairs with classes or scores.

columns = Columns(("premise", "hypothesis"), "label")
train = read_examples("train.csv", "train", columns, kind=CLASSES)
task = make_task(train, kind=CLASSES)
test = read_examples("test.jsonl", "test", columns, kind=CLASSES)
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from truenegs_jax.config import grammar
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.tasks.records import HUB, read_dataset, read_file
from truenegs_jax.tasks.task import CLASSES, SCORE, Example, Task

NAME = "own"  # in configs
# The first of each is the default.
METRICS = {
  CLASSES: ("accuracy", "matthews", "f1"),
  SCORE: ("spearman", "pearson"),
}
MAX_CLASSES = 1_000  # a column with more values is probably not a label


class Columns(NamedTuple):
  """Names of the one or two columns of texts, and of the label's column."""

  texts: tuple[str, ...]
  label: str


def parse_columns(text: str, label: str) -> Columns:
  """Parses `finetune.text`, "sentence" or "first,second"; else InputError."""
  texts = grammar.parse_names(text, key="finetune.text")
  if not (0 < len(texts) < 3 and label) or label in texts:
    raise InputError(
      f"finetune.text={text!r} and finetune.label={label!r} must name different"
      " columns. Set --config.finetune.text=COLUMN (or COLUMN,COLUMN for pairs)"
      " and --config.finetune.label=COLUMN."
    )
  return Columns(texts, label)


def parse_labels(labels: str) -> tuple[str, ...]:
  """Parses `finetune.labels`, "no,yes"; "" gives no labels."""
  return grammar.parse_names(labels, key="finetune.labels")


def read_examples(
  where: str,
  split: str,
  columns: Columns,
  *,
  kind: str,
  labels: Sequence[str] = (),
) -> list[Example]:
  """Reads the examples of a split.

  Args:
    where: a .tsv, .csv or .jsonl file, plain or compressed; or a data set,
      "hf:NAME config=C split=S".
    split: "train", "dev" or "test"; a test split may have no labels.
    kind: CLASSES or SCORE.
    labels: the allowed classes; empty allows any name.
  """
  is_hub = where.startswith(HUB)
  records = read_dataset(where, split=split) if is_hub else read_file(where)
  examples = []
  for number, record in enumerate(records):
    first, second, *_ = (*map(record.text, columns.texts), None)
    label = None
    if split != "test" or record.fields.get(columns.label) not in (None, ""):
      label = record.label(columns.label, kind, labels=labels)
    examples.append(Example(str(number), first, second, label, record.location))
  return examples


def make_task(
  train: Sequence[Example],
  *,
  kind: str,
  labels: Sequence[str] = (),
  metric: str = "",
) -> Task:
  """Derives a task from the examples of its training file.

  Scores are scaled to mean 0 and standard deviation 1, unless all are equal.

  Args:
    labels: the classes, in the order of their ids; empty for those that occur,
      sorted. F1 of two classes is that of the second.
    metric: a name in METRICS[kind]; empty for the first.
  """
  metrics = tuple(dict.fromkeys((metric or METRICS[kind][0], METRICS[kind][0])))
  task = Task(NAME, NAME, kind, metrics=metrics, epochs=0.0)
  if kind == SCORE:
    scores = np.array([example.label for example in train])
    if scores.min() < scores.max():  # if equal, `std` is only rounding
      scale = (float(scores.mean()), float(scores.std()))
      return dataclasses.replace(task, scale=scale)
    return task
  names = tuple(labels or sorted({str(x.label) for x in train}))
  if not 2 <= len(names) <= MAX_CLASSES:
    raise DataError(
      f"{train[0].location}: {len(names):,} classes in this file"
      f" ({', '.join(map(repr, names[:3]))}). There must be 2 to"
      f" {MAX_CLASSES:,}. Choose another column with --config.finetune.label,"
      " name all classes with --config.finetune.labels, or read the labels as"
      " numbers with --config.finetune.kind=score."
    )
  return dataclasses.replace(task, labels=names)


def check_options(*, kind: str, labels: Sequence[str], metric: str) -> None:
  """Raises InputError for a metric or labels that do not fit the kind."""
  if metric and metric not in METRICS[kind]:
    raise InputError(
      f"finetune.metric={metric!r} does not fit finetune.kind={kind!r}. Choose"
      f" one of {', '.join(METRICS[kind])}."
    )
  if labels and (kind == SCORE or len(labels) < 2):
    raise InputError(
      f"finetune.labels={','.join(labels)!r} does not fit"
      f" finetune.kind={kind!r}. Set two classes or more, or none for scores."
    )
