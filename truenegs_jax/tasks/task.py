"""The parts of a task: its labels and metrics, examples, rows of ids."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

CLASSES, SCORE, SPANS = "classes", "score", "spans"  # the kinds of tasks


@dataclasses.dataclass(frozen=True)
class Task:
  """A task to learn, and the metrics that judge it.

  Attributes:
    name: as configs have it, "cola".
    title: as tables and GLUE's files have it, "CoLA".
    kind: CLASSES, SCORE (regression) or SPANS (questions on a context).
    labels: names of the classes, in the order of their ids; else empty.
    metrics: names in `scoring.METRICS`; the first is the task's own.
    epochs: of the recipe, or 0 where there is none: the config says.
    both_orders: whether A, B trains as B, A, too.
    scale: (offset, scale) of scores: trained on (score - offset) / scale.
    split_sizes: rows of each split as published, by its name.
  """

  name: str
  title: str
  kind: str
  labels: tuple[str, ...] = ()
  metrics: tuple[str, ...] = ()
  epochs: float = 3.0
  both_orders: bool = False
  scale: tuple[float, float] = (0.0, 1.0)
  split_sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Example:
  """A row of a task of classes or scores.

  Attributes:
    key: GLUE's index of a row of a test set, else its number in the split,
      from 0.
    first, second: the texts; None: there is no second.
    label: a class by name, or a score; None in a test set.
    location: file and line, "train.tsv:17", for messages.
  """

  key: str
  first: str
  second: str | None
  label: str | float | None
  location: str


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedRows:
  """Rows of ids, each as long as it is: what batches are cut from.

  Equal to itself alone, so that it can be the key of a cache.

  Attributes:
    tokens, types: N arrays, int32 [n], of [CLS] A [SEP] B [SEP].
    targets: of each row, [N]: "label" (int32 classes, f32 scaled scores), or
      "start" and "end" (int32 places in `tokens`); empty for a test set.
    num_cut: rows that were longer than allowed.
  """

  tokens: Sequence[np.ndarray]
  types: Sequence[np.ndarray]
  targets: Mapping[str, np.ndarray]
  num_cut: int = 0

  @property
  def lengths_N(self) -> np.ndarray:
    """Tokens of each row, int64."""
    return np.array([len(x) for x in self.tokens], np.int64)
