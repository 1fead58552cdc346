"""Nearest words by word vectors, from files as text or in word2vec's binary.

  for word, neighbour in neighbours(words, file, top=10): ...

The axes: G words with a vector, D numbers of each.
"""

import itertools
import re
from collections.abc import Iterable, Iterator

import numpy as np

from truenegs_jax.data.corpus.files import File, read_blocks
from truenegs_jax.data.corpus.lines import read_text
from truenegs_jax.data.corpus.read_state import BLOCK_BYTES, ReadState
from truenegs_jax.runtime.errors import DataError, InputError

HEADER = re.compile("([0-9]{1,9}) ([1-9][0-9]{0,4})")
HEAD_BYTES = 2**16  # of text hold no NUL, of float32 numbers some
MAX_WORD_BYTES = 2000  # word2vec writes 100 at most, fastText 1,024

CELLS = 2**25  # cosines at a time; each takes some 8 bytes on the way
STEPS = 10**9  # of a cosine: closer ones are equal, whatever sums them up
AMONG = ("vocabulary", "file")

# Place in the file, word and numbers: as text, or as little-endian float32.
Entry = tuple[str, str, str | bytes]


def find_neighbours(
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
    file: with their vectors, see `read_vectors`.
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
      f"source of synonyms: vectors top={top} threshold={threshold}"
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
  ranked = rank_neighbours(
    vectors_GxD, top=top, threshold=threshold, first=first
  )
  for name, others_J in zip(names, ranked, strict=True):
    for other in others_J:
      if names[other].lower() != name.lower():
        yield name, names[other]


def rank_neighbours(
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


def read_vectors(
  file: File, words: Iterable[str], *, rivals: bool = False
) -> tuple[list[str], np.ndarray]:
  """Reads the vectors of some words, and of the other words if asked to.

  A line holds a word and its numbers, parted by single spaces (GloVe). A first
  line of two whole numbers (word2vec) says how many words and numbers follow.
  With that line a file may be binary: each word, a space and its numbers as
  little-endian float32, with or without an end of line.

  Of a word that comes twice the first vector counts. One that the file lacks
  gets the vector of its first cased form there, unless that is asked for, too:
  lower-case vocabularies thus share files with `Paris`. Phrases (`New_York`,
  `. . .`) are passed over. Numbers of no use are counted but not looked at.

  Args:
    file: plain or compressed as its suffix says (.gz, .xz, ...).
    words: those that are asked for.
    rivals: read the vectors of all other words as well.

  Returns:
    (names, vectors_GxD): the words that have a vector other than zero, in the
    order of `words`. The last vectors are theirs, in this order; those before
    are the rivals', as in the file. float32, the largest number 1 or -1.

  Raises:
    DataError: the file is damaged or not of this format, by file and line or
      byte, or has a vector for none of the words.
  """
  wanted: dict[str, bytes | None] = dict.fromkeys(words)
  cased: dict[str, bytes] = {}
  others = bytearray()  # grows without a second copy
  for place, word, numbers in _entries(file):
    if word in wanted:
      if wanted[word] is None:
        wanted[word] = _parse(numbers, place)
    elif (lower := word.lower()) in wanted and lower not in cased:
      cased[lower] = _parse(numbers, place)
    elif rivals and "_" not in word:
      others += _parse(numbers, place)
  names = []
  own = bytearray()
  for word, vector in wanted.items():
    spare = cased.get(word, b"")
    if vector is None:
      vector = spare
    elif rivals:
      others += spare
    if vector:
      names.append(word)
      own += vector
  if not names:
    raise DataError(
      f"{file.path}: no word of the vocabulary has a vector in it (other than"
      " zero): give vectors of the vocabulary's language and case."
    )
  others += own
  dim = len(own) // len(names) // 4
  return names, np.frombuffer(others, np.float32).reshape(-1, dim)


def check_beginning(file: File) -> None:
  """Refuses a file whose first entry is no word with its numbers.

  Raises:
    DataError: there is none, or it is damaged or not of this format.
  """
  for place, _, numbers in _entries(file):
    _parse(numbers, place)
    return
  raise DataError(
    f"{file.path}: there are no word vectors in it: fetch the file again."
  )


def _entries(file: File) -> Iterator[Entry]:
  head = next(read_blocks(file, ReadState(), size=HEAD_BYTES), b"")
  first = head.partition(b"\n")[0].rstrip(b" \r").decode(errors="replace")
  header = HEADER.fullmatch(first)
  if header and b"\0" in head:
    return _binary_entries(
      file, head.index(b"\n") + 1, count=int(header[1]), dim=int(header[2])
    )
  return _text_entries(file)


def _binary_entries(
  file: File, header: int, *, count: int, dim: int
) -> Iterator[Entry]:
  """The `count` words after the first line, which takes `header` bytes."""
  blocks = read_blocks(file, ReadState(), size=BLOCK_BYTES)
  data, before, begin = next(blocks, b""), 0, header
  for number in range(1, count + 1):
    while True:
      space = data.find(b" ", begin, begin + MAX_WORD_BYTES)
      end = space + 1 + 4 * dim
      is_long = space < 0 and len(data) - begin >= MAX_WORD_BYTES
      if is_long or 0 <= space < end <= len(data):
        break
      block = next(blocks, b"")
      if not block:
        raise DataError(
          f"{file.path}: cut off at byte {before + len(data):,}, in word"
          f" {number:,} of {count:,}: fetch the file again."
        )
      data, before, begin = data[begin:] + block, before + begin, 0
    place = f"{file.path}: byte {before + begin:,}"
    word = data[begin:space].lstrip(b"\n")
    if is_long or not word or b"\0" in word:
      raise DataError(
        f"{place}: {data[begin : begin + 20]!r} is not the beginning of word"
        f" {number:,} and its {dim:,} numbers: fetch the file again."
      )
    yield place, word.decode(errors="replace"), data[space + 1 : end]
    begin = end
  for rest in itertools.chain([data[begin:]], blocks):
    if rest.strip(b"\n"):
      raise DataError(
        f"{file.path}: goes on after the {count:,} words that its first line"
        " says: fetch the file again, or correct that line."
      )


def _text_entries(file: File) -> Iterator[Entry]:
  runs = read_text(file, ReadState(), records=True)
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


def _parse(numbers: str | bytes, place: str) -> bytes:
  """A vector as float32, none if it is zero.

  It is scaled by its largest number, so that all squares are in range.
  """
  if isinstance(numbers, bytes):
    texts = np.frombuffer(numbers, "<f4").tolist()
  else:
    texts = numbers.split(" ")
  try:
    vector_D = np.array([float(text) for text in texts])
    most = np.abs(vector_D).max()
  except ValueError:
    most = np.nan
  if np.isfinite(most):
    return (vector_D / most).astype(np.float32).tobytes() if most else b""
  bad = next(
    text
    for text in texts
    if not _is_number(text) or not np.isfinite(float(text))
  )
  raise DataError(
    f"{place}: {bad!r} is not a finite number: fetch the file again, or leave"
    " that word out."
  )
