"""Builds small sets of predictions and synonym tables."""

import dataclasses
import io
import itertools

import numpy as np
import pytest
from rich.console import Console

from truenegs_jax.corrections.predict_slots import Predictions
from truenegs_jax.synonyms.table import SynonymTable

WORDS = [f"w{i}" for i in range(40)]
TOKENS = ["[CLS]", "[SEP]", *WORDS, "##a", "##b"]


def random_table(seed, *, include_self=False):
  rng = np.random.default_rng(seed)
  pairs = [rng.choice(WORDS, 2) for _ in range(150)]
  return SynonymTable.from_pairs(
    pairs, TOKENS, source="r", include_self=include_self
  )


def random_predictions(seed, num_sequences=30):
  """Builds predictions in random order; some sequences have none."""
  rng = np.random.default_rng(seed)
  inner = [rng.integers(2, len(TOKENS), 8) for _ in range(num_sequences)]
  rows = [np.array([0, *tokens, 1], np.int32) for tokens in inner]
  all_slots = itertools.product(range(num_sequences), range(1, 9))
  slots = [slot for slot in all_slots if rng.random() < 0.3]
  rng.shuffle(slots)
  predicted = rng.integers(2, len(TOKENS), len(slots))
  return make_predictions(rows, slots, predicted, rng.random(len(slots)) < 0.8)


def make_predictions(rows, slots, predicted, eligible=None):
  """Builds predictions of `slots`: (index of the row, position) pairs."""
  sequence, position = np.array(slots, np.int32).reshape(-1, 2).T
  golds = [rows[t][i] for t, i in slots]
  return Predictions(
    sequence_M=sequence,
    position_M=position,
    gold_M=np.array(golds, np.int32),
    predicted_M=np.array(predicted, np.int32),
    probability_M=np.full(len(golds), 0.5, np.float32),
    eligible_M=np.ones(len(golds), bool) if eligible is None else eligible,
    sequences=tuple(rows),
  )


def shuffle_predictions(p, seed):
  """Permutes the sequences and, independently, the slots."""
  rng = np.random.default_rng(seed)
  new_T = rng.permutation(len(p.sequences))
  order_M = rng.permutation(len(p.gold_M))
  rows = [p.sequences[t] for t in np.argsort(new_T)]
  slots = list(zip(new_T[p.sequence_M], p.position_M, strict=True))
  slots = [slots[i] for i in order_M]
  predicted, eligible = p.predicted_M[order_M], p.eligible_M[order_M]
  return make_predictions(rows, slots, predicted, eligible)


def flatten(value):
  """Returns all numbers and texts of nested dataclasses, in order."""
  if dataclasses.is_dataclass(value):
    value = dataclasses.astuple(value)
  if isinstance(value, tuple):
    return [leaf for item in value for leaf in flatten(item)]
  return [value]


def is_close(a, b):
  """Compares nested dataclasses, with a tolerance for floats."""
  a, b = flatten(a), flatten(b)
  return len(a) == len(b) and all(
    x == (pytest.approx(y) if isinstance(y, float) else y)
    for x, y in zip(a, b, strict=True)
  )


def render(table):
  file = io.StringIO()
  Console(file=file, width=80).print(table)
  return file.getvalue()


class FakeWordNet:
  """The attributes of NLTK's reader that `classify_tokens` uses."""

  MORPHOLOGICAL_SUBSTITUTIONS = {
    "n": [("s", "")],
    "v": [("ed", ""), ("s", "")],
    "a": [],
    "r": [],
  }

  def __init__(self, index, tagged, exceptions=()):
    self._lemma_pos_offset_map = index
    self._exception_map = {p: {} for p in "nvar"}
    self._exception_map["v"] |= dict(exceptions)
    self.tagged = tagged

  def open(self, name):
    assert name == "cntlist.rev"
    if self.tagged is None:
      raise OSError("no such file")
    return io.StringIO(self.tagged)
