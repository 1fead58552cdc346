"""Segments: spans of a text that are put together to rows of a fixed length.

A layout says where segments go; `assemble` copies their tokens, all at once.
"""

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

BLOCK_POSITIONS = 2**16  # assembled at a time: fits into a CPU's cache


class Segment(NamedTuple):
  """A span of the text in a row: tokens_T[start:stop].

  Attributes:
    type: its token type, 0 or 1.
    document: its number in the row, from 1; 0 is for padding.
    opens: whether `[CLS]` stands before it.
    closes: whether `[SEP]` stands behind it.
  """

  start: int
  stop: int
  type: int
  document: int
  opens: bool
  closes: bool


@dataclasses.dataclass(frozen=True)
class Shape:
  """What rows are made of: positions, special ids, numpy dtype of tokens."""

  length: int
  cls: int
  sep: int
  pad: int
  overflow: str
  dtype: Any


Row = list[Segment]
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def assemble(rows: Iterable[Row], tokens_T: np.ndarray, shape: Shape) -> Arrays:
  """Copies the tokens of all segments to their places.

  Returns:
    tokens_RxL of `shape.dtype`, types_RxL and documents_RxL uint8.
  """
  tokens_T = tokens_T.astype(shape.dtype)
  rows = iter(rows)
  num_rows = max(1, BLOCK_POSITIONS // shape.length)
  blocks = [_assemble([], tokens_T, shape)]  # for a text without a row
  while block := list(itertools.islice(rows, num_rows)):
    blocks.append(_assemble(block, tokens_T, shape))
  tokens_RxL, types_RxL, documents_RxL = map(
    np.concatenate, zip(*blocks, strict=True)
  )
  return tokens_RxL, types_RxL, documents_RxL


def _assemble(rows: list[Row], tokens_T: np.ndarray, shape: Shape) -> Arrays:
  """The same for a block; padding is a segment too. G: segments."""
  padding = Segment(0, 0, 0, 0, False, False)
  numbers = itertools.chain.from_iterable(
    itertools.chain.from_iterable((*row, padding) for row in rows)
  )
  fields_Gx6 = np.fromiter(numbers, np.int64).reshape(-1, 6)
  start_G, stop_G, types_G, documents_G, opens_G, closes_G = fields_Gx6.T
  size_G = stop_G - start_G + opens_G + closes_G
  is_padding_G = documents_G == 0
  used_R = np.diff(np.cumsum(size_G)[is_padding_G], prepend=0)
  size_G[is_padding_G] = shape.length - used_R
  end_G = np.cumsum(size_G)
  first_G = end_G - size_G

  def spread_RxL(values_G: np.ndarray) -> np.ndarray:
    return np.repeat(values_G, size_G).reshape(-1, shape.length)

  index_RxL = spread_RxL(start_G - opens_G - first_G)
  index_RxL += np.arange(index_RxL.size).reshape(index_RxL.shape)
  # Clipped: what is no token is overwritten at once.
  tokens_RxL = tokens_T.take(index_RxL, mode="clip")
  np.put(tokens_RxL, first_G[opens_G == 1], shape.cls)
  np.put(tokens_RxL, end_G[closes_G == 1] - 1, shape.sep)
  documents_RxL = spread_RxL(documents_G.astype(np.uint8))
  tokens_RxL[documents_RxL == 0] = shape.pad
  return tokens_RxL, spread_RxL(types_G.astype(np.uint8)), documents_RxL
