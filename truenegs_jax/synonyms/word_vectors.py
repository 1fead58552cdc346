"""Finds nearest words by word vectors, in the text format of GloVe or word2vec.

  for word, neighbour in find_neighbours(vocabulary, file, top=10): ...

Axes: G words with a vector, D numbers per vector.
"""

import itertools
import math
import operator
import re
from collections.abc import Iterable, Iterator

import numpy as np

from truenegs_jax.data.corpus.files import File
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms.lexicons import numbered_lines, peek, spread_examples
from truenegs_jax.synonyms.vocabulary import Vocabulary

HEADER = re.compile("([0-9]{1,9}) ([1-9][0-9]{0,4})")
CELLS = 2**25  # cosines computed at a time; each needs some 8 bytes
STEPS = 10**9  # cosines are rounded to multiples of 1 / STEPS

Entry = tuple[str, str, str]  # place in the file, word, numbers


def find_neighbours(
  vocabulary: Vocabulary,
  file: File,
  *,
  top: int,
  threshold: float = -1.0,
  symbols: bool = False,
) -> Iterator[tuple[str, str]]:
  """Yields each word with the words whose vectors are most similar.

  Similarity is the cosine; the paper (footnote 9) defines neither it nor the
  candidates. Only words of the vocabulary are candidates, so that all `top` are
  of use. Words without a vector are reported if they are most of the
  vocabulary.

  Args:
    vocabulary: the words and how they are written.
    file: lines of a word and its numbers; may be compressed.
    top: maximum number of neighbours of a word, at least 1.
    threshold: minimum cosine of a neighbour, -1 to 1; -1 means no minimum, as
      in the paper.
    symbols: include punctuation, numbers and stop words.

  Yields:
    (word, neighbour), in the order of the vocabulary, nearest first. The same
    word in another form (`Cat`) counts for `top` but is not yielded.

  Raises:
    InputError: an option is out of range; raised at the call.
    DataError: the file is damaged or of another format, with the line, or has
      no vector of any word. A bad first line is reported at the call.
  """
  if top < 1 or not -1 <= threshold <= 1:
    raise InputError(
      f"source of synonyms: vectors top={top} threshold={threshold} is out of"
      " range. Set top to 1 or more, and threshold from -1 to 1."
    )
  (place, _, numbers), entries = peek(_entries(file), file)
  _parse(numbers, place)
  words = vocabulary.words
  if not symbols:
    words = dict.fromkeys(filter(vocabulary.may_have_neighbours, words))

  def find() -> Iterator[tuple[str, str]]:
    names, vectors_GxD = _read_vectors(entries, words, vocabulary, file)
    ranked = rank_neighbours(vectors_GxD, top=top, threshold=threshold)
    for name, neighbours_J in zip(names, ranked, strict=True):
      for j in neighbours_J:
        if not vocabulary.are_forms(name, names[j]):
          yield name, names[j]

  return find()


def rank_neighbours(
  vectors_GxD: np.ndarray,
  *,
  top: int,
  threshold: float = -1.0,
  cells: int = CELLS,
) -> Iterator[np.ndarray]:
  """Finds the nearest other vectors, by cosine, of each vector.

  Cosines are rounded to nine decimals, so that the order of summation, which
  differs between machines, has no effect. Of equal cosines the earlier vector
  is nearer.

  Args:
    vectors_GxD: float32, finite, none of them zero, squares in range.
    top: maximum number of neighbours of a vector.
    threshold: minimum cosine of a neighbour.
    cells: maximum number of cosines in memory, but at least G.

  Yields:
    For each vector, the indices of its neighbours, nearest first: int64 [J],
    J <= top.
  """
  size, dim = vectors_GxD.shape
  top = min(top, size - 1)
  norms_G = np.sqrt(
    np.einsum("gd,gd->g", vectors_GxD, vectors_GxD, dtype=np.float64)
  )
  scales_G = (1 / norms_G).astype(np.float32)
  # Twice the largest error of a float32 cosine: a cosine and the minimum that
  # it is compared with may both be wrong.
  slack = (dim + 8) * np.finfo(np.float32).eps
  step = max(1, cells // size)
  for start in range(0, size, step):
    rows = slice(start, min(start + step, size))
    cosines_TxG = vectors_GxD[rows] * scales_G[rows, None] @ vectors_GxD.T
    cosines_TxG *= scales_G[None, :]
    rows_T = np.arange(len(cosines_TxG))
    cosines_TxG[rows_T, start + rows_T] = -np.inf
    kth = size - max(top, 1)
    min_T = np.partition(cosines_TxG, kth, axis=1)[:, kth]
    min_T = np.maximum(min_T, threshold) - slack
    for t, min_cosine in enumerate(min_T):
      near_J = np.flatnonzero(cosines_TxG[t] >= min_cosine)
      vector_D = vectors_GxD[start + t].astype(np.float64)
      cosines_J = vectors_GxD[near_J].astype(np.float64) @ vector_D
      cosines_J /= norms_G[near_J] * norms_G[start + t]
      cosines_J = np.rint(cosines_J * STEPS) / STEPS
      order_J = np.lexsort((near_J, -cosines_J))[:top]
      yield near_J[order_J][cosines_J[order_J] >= threshold]


def _read_vectors(
  entries: Iterable[Entry],
  words: Iterable[str],
  vocabulary: Vocabulary,
  file: File,
) -> tuple[list[str], np.ndarray]:
  """Reads the vectors of some words.

  If a word occurs twice, the first vector counts. A word missing from the file
  gets the vector of the first word that stands for it (`Vocabulary.match`) and
  is not among `words` itself: so lower-case vocabularies can use files with
  `Paris`. Only the numbers of returned vectors are checked.

  Returns:
    The words that have a vector other than zero, in the order of `words`, and
    their vectors: float32, each scaled so that its largest number is 1 or -1.
  """
  vectors: dict[str, bytes | None] = dict.fromkeys(words)
  others: dict[str, bytes] = {}  # of words that stand for one of `words`
  for place, word, numbers in entries:
    if word in vectors:
      if vectors[word] is None:
        vectors[word] = _parse(numbers, place)
    elif new := (vocabulary.match(word) & vectors.keys()) - others.keys():
      others |= dict.fromkeys(new, _parse(numbers, place))
  names, lost, matrix = [], [], bytearray()
  for word, vector in vectors.items():
    if vector := others.get(word) if vector is None else vector:
      names.append(word)
      matrix += vector
    else:
      lost.append(word)
  message = (
    f"{file.path}: {len(lost):,} of {len(vectors):,} words of the vocabulary"
    f" have no vector{spread_examples(lost)}."
  )
  if not names:
    raise DataError(f"{message} Use vectors in the vocabulary's language.")
  if len(lost) > len(names):
    vocabulary.report(message)
  return names, np.frombuffer(matrix, np.float32).reshape(len(names), -1)


def _entries(file: File) -> Iterator[Entry]:
  """Yields the entries of a file.

  A line has a word and its numbers, separated by single spaces (GloVe). A first
  line of two whole numbers (word2vec) gives the counts of words and of numbers
  per word. Phrases (`. . .`) are skipped.
  """
  lines = numbered_lines(file)
  # word2vec and fastText write a space at the end of a line.
  texts = ((number, line.rstrip(" ")) for number, line in lines)
  (number, first), filled = peek(filter(operator.itemgetter(1), texts), file)
  header = HEADER.fullmatch(first) if number == 1 else None
  dim = int(header[2]) if header else first.count(" ")
  count = 0
  for number, line in itertools.islice(filled, 1 if header else 0, None):
    count += 1
    # GloVe 840B has a few phrases: `. . .` and its numbers.
    num_more = line.count(" ") - dim
    *names, numbers = line.split(" ", max(0, num_more) + 1)
    is_phrase = all(name and not _is_number(name) for name in names[1:])
    if not dim or num_more < 0 or not is_phrase:
      raise DataError(
        f"{file.path}:{number}: {line.count(' ')} numbers after the word, not"
        f" {dim or 'one or more'}. Every line needs a word and its numbers,"
        " separated by single spaces. Download the file again."
      )
    if len(names) == 1:
      yield f"{file.path}:{number}", names[0], numbers
  if header and count != int(header[1]):
    raise DataError(
      f"{file.path}: {count:,} words, not {int(header[1]):,} as the first line"
      " announces. Download the file again, or correct its first line."
    )


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True


def _parse(numbers: str, place: str) -> bytes:
  """Returns the bytes of a float32 vector; b"" if it is zero.

  Divides by the largest absolute number, so that squares stay in range.
  """
  texts = numbers.split(" ")
  try:
    vector_D = np.array([float(text) for text in texts])
    scale = np.abs(vector_D).max()
  except ValueError:
    scale = np.nan
  if np.isfinite(scale):
    return (vector_D / scale).astype(np.float32).tobytes() if scale else b""
  bad = next(
    x for x in texts if not (_is_number(x) and math.isfinite(float(x)))
  )
  raise DataError(
    f"{place}: {bad!r} is not a finite number. Download the file again, or"
    " remove the word."
  )
