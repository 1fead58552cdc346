"""Splits text into the words that BERT sees, very many at a time, as bytes.

BERT drops control characters, parts text at white space and around Chinese
characters, lower-cases and strips accents, and parts words at punctuation. Here
words are spans of one array of UTF-8, and a word may first be any span between
white space: only different ones need to be looked at closely, by a `Splitter`.
What depends on tables of Unicode it asks of `tokenizers`, in few calls.

  words, ends_N = words_of_lines(["a mute swan", "swans"])
  splitter = Splitter(lowercase=True, strip_accents=True)
  basic, ends_W = splitter.basic_tokens(words)
"""

import re
import string
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import normalizers, pre_tokenizers

# What the inner loops touch at a time stays in the processor's cache.
BATCH_CHARACTERS = 100_000
PADDING = 16  # bytes after the last word, for reads of a fixed size
_NEWLINE = ord("\n")
_DELETED = bytes(
  code for code in (*range(32), 127) if chr(code) not in "\t\n\r"
)
_IS_PUNCTUATION = np.isin(np.arange(256), list(string.punctuation.encode()))
# Noncharacters, which BERT keeps as they are. One that a text does not hold
# stands between its words while they are normalised.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class WordSpans(NamedTuple):
  """Words as spans of UTF-8.

  Attributes:
    data_B: uint8; PADDING bytes follow the last word.
    starts_W, lengths_W: where in `data_B` a word begins; its bytes.
  """

  data_B: np.ndarray
  starts_W: np.ndarray
  lengths_W: np.ndarray

  def take(self, places: np.ndarray) -> "WordSpans":
    """Some of the words; an array of indices or of bools."""
    return WordSpans(self.data_B, self.starts_W[places], self.lengths_W[places])

  def are_ascii(self) -> np.ndarray:
    """Which words are ASCII; none is empty."""
    highs = np.flatnonzero(self.data_B >= 128)
    first_W = np.searchsorted(highs, self.starts_W)
    return first_W == np.searchsorted(highs, self.starts_W + self.lengths_W)

  def num_characters(self) -> np.ndarray:
    """The characters of each word."""
    is_first_B = (self.data_B & 0xC0) != 0x80
    before_B = np.cumsum(is_first_B, dtype=np.int64) - is_first_B
    return before_B[self.starts_W + self.lengths_W] - before_B[self.starts_W]

  def lines(self) -> bytes:
    """The words, each with a newline after it."""
    sizes_W = self.lengths_W + 1
    joined_B, _ = take_spans(self.data_B, self.starts_W, sizes_W)
    joined_B[np.cumsum(sizes_W) - 1] = _NEWLINE
    return joined_B.tobytes()


def join_words(words: list[bytes]) -> WordSpans:
  """Words, none empty, as spans."""
  lengths_W = np.fromiter(map(len, words), np.int64, len(words))
  data_B = np.frombuffer(b"".join(words) + bytes(PADDING), np.uint8)
  return WordSpans(data_B, np.cumsum(lengths_W) - lengths_W, lengths_W)


def batch_texts(texts: Iterable[str]) -> Iterator[list[str]]:
  """Parts texts into lists of BATCH_CHARACTERS or more, but for the last."""
  batch: list[str] = []
  size = 0
  for text in texts:
    batch.append(text)
    size += len(text)
    if size >= BATCH_CHARACTERS:
      yield batch
      batch, size = [], 0
  if batch:
    yield batch


def find_words(lines: Sequence[str]) -> tuple[WordSpans, np.ndarray]:
  """The spans between white space and around the usual Chinese characters.

  BERT may part them further, but no word of BERT's is in two of them. Lone
  surrogates, which have no UTF-8, are left out.

  Returns:
    The words of all lines, and how many precede the end of each line.
  """
  text = "\n".join([*lines, ""])
  if text.count("\n") != len(lines):
    text = "".join(line.replace("\n", " ") + "\n" for line in lines)
  return _words_and_ends(text.encode("utf-8", "ignore"))


def take_spans(
  values_T: np.ndarray, starts_N: np.ndarray, lengths_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Spans of an array, one after another, and where they end there."""
  ends_N = np.cumsum(lengths_N)
  places_T = np.repeat(starts_N - ends_N + lengths_N, lengths_N)
  places_T += np.arange(len(places_T))
  return values_T[places_T], ends_N


def _words_and_ends(text: bytes) -> tuple[WordSpans, np.ndarray]:
  """Words of lines that each end in a newline, and how many at each end."""
  data_B = np.frombuffer(b"\n" + text + bytes(PADDING), np.uint8)
  line_B = data_B[:-PADDING]
  is_newline_B = line_B == _NEWLINE
  is_gap_B = is_newline_B | (line_B == 32) | (line_B == 9) | (line_B == 13)
  words = _spans(data_B, is_gap_B, _chinese_cuts(line_B))
  return words, _counts_before(words, np.flatnonzero(is_newline_B)[1:])


def _counts_before(words: WordSpans, places_N: np.ndarray) -> np.ndarray:
  return np.searchsorted(words.starts_W, places_N)


def _chinese_cuts(data_B: np.ndarray) -> np.ndarray | None:
  """Where a character of U+4000 to U+9FFF begins or has ended."""
  is_lead_B = (data_B >= 0xE4) & (data_B <= 0xE9)
  if not is_lead_B.any():
    return None
  # U+4DC0 to U+4DFF, hexagrams, are no words apart.
  is_lead_B[:-1] &= (data_B[:-1] != 0xE4) | (data_B[1:] != 0xB7)
  cuts_B = is_lead_B.copy()
  cuts_B[3:] |= is_lead_B[:-3]
  return cuts_B


def _spans(
  data_B: np.ndarray, is_gap_B: np.ndarray, cuts_B: np.ndarray | None
) -> WordSpans:
  """Spans without gaps. The first and the last byte are gaps.

  Args:
    cuts_B: where a span ends and another begins without a gap.
  """
  if cuts_B is None:
    edges = np.flatnonzero(is_gap_B[1:] != is_gap_B[:-1]) + 1
    starts_W, ends_W = edges[::2], edges[1::2]
  else:
    starts_W = np.flatnonzero(~is_gap_B[1:] & (is_gap_B[:-1] | cuts_B[1:])) + 1
    ends_W = np.flatnonzero(~is_gap_B[:-1] & (is_gap_B[1:] | cuts_B[1:])) + 1
  return WordSpans(data_B, starts_W, ends_W - starts_W)


class Splitter:
  """Normalises words and parts them as BERT does."""

  def __init__(self, *, lowercase: bool, strip_accents: bool) -> None:
    self._normalizer = normalizers.BertNormalizer(
      lowercase=lowercase, strip_accents=strip_accents
    )
    self._table = bytes(range(256))  # what becomes of a byte of ASCII
    if lowercase:
      self._table = self._table.lower()
    self._known = {"a", " ", "\n"}
    self._punctuation: set[str] = set()
    self._learn(set(string.punctuation))

  def basic_tokens(self, words: WordSpans) -> tuple[WordSpans, np.ndarray]:
    """The tokens of BERT's BasicTokenizer, before any word pieces.

    Returns:
      The tokens of all words, and how many precede the end of each word.

    Words of ASCII are faster where there are no others.
    """
    text = words.lines()
    if text.isascii():
      return self._tokens_of_ascii(text)
    normal = self._normal(text.decode())
    if fresh := set(normal) - self._known:
      self._learn(fresh)
    return _words_and_ends(" ".join(self._pattern.findall(normal)).encode())

  def _tokens_of_ascii(self, text: bytes) -> tuple[WordSpans, np.ndarray]:
    text = text.translate(self._table, delete=_DELETED)
    data_B = np.frombuffer(b"\n" + text + bytes(PADDING), np.uint8)
    line_B = data_B[:-PADDING]
    is_newline_B = line_B == _NEWLINE
    is_punctuation_B = _IS_PUNCTUATION[line_B]
    cuts_B = is_punctuation_B.copy()
    cuts_B[1:] |= is_punctuation_B[:-1]
    basic = _spans(data_B, is_newline_B, cuts_B)
    return basic, _counts_before(basic, np.flatnonzero(is_newline_B)[1:])

  def _normal(self, lines: str) -> str:
    """Normalises lines; the normalizer makes a space of a newline."""
    for mark in _MARKS:
      if mark not in lines:
        marked = lines.replace("\n", f"\n{mark}\n")
        return self._normalizer.normalize_str(marked).replace(mark, "\n")
    return "\n".join(map(self._normalizer.normalize_str, lines.split("\n")))

  def _learn(self, fresh: set[str]) -> None:
    """Finds out which characters are punctuation."""
    letters = "a".join(["", *fresh, ""])  # what is none sticks to its a
    parts = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(letters)
    self._known |= fresh
    self._punctuation |= fresh & {part for part, _ in parts}
    parting = "".join(map(re.escape, sorted(self._punctuation)))
    self._pattern = re.compile(rf"[^ \n{parting}]+|[\n{parting}]")
