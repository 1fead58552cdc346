"""Word vectors: read from a text file, and which words lie close together.

  for word, other in neighbours(words, path, top=10, threshold=-1.0): ...

The axes: G words with a vector, T of them at a time, J neighbours of each.
"""

import itertools
import os
import pathlib
import re
from collections.abc import Iterable, Iterator

import numpy as np

from truenegs_jax.data.files import File, describe
from truenegs_jax.data.lines import read_text
from truenegs_jax.data.reading import Reading
from truenegs_jax.errors import DataError, InputError

CELLS = 2**22  # cosines at a time; each takes some 32 bytes on the way
STEPS = 10**9  # of a cosine: closer ones are equal, whatever sums them up

HEADER = re.compile("([0-9]{1,9}) ([0-9]{1,9})")


def neighbours(
  words: Iterable[str], path: str, *, top: int, threshold: float
) -> Iterator[tuple[str, str]]:
  """Yields each word with the words whose vectors are most like its own.

  The paper (footnote 9) leaves open like in what and among which: by their
  cosine here, among `words` alone, so that all of `top` can be of use.

  Args:
    words: those to rank and to rank among.
    path: a file of word vectors, see `read_vectors`.
    top: the most neighbours of a word, at least 1.
    threshold: the least cosine of a neighbour, -1 to 1; -1 lets all pass, as
      the paper does.

  Yields:
    (word, neighbour), in the order of `words`, the nearest neighbour first.

  Raises:
    InputError: `top` or `threshold` is out of range, or there is no such file.
    DataError: as `read_vectors`.
  """
  if top < 1 or not -1 <= threshold <= 1:
    raise InputError(
      f"Neighbours by word vectors: top is {top}, threshold {threshold}; top"
      " must be at least 1, threshold from -1 to 1."
    )
  names, vectors_GxD = read_vectors(path, words)
  ranked = nearest(vectors_GxD, top=top, threshold=threshold)
  for name, others_J in zip(names, ranked, strict=True):
    for other in others_J:
      yield name, names[other]


def read_vectors(
  path: str, words: Iterable[str]
) -> tuple[list[str], np.ndarray]:
  """Reads the vectors of some words.

  A line holds a word and its numbers, parted by single spaces (GloVe). A first
  line of two whole numbers (word2vec) says how many lines and numbers follow.
  Of a word that comes twice the first vector counts. Numbers of other words
  are counted but not looked at.

  Args:
    path: the file, plain or compressed as its suffix says (.gz, .xz, ...).
    words: those that are asked for.

  Returns:
    (names, vectors_GxD): the words that have a vector other than zero, in the
    order of `words`, and their vectors, float64.

  Raises:
    InputError: there is no such file.
    DataError: the file is damaged or not of this format, by file and line, or
      has a vector for none of the words.
  """
  file = _find(path)
  found: dict[str, np.ndarray | None] = dict.fromkeys(words)
  for place, word, numbers in _entries(file):
    if word in found and found[word] is None:
      found[word] = _parse(numbers, place)
  vectors = {
    w: v_D for w, v_D in found.items() if v_D is not None and v_D.any()
  }
  if not vectors:
    raise DataError(
      f"{file.path}: no word of the vocabulary has a vector in it (other than"
      " zero): give vectors of the vocabulary's language and case."
    )
  return list(vectors), np.stack(list(vectors.values()))


def nearest(
  vectors_GxD: np.ndarray,
  *,
  top: int,
  threshold: float = -1.0,
  cells: int = CELLS,
) -> Iterator[np.ndarray]:
  """Ranks vectors by their cosine with each vector.

  Cosines are taken to nine decimals, so that the order in which a machine sums
  up does not show; of equal ones the first vector is the nearer.

  Args:
    vectors_GxD: float64, finite, none of them zero.
    top: the most neighbours of a vector.
    threshold: the least cosine of a neighbour.
    cells: the most cosines in memory, but at least those of one vector.

  Yields:
    For each vector the indices of its neighbours, nearest first, without its
    own: int64 [J], J <= top.
  """
  size = len(vectors_GxD)
  top = min(top, size - 1)
  # By the largest number first: the squares of any others are finite.
  unit_GxD = vectors_GxD / np.abs(vectors_GxD).max(axis=1, keepdims=True)
  unit_GxD /= np.linalg.norm(unit_GxD, axis=1, keepdims=True)
  step = max(1, cells // size)
  for start in range(0, size, step):
    cosines_TxG = unit_GxD[start : start + step] @ unit_GxD.T
    # One whole number for both, cosine and index: no two of a row are equal.
    keys_TxG = np.rint(cosines_TxG * STEPS).astype(np.int64) * size
    keys_TxG -= np.arange(size)[None, :]
    rows_T = np.arange(len(keys_TxG))
    keys_TxG[rows_T, start + rows_T] = np.iinfo(np.int64).min
    keys_TxG.partition(size - 1 - top, axis=1)
    best_TxJ = -np.sort(-keys_TxG[:, size - top :], axis=1)
    for best_J in best_TxJ:
      cosines_J = -(-best_J // size) / STEPS
      yield -best_J[cosines_J >= threshold] % size


def _find(path: str) -> File:
  location = os.path.expanduser(path)
  if not os.path.isfile(location):
    raise InputError(
      f"negatives.vectors: there is no file {path!r}; give a file of word"
      " vectors as text, such as glove.6B.50d.txt from glove.6B.zip of"
      " https://nlp.stanford.edu/projects/glove."
    )
  return describe(pathlib.Path(location))


def _entries(file: File) -> Iterator[tuple[str, str, str]]:
  """The place of each line that holds a vector, its word and its numbers."""
  runs = read_text(file, Reading(), records=True)
  # Not by splitlines: words such as U+0085 and U+2028 end a line for it.
  lines = itertools.chain.from_iterable(run[:-1].split("\n") for run in runs)
  header, dim, count = None, 0, 0
  for number, line in enumerate(lines, 1):
    line = line.rstrip(" ")  # word2vec and fastText write a space at the end
    if number == 1 and (header := HEADER.fullmatch(line)):
      dim = int(header[2])
    elif line:
      count += 1
      num_numbers = line.count(" ")
      dim = dim or num_numbers
      if num_numbers == dim > 0:
        word, _, numbers = line.partition(" ")
        yield f"{file.path}:{number}", word, numbers
      elif not 0 < dim < num_numbers or not _is_phrase(line, dim):
        raise DataError(
          f"{file.path}:{number}: {num_numbers} numbers after the word, not"
          f" {dim or 'one or more'}: on each line there must be a word and its"
          " numbers, parted by single spaces; fetch the file again."
        )
  if header and count != int(header[1]):
    raise DataError(
      f"{file.path}: {count:,} words, not {int(header[1]):,} as its first line"
      " says: fetch the file again, or correct that line."
    )


def _is_phrase(line: str, dim: int) -> bool:
  """Whether words stand before the numbers, as in GloVe 840B (`. . .`)."""
  names = line.rsplit(" ", dim)[0].split(" ")
  return all(name and not _is_number(name) for name in names[1:])


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True


def _parse(numbers: str, place: str) -> np.ndarray:
  texts = numbers.split(" ")
  for text in texts:
    if not _is_number(text) or not np.isfinite(float(text)):
      raise DataError(
        f"{place}: {text!r} is not a finite number: fetch the file again, or"
        " leave the line out."
      )
  return np.array([float(text) for text in texts])
