"""Builds small sets of predictions and synonym tables."""

import itertools

import numpy as np

from truenegs_jax.pretrain.cases import Predictions
from truenegs_jax.synonyms.table import SynonymTable

WORDS = [f"w{i}" for i in range(40)]
TOKENS = ["[CLS]", "[SEP]", *WORDS, "##a", "##b"]


def random_table(seed):
  rng = np.random.default_rng(seed)
  pairs = [rng.choice(WORDS, 2) for _ in range(150)]
  return SynonymTable.from_pairs(pairs, TOKENS, source="r")


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
