"""Rows of tables for other words or positions than the weights have."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from truenegs_jax.errors import InputError

Flat = dict[str, np.ndarray]  # parameters by path

# What has a row for every word.
OF_WORDS = ("embeddings/word", "bert_head/bias", "generator_head/bias")
POSITIONS = "embeddings/position"
NAMED = 10  # new words that are said by name


def carry_words(
  flat: Flat,
  fresh: Callable[[], Flat],
  vocab: Sequence[str],
  old: Sequence[str],
  say: Callable[[str], Any],
) -> Flat:
  """The arrays of `OF_WORDS` for another vocabulary, row by row.

  Args:
    flat: of the weights, `[rows, ...]`. There may be more rows than words: some
      are padded to a round number.
    fresh: gives the parameters of a run from scratch, `[V, ...]`.
    vocab: the V words of the run.
    old: those of the weights.
    say: told how many words are new, and some of them.

  Raises:
    InputError: the weights have fewer rows than words.
  """
  num_rows = len(flat[OF_WORDS[0]])
  if len(old) > num_rows:
    raise InputError(
      f"init: the vocabulary beside the weights has {len(old):,} words, their"
      f" table {num_rows:,} rows; put the one there that belongs to them."
    )
  place = {token: i for i, token in enumerate(old)}
  rows_V = np.array([place.get(token, -1) for token in vocab])
  new = [token for token, row in zip(vocab, rows_V, strict=True) if row < 0]
  kept = len(vocab) - len(new)
  named = ", ".join(new[:NAMED]) + (", ..." if len(new) > NAMED else "")
  if new or kept < num_rows:
    say(
      f"init: {kept:,} of {len(vocab):,} words have their rows of the weights,"
      f" {num_rows - kept:,} rows are left out; new, drawn at random:"
      f" {len(new):,}{f' ({named})' if new else ''}"
    )
  there = (name for name in OF_WORDS if name in flat)
  return {name: _chosen(flat[name], rows_V, fresh()[name]) for name in there}


def carry_positions(
  flat: Flat,
  fresh: Callable[[], Flat],
  size: int,
  say: Callable[[str], Any],
) -> Flat:
  """The table of `size` positions, the first of which are the weights'."""
  if POSITIONS not in flat or (old := len(flat[POSITIONS])) == size:
    return {}
  if size > old:
    say(f"init: positions {old:,} to {size - 1:,} are new, drawn at random")
  else:
    say(f"init: positions {size:,} to {old - 1:,} are left out")
  rows_P = np.where(np.arange(size) < old, np.arange(size), -1)
  return {POSITIONS: _chosen(flat[POSITIONS], rows_P, fresh()[POSITIONS])}


def _chosen(x: np.ndarray, rows: np.ndarray, fresh: np.ndarray) -> np.ndarray:
  """The rows of `x` that `rows` names; -1 stands for a fresh one."""
  known = (rows >= 0).reshape(-1, *[1] * (x.ndim - 1))
  return np.where(known, x[np.maximum(rows, 0)], fresh)
