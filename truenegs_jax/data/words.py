"""Tells what the tokens of any vocabulary are: special, words, pieces.

  edges_V = word_edges(vocab)

The tokens of a vocabulary show how it marks the boundaries of words:

  ##  before pieces that continue a word (WordPiece)
  Ġ   for a space before a token, which is spelled in bytes (byte-level BPE)
  ▁   for a space before a token (Metaspace: Unigram, some BPE)

Without marks every token is a word. Where spaces are marked, a word has several
ids, such as `main`, `Ġmain` and `ĠMain`, and `main` may also be a piece.
"""

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from tokenizers import decoders

MARKS = ("##", "Ġ", "▁")
NO_TEXT = "\ufffd"  # for bytes that are only a part of a character
Row = tuple[str, str, int, int]  # text, word, class, edges
_SPECIAL = re.compile(r"\[.+\]", re.DOTALL)
_SPACED_SPECIAL = re.compile(r"\[.+\]|<.+>|", re.DOTALL)  # or a byte, or ""
_LETTERS = "<0x", "<unk>", "[UNK]"  # bytes and others that may be a letter
_decode_bytes = decoders.ByteLevel().decode


@dataclasses.dataclass(frozen=True, eq=False)
class Words:
  """Texts, words and boundaries of the tokens of a vocabulary."""

  marks_spaces: bool
  texts: tuple[str, ...]  # of tokens, readable; `##` stays
  # Lower case where spaces are marked; "" for `##` pieces and special tokens.
  words: tuple[str, ...]
  classes_V: np.ndarray  # int8, by boundary and casing; odd: at a boundary
  edges_V: np.ndarray  # uint8, of `word_edges`

  @functools.cached_property
  def ids(self) -> dict[str, list[int]]:
    """The ids of each word, in the order of the vocabulary."""
    ids: dict[str, list[int]] = {}
    for i in filter(self.words.__getitem__, range(len(self.words))):
      ids.setdefault(self.words[i], []).append(i)
    return ids

  def fold(self, word: str) -> str:
    """Returns a word as `words` has it."""
    return word.strip("▁ ").lower() if self.marks_spaces else word


@functools.lru_cache(maxsize=4)
def read_words(tokens: tuple[str, ...]) -> Words:
  """Reads texts and boundaries of tokens, by the most frequent mark.

  >>> words = read_words(("Ġmain", "ĠMain", "main", "ly", "<s>"))
  >>> words.texts, words.ids["main"]
  (('main', 'Main', 'main', 'ly', '<s>'), [0, 1, 2])
  """
  counts = [sum(x.startswith(m) and x != m for x in tokens) for m in MARKS]
  mark = MARKS[np.argmax(counts)] if any(counts) else ""
  rows = [_read_token(token, mark) for token in tokens]
  texts, words, classes, edges = zip(*rows, strict=True) if rows else [()] * 4
  arrays = np.array(classes, np.int8), np.array(edges, np.uint8)
  return Words(mark in MARKS[1:], texts, words, *arrays)


def word_edges(tokens: Sequence[str]) -> np.ndarray:
  """Returns edges_V, uint8: 1 continues a word, 2 can be continued, 3 both.

  >>> word_edges(["[PAD]", "swan", "##s"])
  array([2, 2, 3], dtype=uint8)

  Where spaces are marked, letters and digits without a mark continue others.
  """
  return read_words(tuple(tokens)).edges_V


def _read_token(token: str, mark: str) -> Row:
  if mark not in MARKS[1:]:
    if mark and token.startswith(mark):
      return token, "", 0, 3
    return token, "" if _SPECIAL.fullmatch(token) else token, 1, 2
  if _SPACED_SPECIAL.fullmatch(token):
    return token, "", 1, 3 * token.startswith(_LETTERS)
  spaced = _decode_bytes([token]) if mark == "Ġ" else token.replace(mark, " ")
  text = spaced.removeprefix(" ")
  first, last = (
    x == NO_TEXT or unicodedata.category(x)[0] in "LMN"  # accents are M
    for x in (spaced[0], spaced[-1])
  )
  forms = text.lower(), text.capitalize(), text.upper()
  casing = forms.index(text) if text in forms else len(forms)
  word = "" if NO_TEXT in text or text.split() != [text] else text.lower()
  shown = text if text.split() else token
  return shown, word, 2 * casing + (text != spaced), first + 2 * last
