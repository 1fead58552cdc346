"""A task of the user's own: texts or pairs of texts with classes or scores.

columns = Columns(("premise", "hypothesis"), "label")
train = read("train.csv", "train", columns, kind=CLASSES)
task = make_task(train, kind=CLASSES)
dev = read("dev.jsonl", "dev", columns, kind=CLASSES, labels=task.labels)
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.tasks.records import HUB, read_dataset, read_file
from truenegs_jax.tasks.task import CLASSES, SCORE, Example, Task

NAME = "own"  # in configs
# The first is taken where none is asked for.
METRICS = {
  CLASSES: ("accuracy", "matthews", "f1"),
  SCORE: ("spearman", "pearson"),
}
MAX_CLASSES = 1_000  # more are a column of something else


class Columns(NamedTuple):
  """Names of the columns of one text or two, and of the label."""

  texts: tuple[str, ...]
  label: str


def parse_columns(text: str, label: str) -> Columns:
  """Takes `finetune.text`, "sentence" or "first,second", apart.

  Raises:
    InputError: not one or two columns, or one of them is the label's.
  """
  texts = tuple(name.strip() for name in text.split(","))
  are_different = len({*texts, label}) > len(texts)
  if len(texts) > 2 or not all((*texts, label)) or not are_different:
    raise InputError(
      f"finetune.text={text!r}, finetune.label={label!r}: name one column of"
      " text or two, FIRST,SECOND, and the column of the label; the columns"
      " must differ."
    )
  return Columns(texts, label)


def parse_labels(labels: str) -> tuple[str, ...]:
  """Takes `finetune.labels`, "no,yes", apart; "" gives none.

  Raises:
    InputError: an empty or repeated name.
  """
  names = tuple(name.strip() for name in labels.split(",")) if labels else ()
  if not all(names) or len(set(names)) < len(names):
    raise InputError(
      f"finetune.labels={labels!r}: give the names of the classes, separated by"
      " commas, each once."
    )
  return names


def read_examples(
  where: str,
  split: str,
  columns: Columns,
  *,
  kind: str,
  labels: Sequence[str] = (),
) -> list[Example]:
  """The examples of a file.

  Args:
    where: a .tsv, .csv or .jsonl file, plain or compressed; or hf:NAME, a data
      set of the hub or a folder, as `parse_dataset_name` has it.
    split: "train", "dev" or "test"; a test file may lack the labels.
    kind: CLASSES or SCORE.
    labels: the classes that there are; empty where any name is good.

  Raises:
    DataError: no such file or column; by line: an empty text, no label, an
      unknown one, not a finite number.
    UnavailableError: a data set cannot be loaded from the hub.
  """
  is_hub = where.startswith(HUB)
  records = read_dataset(where, split=split) if is_hub else read_file(where)
  examples = []
  for number, record in enumerate(records):
    first, *second = [record.text(column) for column in columns.texts]
    label = None
    if split != "test" or record.fields.get(columns.label) not in (None, ""):
      label = record.label(columns.label, kind, known=labels)
    examples.append(
      Example(
        str(number), first, next(iter(second), None), label, record.location
      )
    )
  return examples


def make_task(
  train: Sequence[Example],
  *,
  kind: str,
  labels: Sequence[str] = (),
  metric: str = "",
) -> Task:
  """The task that a training file sets.

  Args:
    labels: the classes, in the order of their ids; empty for those that occur,
      sorted. F1 of two classes is that of the second.
    metric: in METRICS[kind]; empty for its first.

  Returns:
    Scores are scaled to mean 0 and standard deviation 1, unless all are equal.

  Raises:
    InputError: no such kind, or a metric or labels that do not fit it.
    DataError: one class alone, or more than MAX_CLASSES.
  """
  check_options(kind=kind, labels=labels, metric=metric)
  metrics = tuple(dict.fromkeys((metric or METRICS[kind][0], METRICS[kind][0])))
  task = Task(NAME, NAME, kind, metrics=metrics, epochs=0.0)
  if kind == SCORE:
    scores = np.array([example.label for example in train])
    if scores.min() < scores.max():  # else rounding alone could be the spread
      scale = (float(scores.mean()), float(scores.std()))
      task = dataclasses.replace(task, scale=scale)
    return task
  names = tuple(labels or sorted({str(x.label) for x in train}))
  if not 2 <= len(names) <= MAX_CLASSES:
    raise DataError(
      f"{train[0].location}: the labels of this file are {len(names)} classes"
      f" ({', '.join(map(repr, names[:3]))}), and there must be 2 to"
      f" {MAX_CLASSES:,}: name another column by finetune.label, all classes by"
      " finetune.labels, or take numbers as such by finetune.kind=score."
    )
  return dataclasses.replace(task, labels=names)


def check_options(*, kind: str, labels: Sequence[str], metric: str) -> None:
  """Raises InputError for an unknown kind, or what does not fit it."""
  if kind not in METRICS:
    raise InputError(
      f"finetune.kind={kind!r}: give one of {', '.join(METRICS)}."
    )
  if metric and metric not in METRICS[kind]:
    raise InputError(
      f"finetune.metric={metric!r} does not fit finetune.kind={kind}: give one"
      f" of {', '.join(METRICS[kind])}."
    )
  if labels and (kind == SCORE or len(labels) < 2):
    raise InputError(
      f"finetune.labels={','.join(labels)!r}: two classes or more, and with"
      " finetune.kind=score none."
    )
