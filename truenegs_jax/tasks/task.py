"""Definition of a task: its labels and metrics, its examples, its rows."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

CLASSES, SCORE, SPANS = "classes", "score", "spans"  # the kinds of tasks


@dataclasses.dataclass(frozen=True)
class Task:
  """A task to fine-tune on, and its metrics.

  Attributes:
    name: name in configs, "cola".
    title: name in tables and in GLUE's files, "CoLA".
    kind: CLASSES, SCORE (regression) or SPANS (questions on a context).
    labels: names of the classes, in the order of their ids; empty for other
      kinds.
    metrics: names in `scoring.METRICS`; the first is the main metric.
    epochs: default number of epochs; 0 if the config has to set it.
    both_orders: whether each pair A, B is also trained on as B, A.
    scale: (offset, scale) of scores; the target is (score - offset) / scale.
    split_sizes: number of rows of each published split, by name.
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
  """A labeled text or pair of texts.

  Attributes:
    key: GLUE's index for a row of a test set, else the row's number in the
      split, from 0.
    first: text A.
    second: text B; None for tasks of single texts.
    label: name of a class, or a score; None in a test set.
    location: file and line, "train.tsv:17", for messages.
  """

  key: str
  first: str
  second: str | None
  label: str | float | None
  location: str


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedRows:
  """Token ids of N rows, without padding; batches are made from them.

  Compared by identity, so that it can be the key of a cache.

  Attributes:
    tokens, types: N arrays, int32 [n], of [CLS] A [SEP] B [SEP].
    targets: values of all rows, [N]: "label" (int32 classes, f32 scaled
      scores), or "start" and "end" (int32 positions in `tokens`); empty for a
      test set.
    num_cut: number of rows that were truncated.
  """

  tokens: Sequence[np.ndarray]
  types: Sequence[np.ndarray]
  targets: Mapping[str, np.ndarray]
  num_cut: int = 0

  @property
  def lengths_N(self) -> np.ndarray:
    """Number of tokens of each row, int64."""
    return np.array([len(x) for x in self.tokens], np.int64)
