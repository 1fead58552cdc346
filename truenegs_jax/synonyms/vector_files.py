"""Files of word vectors: as text (GloVe, fastText) and binary (word2vec).

  names, vectors_GxD = read_vectors(file, words)

The axes: G words with a vector, D numbers of each.
"""

import itertools
import re
from collections.abc import Iterable, Iterator

import numpy as np

from truenegs_jax.data.files import File, read_blocks
from truenegs_jax.data.lines import read_text
from truenegs_jax.data.reading import BLOCK_BYTES, Reading
from truenegs_jax.errors import DataError

HEADER = re.compile("([0-9]{1,9}) ([1-9][0-9]{0,4})")
HEAD_BYTES = 2**16  # of text hold no NUL, of float32 numbers some
MAX_WORD_BYTES = 2000  # word2vec writes 100 at most, fastText 1,024

# Place in the file, word and numbers: as text, or as little-endian float32.
Entry = tuple[str, str, str | bytes]


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
  found: dict[str, bytes | None] = dict.fromkeys(words)
  cased: dict[str, bytes] = {}
  others = bytearray()  # grows without a second copy
  for place, word, numbers in _entries(file):
    if word in found:
      if found[word] is None:
        found[word] = _parse(numbers, place)
    elif (lower := word.lower()) in found and lower not in cased:
      cased[lower] = _parse(numbers, place)
    elif rivals and "_" not in word:
      others += _parse(numbers, place)
  names = []
  own = bytearray()
  for word, vector in found.items():
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
  head = next(read_blocks(file, Reading(), size=HEAD_BYTES), b"")
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
  blocks = read_blocks(file, Reading(), size=BLOCK_BYTES)
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
