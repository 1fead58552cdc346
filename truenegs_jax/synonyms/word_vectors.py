"""Finds nearest words by word vectors, in text or in word2vec's binary format.

  for word, neighbour in find_neighbours(vocabulary, file, top=10): ...

Axes: G words with a vector, D numbers per vector.
"""

import itertools
import math
import operator
import re
from collections.abc import Iterable, Iterator

import numpy as np

from truenegs_jax.data.corpus.files import File, read_blocks
from truenegs_jax.data.corpus.read_state import BLOCK_BYTES, ReadState
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms.lexicons import numbered_lines, peek, spread_examples
from truenegs_jax.synonyms.vocabulary import Vocabulary

HEADER = re.compile("([0-9]{1,9}) ([1-9][0-9]{0,4})")
HEAD_BYTES = 2**16  # enough to contain a NUL if the numbers are binary
MAX_WORD_BYTES = 2000  # word2vec writes 100 at most, fastText 1,024

CELLS = 2**25  # cosines computed at a time; each needs some 8 bytes
STEPS = 10**9  # cosines are rounded to multiples of 1 / STEPS
AMONG = ("vocabulary", "file")

# Place in the file, word, numbers as text or as little-endian float32.
Entry = tuple[str, str, str | bytes]


def find_neighbours(
  vocabulary: Vocabulary,
  file: File,
  *,
  top: int,
  threshold: float = -1.0,
  among: str = "vocabulary",
  symbols: bool = False,
) -> Iterator[tuple[str, str]]:
  """Yields each word with the words whose vectors are most similar.

  Similarity is the cosine; the paper (footnote 9) defines neither it nor the
  candidates. By default only words of the vocabulary are candidates, so that
  all `top` are of use. With among="file", the neighbours that are no such words
  are dropped after ranking. Words without a vector are reported if they are
  most of the vocabulary.

  Args:
    vocabulary: the words, see `Vocabulary.may_have_neighbours`.
    file: see `read_vectors`.
    top: maximum number of neighbours of a word, at least 1.
    threshold: minimum cosine of a neighbour, -1 to 1; -1 means no minimum, as
      in the paper.
    among: "vocabulary" or "file".
    symbols: include punctuation, numbers and stop words.

  Yields:
    (word, neighbour), in the order of the vocabulary, nearest first. The same
    word in another form (`Cat`) counts for `top` but is not yielded.

  Raises:
    InputError: an option is out of range; raised at the call.
    DataError: see `read_vectors`; if already the first entry is damaged or
      missing, raised at the call.
  """
  if top < 1 or not -1 <= threshold <= 1 or among not in AMONG:
    raise InputError(
      f"source of synonyms: vectors top={top} threshold={threshold}"
      f" among={among} is out of range. Set top to 1 or more, threshold from -1"
      f" to 1, and among to {' or '.join(AMONG)}."
    )
  (place, _, numbers), entries = peek(_entries(file), file)
  _parse(numbers, place)
  words = vocabulary.words
  if not symbols:
    words = dict.fromkeys(filter(vocabulary.may_have_neighbours, words))

  def find() -> Iterator[tuple[str, str]]:
    names, vectors_GxD = read_vectors(
      entries, words, vocabulary, file, all_words=among == "file"
    )
    ranked = rank_neighbours(
      vectors_GxD, len(names), top=top, threshold=threshold
    )
    for name, neighbours_J in zip(names, ranked, strict=True):
      for j in neighbours_J:
        if not vocabulary.are_forms(name, names[j]):
          yield name, names[j]

  return find()


def rank_neighbours(
  vectors_GxD: np.ndarray,
  count: int,
  *,
  top: int,
  threshold: float = -1.0,
  cells: int = CELLS,
) -> Iterator[np.ndarray]:
  """Finds the nearest vectors, by cosine, of each of the first `count` vectors.

  Cosines are rounded to nine decimals, so that the order of summation, which
  differs between machines, has no effect. Of equal cosines the earlier vector
  is nearer.

  Args:
    vectors_GxD: float32, finite, none of them zero, squares in range.
    count: number of vectors to find neighbours of. The others are neighbours,
      too, and count for `top`, but are not yielded.
    top: maximum number of neighbours of a vector.
    threshold: minimum cosine of a neighbour.
    cells: maximum number of cosines in memory, but at least G.

  Yields:
    For each of the `count` vectors, the indices below `count` of its
    neighbours, nearest first: int64 [J], J <= top.
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
  for start in range(0, count, step):
    rows = slice(start, min(start + step, count))
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
      nearest_J = near_J[order_J][cosines_J[order_J] >= threshold]
      yield nearest_J[nearest_J < count]


def read_vectors(
  entries: Iterable[Entry],
  words: Iterable[str],
  vocabulary: Vocabulary,
  file: File,
  *,
  all_words: bool = False,
) -> tuple[list[str], np.ndarray]:
  """Reads the vectors of some words, and optionally of all other words.

  If a word occurs twice, the first vector counts. A word missing from the file
  gets the vector of the first word that stands for it (`Vocabulary.match`) and
  is not among `words` itself: so lower-case vocabularies can use files with
  `Paris`. Phrases (`New_York`, `. . .`) are skipped. Only the numbers of
  returned vectors are checked.

  Returns:
    (names, vectors_GxD): the words that have a vector other than zero, in the
    order of `words`; and their vectors, followed by those of other words in the
    order of the file. float32, each scaled so that its largest number is 1 or
    -1.

  Raises:
    DataError: the file is damaged or of another format, with the line or byte;
      or it has no vector of any of the words.
  """
  vectors: dict[str, bytes | None] = dict.fromkeys(words)
  others: dict[str, bytes] = {}  # of words that stand for one of `words`
  rest = bytearray()  # vectors of all other words
  for place, word, numbers in entries:
    if word in vectors:
      if vectors[word] is None:
        vectors[word] = _parse(numbers, place)
    elif new := (vocabulary.match(word) & vectors.keys()) - others.keys():
      others |= dict.fromkeys(new, _parse(numbers, place))
    elif all_words and "_" not in word:
      rest += _parse(numbers, place)
  names, lost = [], []
  matrix = bytearray()
  for word, vector in vectors.items():
    other = others.get(word, b"")
    if vector is None:
      vector = other
    elif all_words:
      rest += other
    if vector:
      names.append(word)
      matrix += vector
    else:
      lost.append(word)
  _check_lost(lost, len(names), vocabulary, file)
  dim = len(matrix) // len(names) // 4
  rest[:0] = matrix  # in place: the others may take gigabytes
  return names, np.frombuffer(rest, np.float32).reshape(-1, dim)


def _check_lost(
  lost: list[str], num_found: int, vocabulary: Vocabulary, file: File
) -> None:
  """Reports words without a vector if they are the most, refuses if all are."""
  message = (
    f"{file.path}: {len(lost):,} of {len(lost) + num_found:,} words of the"
    f" vocabulary have no vector{spread_examples(lost)}."
  )
  if not num_found:
    raise DataError(f"{message} Use vectors in the vocabulary's language.")
  if len(lost) > num_found:
    vocabulary.report(message)


def _entries(file: File) -> Iterator[Entry]:
  """Yields the entries of a file, which may be compressed (.gz, .xz, ...).

  A line has a word and its numbers, separated by single spaces (GloVe). A first
  line of two whole numbers (word2vec) gives the counts of words and of numbers
  per word. A file with that line may be binary: each word, a space and its
  numbers as little-endian float32, with or without a line feed.
  """
  head = next(read_blocks(file, ReadState(), size=HEAD_BYTES), b"")
  first = head.partition(b"\n")[0].rstrip(b" \r").decode(errors="replace")
  header = HEADER.fullmatch(first)
  if header and b"\0" in head:
    return _binary_entries(file, int(header[1]), int(header[2]))
  return _text_entries(file)


def _binary_entries(file: File, count: int, dim: int) -> Iterator[Entry]:
  blocks = read_blocks(file, ReadState(), size=BLOCK_BYTES)
  data = bytearray()  # what follows the entries that were yielded

  def read_ahead(size: int) -> None:
    while len(data) < size and (block := next(blocks, b"")):
      data.extend(block)

  read_ahead(HEAD_BYTES)
  offset = data.index(b"\n") + 1  # of `data` in the file
  del data[:offset]
  for number in range(1, count + 1):
    read_ahead(MAX_WORD_BYTES + 4 * dim)  # the longest possible entry
    space = data.find(b" ", 0, MAX_WORD_BYTES)
    end = space + 1 + 4 * dim if space >= 0 else MAX_WORD_BYTES
    if end > len(data):
      raise DataError(
        f"{file.path}: cut off at byte {offset + len(data):,}, in word"
        f" {number:,} of {count:,}. Download the file again."
      )
    place, word = f"{file.path}: byte {offset:,}", data[:space].lstrip(b"\n")
    if space < 0 or not word or b"\0" in word:
      raise DataError(
        f"{place}: {bytes(data[:20])!r} is not the beginning of word"
        f" {number:,} and its {dim:,} numbers. Download the file again."
      )
    yield place, word.decode(errors="replace"), bytes(data[space + 1 : end])
    del data[:end]
    offset += end
  for rest in itertools.chain([bytes(data)], blocks):
    if rest.strip(b"\n"):
      raise DataError(
        f"{file.path}: more data after the {count:,} words that the first line"
        " announces. Download the file again, or correct its first line."
      )


def _text_entries(file: File) -> Iterator[Entry]:
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
    if not dim or num_more < 0 or not all(map(_is_name, names[1:])):
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


def _is_name(text: str) -> bool:
  return bool(text) and not _is_number(text)


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True


def _parse(numbers: str | bytes, place: str) -> bytes:
  """Returns the bytes of a float32 vector; b"" if it is zero.

  Divides by the largest absolute number, so that squares stay in range.
  """
  if isinstance(numbers, bytes):
    texts = np.frombuffer(numbers, "<f4").tolist()
  else:
    texts = numbers.split(" ")
  try:
    vector_D = np.array([float(text) for text in texts])
    scale = np.abs(vector_D).max()
  except ValueError:
    scale = np.nan
  if np.isfinite(scale):
    return (vector_D / scale).astype(np.float32).tobytes() if scale else b""
  finite = (_is_number(text) and math.isfinite(float(text)) for text in texts)
  bad = texts[list(finite).index(False)]
  raise DataError(
    f"{place}: {bad!r} is not a finite number. Download the file again, or"
    " remove the word."
  )
