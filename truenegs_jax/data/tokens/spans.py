"""Selects and joins spans of arrays, many at a time."""

import numpy as np

# ids_T of all words or lines, int32, and lengths_N, the number of ids of each.
Ids = tuple[np.ndarray, np.ndarray]


def take_spans(
  values_T: np.ndarray, starts_N: np.ndarray, lengths_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Concatenates spans; returns their values and the end of each span."""
  ends_N = np.cumsum(lengths_N)
  index_T = np.repeat(starts_N - ends_N + lengths_N, lengths_N)
  index_T += np.arange(len(index_T))
  return values_T[index_T], ends_N


def interleave(is_first_N: np.ndarray, first: Ids, second: Ids) -> Ids:
  """Merges the ids of two groups of texts; `is_first_N` selects the first."""
  ids_T, lengths_N = map(np.concatenate, zip(first, second, strict=True))
  starts_N = np.cumsum(lengths_N) - lengths_N
  order_N = np.argsort(np.argsort(~is_first_N, kind="stable"))
  ids_T, _ = take_spans(ids_T, starts_N[order_N], lengths_N[order_N])
  return ids_T, lengths_N[order_N]
