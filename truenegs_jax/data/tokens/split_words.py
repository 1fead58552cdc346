"""Splits text into BERT's words, many lines at a time, as spans of bytes.

BERT's normalizer drops control characters, splits text at white space and
around Chinese characters, lower-cases it and strips accents; its pre-tokenizer
splits words at punctuation. `find_words` does only the cheap part of this. A
`Splitter` does the rest, and a caller needs it for distinct words only. Unicode
properties are looked up with `tokenizers`, in few calls.

  words, ends_N = find_words(["a mute swan", "swans"])
  splitter = Splitter(lowercase=True, strip_accents=True)
  basic, ends_W = splitter.basic_tokens(words)
"""

import re
import string
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import normalizers, pre_tokenizers

BATCH_CHARACTERS = 100_000  # arrays of this size stay in the CPU's cache
PADDING = 16  # bytes after the last word, for reads of a fixed size
_NEWLINE = ord("\n")
_DELETED = bytes(
  code for code in (*range(32), 127) if chr(code) not in "\t\n\r"
)
_IS_PUNCTUATION = np.isin(np.arange(256), list(string.punctuation.encode()))
# Noncharacters, which BERT's normalizer keeps. One that is not in the text
# separates its words while they are normalized.
_SEPARATORS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class WordSpans(NamedTuple):
  """Words as spans of UTF-8."""

  data_B: np.ndarray  # uint8; PADDING bytes follow the last word
  starts_W: np.ndarray  # index in `data_B` of the first byte of each word
  lengths_W: np.ndarray  # number of bytes of each word

  def take(self, selection: np.ndarray) -> "WordSpans":
    """Selects words by an array of indices or of bools."""
    starts_W, lengths_W = self.starts_W[selection], self.lengths_W[selection]
    return WordSpans(self.data_B, starts_W, lengths_W)

  def are_ascii(self) -> np.ndarray:
    """Returns bool `[W]`: which words are ASCII. No word may be empty."""
    highs = np.flatnonzero(self.data_B >= 128)
    first_W = np.searchsorted(highs, self.starts_W)
    return first_W == np.searchsorted(highs, self.starts_W + self.lengths_W)

  def num_characters(self) -> np.ndarray:
    """Returns the number of characters of each word."""
    is_first_B = (self.data_B & 0xC0) != 0x80
    before_B = np.cumsum(is_first_B, dtype=np.int64) - is_first_B
    return before_B[self.starts_W + self.lengths_W] - before_B[self.starts_W]

  def lines(self) -> bytes:
    """Returns the words, each followed by a newline."""
    sizes_W = self.lengths_W + 1
    joined_B, _ = take_spans(self.data_B, self.starts_W, sizes_W)
    joined_B[np.cumsum(sizes_W) - 1] = _NEWLINE
    return joined_B.tobytes()


def join_words(words: list[bytes]) -> WordSpans:
  """Joins words into one array of bytes. No word may be empty."""
  lengths_W = np.fromiter(map(len, words), np.int64, len(words))
  data_B = np.frombuffer(b"".join(words) + bytes(PADDING), np.uint8)
  return WordSpans(data_B, np.cumsum(lengths_W) - lengths_W, lengths_W)


def batch_texts(texts: Iterable[str]) -> Iterator[list[str]]:
  """Groups texts into lists of at least BATCH_CHARACTERS, except the last."""
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
  """Splits lines at white space and around the common Chinese characters.

  BERT may split these words further, but never joins two of them. Lone
  surrogates have no UTF-8 and are dropped. Returns the words of all lines, and
  `[N]` the number of words before the end of each line.
  """
  text = "\n".join([*lines, ""])
  if text.count("\n") != len(lines):
    text = "".join(line.replace("\n", " ") + "\n" for line in lines)
  return _find_words(text.encode("utf-8", "ignore"))


def take_spans(
  values_T: np.ndarray, starts_N: np.ndarray, lengths_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Concatenates spans; returns their values and the end of each span."""
  ends_N = np.cumsum(lengths_N)
  index_T = np.repeat(starts_N - ends_N + lengths_N, lengths_N)
  index_T += np.arange(len(index_T))
  return values_T[index_T], ends_N


def _find_words(text: bytes) -> tuple[WordSpans, np.ndarray]:
  """Finds the words of UTF-8 in which each line ends with a newline."""
  data_B = np.frombuffer(b"\n" + text + bytes(PADDING), np.uint8)
  text_B = data_B[:-PADDING]
  is_gap_B = (text_B == _NEWLINE) | (text_B == ord(" "))
  is_gap_B |= (text_B == ord("\t")) | (text_B == ord("\r"))
  return _find_spans(data_B, is_gap_B, _chinese_cuts(text_B))


def _chinese_cuts(data_B: np.ndarray) -> np.ndarray | None:
  """Returns where a character of U+4000 to U+9FFF begins or has ended."""
  is_lead_B = (data_B >= 0xE4) & (data_B <= 0xE9)
  if not is_lead_B.any():
    return None
  # BERT does not split at the hexagrams, U+4DC0 to U+4DFF.
  is_lead_B[:-1] &= (data_B[:-1] != 0xE4) | (data_B[1:] != 0xB7)
  cuts_B = is_lead_B.copy()
  cuts_B[3:] |= is_lead_B[:-3]
  return cuts_B


def _find_spans(
  data_B: np.ndarray, is_gap_B: np.ndarray, cuts_B: np.ndarray | None
) -> tuple[WordSpans, np.ndarray]:
  """Finds the spans between gaps, and cuts them where `cuts_B` is set.

  The first byte must be a newline, the last before the padding a gap. Returns
  the spans and, for each other newline, the number of spans before it.
  """
  if cuts_B is None:
    edges = np.flatnonzero(is_gap_B[1:] != is_gap_B[:-1]) + 1
    starts_W, ends_W = edges[::2], edges[1::2]
  else:
    starts_W = np.flatnonzero(~is_gap_B[1:] & (is_gap_B[:-1] | cuts_B[1:])) + 1
    ends_W = np.flatnonzero(~is_gap_B[:-1] & (is_gap_B[1:] | cuts_B[1:])) + 1
  newlines = np.flatnonzero(data_B[:-PADDING] == _NEWLINE)[1:]
  words = WordSpans(data_B, starts_W, ends_W - starts_W)
  return words, np.searchsorted(starts_W, newlines)


class Splitter:
  """Normalizes words and splits them at punctuation, as BERT does."""

  def __init__(self, *, lowercase: bool, strip_accents: bool) -> None:
    self._normalizer = normalizers.BertNormalizer(
      lowercase=lowercase, strip_accents=strip_accents
    )
    ascii_table = bytes(range(256))
    self._ascii_table = ascii_table.lower() if lowercase else ascii_table
    self._classified = {"a", " ", "\n"}
    self._punctuation: set[str] = set()
    self._classify(set(string.punctuation))

  def basic_tokens(self, words: WordSpans) -> tuple[WordSpans, np.ndarray]:
    """Returns the tokens of BERT's BasicTokenizer, before WordPiece.

    Also returns `[W]` the number of tokens before the end of each word. ASCII
    words are processed faster if all words of a call are ASCII.
    """
    text = words.lines()
    if text.isascii():
      return self._ascii_tokens(text)
    normalized = self._normalize(text.decode())
    if new := set(normalized) - self._classified:
      self._classify(new)
    return _find_words(" ".join(self._pattern.findall(normalized)).encode())

  def _ascii_tokens(self, text: bytes) -> tuple[WordSpans, np.ndarray]:
    text = text.translate(self._ascii_table, delete=_DELETED)
    data_B = np.frombuffer(b"\n" + text + bytes(PADDING), np.uint8)
    text_B = data_B[:-PADDING]
    is_punctuation_B = _IS_PUNCTUATION[text_B]
    cuts_B = is_punctuation_B.copy()
    cuts_B[1:] |= is_punctuation_B[:-1]
    return _find_spans(data_B, text_B == _NEWLINE, cuts_B)

  def _normalize(self, lines: str) -> str:
    """Normalizes lines and keeps newlines, which BERT turns into spaces."""
    for separator in _SEPARATORS:
      if separator not in lines:
        marked = lines.replace("\n", f"\n{separator}\n")
        normalized = self._normalizer.normalize_str(marked)
        return normalized.replace(separator, "\n")
    return "\n".join(map(self._normalizer.normalize_str, lines.split("\n")))

  def _classify(self, characters: set[str]) -> None:
    """Adds those of the characters that are punctuation to the pattern."""
    letters = "a".join(["", *characters, ""])  # only punctuation splits this
    tokens = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(letters)
    self._classified |= characters
    self._punctuation |= characters & {token for token, _ in tokens}
    escaped = "".join(map(re.escape, sorted(self._punctuation)))
    self._pattern = re.compile(rf"[^ \n{escaped}]+|[\n{escaped}]")
