"""Which words lie close together by their vectors.

  for word, other in neighbours(words, file, top=10, threshold=-1.0): ...

The axes: G words with a vector, T of them at a time, J neighbours of each.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from truenegs_jax.data.files import File
from truenegs_jax.errors import InputError
from truenegs_jax.synonyms.vector_files import check_beginning, read_vectors

CELLS = 2**25  # cosines at a time; each takes some 8 bytes on the way
STEPS = 10**9  # of a cosine: closer ones are equal, whatever sums them up
AMONG = ("vocabulary", "file")


def neighbours(
  words: Iterable[str],
  file: File,
  *,
  top: int,
  threshold: float = -1.0,
  among: str = "vocabulary",
) -> Iterator[tuple[str, str]]:
  """Yields each word with the words whose vectors are most like its own.

  The paper (footnote 9) leaves open like in what and among which: by their
  cosine here, among `words` alone, so that all of `top` can be of use, or
  among all words of the file, of which those outside `words` are then lost.

  Args:
    words: those to rank.
    file: with their vectors, see `vector_files.read_vectors`.
    top: the most neighbours of a word, at least 1.
    threshold: the least cosine of a neighbour, -1 to 1; -1 lets all pass, as
      the paper does.
    among: "vocabulary" (`words`) or "file".

  Yields:
    (word, neighbour), in the order of `words`, the nearest neighbour first; a
    word in other case (`Cat`) takes its place but is left out.

  Raises:
    InputError: an option is out of range.
    DataError: as `check_beginning`, both at once; later as `read_vectors`.
  """
  if top < 1 or not -1 <= threshold <= 1 or among not in AMONG:
    raise InputError(
      f"negatives.sources: vectors top={top} threshold={threshold}"
      f" among={among}: top must be at least 1, threshold from -1 to 1, among"
      f" {' or '.join(AMONG)}."
    )
  check_beginning(file)
  return _neighbours(words, file, top, threshold, among)


def _neighbours(
  words: Iterable[str], file: File, top: int, threshold: float, among: str
) -> Iterator[tuple[str, str]]:
  names, vectors_GxD = read_vectors(file, words, rivals=among == "file")
  first = len(vectors_GxD) - len(names)
  ranked = nearest(vectors_GxD, top=top, threshold=threshold, first=first)
  for name, others_J in zip(names, ranked, strict=True):
    for other in others_J:
      if names[other].lower() != name.lower():
        yield name, names[other]


def nearest(
  vectors_GxD: np.ndarray,
  *,
  top: int,
  threshold: float = -1.0,
  first: int = 0,
  cells: int = CELLS,
) -> Iterator[np.ndarray]:
  """Ranks vectors by their cosine with each vector.

  Cosines are taken to nine decimals, so that the order in which a machine sums
  up does not show; of equal ones the first vector is the nearer.

  Args:
    vectors_GxD: float32, finite, none of them zero, squares in range.
    top: the most neighbours of a vector.
    threshold: the least cosine of a neighbour.
    first: the first vector to rank. Those before are rivals: they take their
      places, after others of the same cosine, and are left out.
    cells: the most cosines in memory, but at least those of one vector.

  Yields:
    For each vector from `first` on the indices of its neighbours, counted from
    `first`, nearest first, without its own: int64 [J], J <= top.
  """
  size, dim = vectors_GxD.shape
  top = min(top, size - 1)
  norms_G = np.sqrt(
    np.einsum("gd,gd->g", vectors_GxD, vectors_GxD, dtype=np.float64)
  )
  scales_G = (1 / norms_G).astype(np.float32)
  # Twice what float32 may be off: what a cosine lacks, the least may be over.
  slack = (dim + 8) * np.finfo(np.float32).eps
  step = max(1, cells // size)
  for start in range(first, size, step):
    rows = slice(start, start + step)
    cosines_TxG = vectors_GxD[rows] * scales_G[rows, None] @ vectors_GxD.T
    cosines_TxG *= scales_G[None, :]
    rows_T = np.arange(len(cosines_TxG))
    cosines_TxG[rows_T, start + rows_T] = -np.inf
    kth = size - max(top, 1)
    least_T = np.partition(cosines_TxG, kth, axis=1)[:, kth]
    least_T = np.maximum(least_T, threshold) - slack
    for t, least in enumerate(least_T):
      near_J = np.flatnonzero(cosines_TxG[t] >= least)
      own_D = vectors_GxD[start + t].astype(np.float64)
      cosines_J = vectors_GxD[near_J].astype(np.float64) @ own_D
      cosines_J /= norms_G[near_J] * norms_G[start + t]
      cosines_J = np.rint(cosines_J * STEPS) / STEPS
      near_J = (near_J - first) % size  # rivals come last
      best_J = np.lexsort((near_J, -cosines_J))[:top]
      best_J = best_J[cosines_J[best_J] >= threshold]
      yield near_J[best_J][near_J[best_J] < size - first]
