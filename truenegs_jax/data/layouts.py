"""Layouts: named rules that turn documents into rows of a fixed length.

A layout is a pure function. It gets the lengths of lines, not their tokens, and
yields the spans of text in each row. One vectorized function then copies the
tokens.

  lay_out([(0, [90, 75]), (1, [12])], tokens_T, spec, layout="packed")
"""

import dataclasses
import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

BLOCK_POSITIONS = 2**16  # positions assembled at once; they fit the CPU's cache
# google-research/electra, build_pretraining_dataset.py.
SINGLE_SHARE = 0.10  # of rows have one segment
SHORT_SHARE = 0.05  # of rows have a random target length
LINE_SHARE = 0.5  # of lines that overfill segment A are added to it anyway
MIN_TARGET = 5
# Tokens on each side of a cut. With [CLS] and [SEP], this segment gets one slot
# on average at 15 % masking; a shorter one would often get none.
MIN_SEGMENT = 5
MAX_DOCUMENTS = 255  # per row: their numbers are uint8
SEED = 0  # of all draws: rows do not depend on the seed of a run


class Segment(NamedTuple):
  """A span of the text in a row: tokens_T[start:stop]."""

  start: int
  stop: int
  type: int  # the token type, 0 or 1
  document: int  # its number in the row, from 1; 0 for padding
  has_cls: bool  # whether [CLS] precedes it
  has_sep: bool  # whether [SEP] follows it


@dataclasses.dataclass(frozen=True)
class RowSpec:
  """Length of rows, ids of special tokens, dtype of tokens."""

  length: int
  cls: int
  sep: int
  pad: int
  dtype: np.typing.DTypeLike


Row = list[Segment]
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
# The number of a document, which addresses the random draws, and the offsets of
# its lines, none of them empty: tokens_T[offsets[i]:offsets[i + 1]].
LineOffsets = tuple[int, list[int]]


def lay_out(
  documents: Iterable[tuple[int, Sequence[int]]],
  tokens_T: np.ndarray,
  spec: RowSpec,
  *,
  layout: str,
) -> Arrays:
  """Lays out consecutive documents as rows.

  Args:
    documents: the number of each document and the lengths of its lines in
      tokens. Lines and documents without tokens are ignored.
    tokens_T: the ids of all lines, concatenated.
    layout: a name in LAYOUTS.

  Returns:
    tokens_RxL of `spec.dtype`; types_RxL uint8, 0 or 1; documents_RxL uint8,
    1, 2, ... for the documents of a row and 0 for padding.

  Raises:
    ValueError: the lengths do not add up to the number of tokens.
  """
  offsets = _line_offsets(documents, len(tokens_T))
  rows = LAYOUTS[layout](offsets, spec)
  tokens_T = tokens_T.astype(spec.dtype)
  num_rows = max(1, BLOCK_POSITIONS // spec.length)
  blocks = [_assemble([], tokens_T, spec)]  # sets shape and dtype
  while block := list(itertools.islice(rows, num_rows)):
    blocks.append(_assemble(block, tokens_T, spec))
  tokens, types, numbers = zip(*blocks, strict=True)
  return np.concatenate(tokens), np.concatenate(types), np.concatenate(numbers)


def electra_rows(
  documents: Iterable[LineOffsets], spec: RowSpec
) -> Iterator[Row]:
  """Yields ELECTRA's rows: `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

  Lines are collected up to the target length: the row's length, or in 5 % of
  the rows a uniform draw from 5 to it. In 10 % of the rows, all lines go to
  segment A. Otherwise A gets about half: a line goes to A if A is empty or
  stays below half with it, and with probability 1/2 if it is the one that
  overfills A; the other lines are B. Types are 0 for `[CLS] A [SEP]` and 1 for
  `B [SEP]`. No row contains tokens of two documents.

  Tokens that do not fit are moved to the next row, and the text keeps its
  order: the rows of a document, concatenated, are the document. The released
  code drops these tokens, and a short line may still go to A after B has begun.
  """
  for number, offsets in documents:
    if len(offsets) == 2 and offsets[1] - offsets[0] <= spec.length - 2:
      # One line that fits gives the same row for all draws, so skip seeding.
      yield [_segment_a(*offsets)]
    else:
      yield from _carry_rows(offsets, spec.length, _draws(number))


def packed_rows(
  documents: Iterable[LineOffsets], spec: RowSpec
) -> Iterator[Row]:
  """Yields rows filled with documents: `[CLS] d1 [SEP] [CLS] d2 [SEP] ...`.

  All types are 0, so type 1 is never trained. A row has at most 255 documents.

  A document that exceeds the free space is cut. The rest begins the next row,
  after another `[CLS]`. The rows, concatenated, are the documents. A cut leaves
  at least 5 tokens on both sides (3 or 4 in rows of less than 11); space that
  this leaves free is padding.
  """
  capacity = spec.length - 2
  least = min(MIN_SEGMENT, (spec.length - 1) // 2)
  row: Row = []
  free = capacity  # tokens that fit into the row, besides [CLS] and [SEP]
  for _, offsets in documents:
    start = offsets[0]
    stop = offsets[-1]
    while start < stop:
      size = _segment_size(stop - start, free, least)
      if not size or len(row) == MAX_DOCUMENTS:
        yield row
        row = []
        free = capacity
        continue
      row.append(Segment(start, start + size, 0, len(row) + 1, True, True))
      start += size
      free -= size + 2
  if row:
    yield row


# (documents, spec) -> iterator of Row. Documents are consecutive; random draws
# depend only on the number of the document.
LAYOUTS = {"electra": electra_rows, "packed": packed_rows}


def _line_offsets(
  documents: Iterable[tuple[int, Sequence[int]]], num_tokens: int
) -> Iterator[LineOffsets]:
  start = 0
  for number, lengths in documents:
    offsets = list(itertools.accumulate(filter(None, lengths), initial=start))
    start = offsets[-1]
    yield number, offsets
  if start != num_tokens:
    raise ValueError(f"lines of {start} tokens in all, but {num_tokens} tokens")


def _draws(number: int) -> Iterator[float]:
  """Yields uniform draws from [0, 1), made 64 at a time for speed."""
  rng = np.random.default_rng([SEED, number])
  while True:
    yield from rng.random(64).tolist()


def _carry_rows(
  offsets: list[int], length: int, draws: Iterator[float]
) -> Iterator[Row]:
  """Yields ELECTRA's rows of one document without losing tokens."""
  start = offsets[0]  # start of the row; lines collected so far
  line = 0
  carried: list[int] = []  # ends of spans that the last row had no space for
  while start < offsets[-1]:
    target = _target(draws, length)
    last = bisect_left(offsets, start + target, line, len(offsets) - 1)
    ends = carried + offsets[line + 1 : last + 1]
    middle = _end_of_a(start, ends, _budget_of_a(target, draws), draws)
    stop = min(middle, start + length - 2)
    row = [_segment_a(start, stop)]
    if stop == middle:  # A is complete, so B may follow
      stop = max(middle, min(ends[-1], start + length - 3))
      if stop > middle:
        row.append(Segment(middle, stop, 1, 1, False, True))
    yield row
    start = stop
    line = last
    carried = [end for end in sorted({middle, ends[-1]}) if end > stop]


def _target(draws: Iterator[float], length: int) -> int:
  """Draws the number of tokens to collect for a row."""
  if next(draws) >= SHORT_SHARE:
    return length
  return MIN_TARGET + int(next(draws) * (length - MIN_TARGET + 1))


def _budget_of_a(target: int, draws: Iterator[float]) -> int:
  """Draws the tokens of segment A: about half, or all."""
  return 2**62 if next(draws) < SINGLE_SHARE else (target - 3) // 2


def _end_of_a(
  start: int, ends: list[int], budget: int, draws: Iterator[float]
) -> int:
  """Returns the end of segment A, one of the ends of lines."""
  count = max(1, bisect_left(ends, start + budget))
  has_room = count < len(ends) and ends[count - 1] < start + budget
  if has_room and next(draws) < LINE_SHARE:
    count += 1  # the line that overfills A
  return ends[count - 1]


def _segment_a(start: int, stop: int) -> Segment:
  return Segment(start, stop, 0, 1, True, True)


def _segment_size(size: int, free: int, least: int) -> int:
  """Returns how many of `size` tokens go into the free space, maybe 0."""
  if size <= free:
    return size
  cut = min(free, size - least)
  return cut if cut >= least else 0


def _assemble(rows: list[Row], tokens_T: np.ndarray, spec: RowSpec) -> Arrays:
  """Copies the tokens of G segments, with one of padding per row, into rows."""
  padding = Segment(0, 0, 0, 0, False, False)
  flatten = itertools.chain.from_iterable
  values = flatten(flatten((*row, padding) for row in rows))
  fields_Gx6 = np.fromiter(values, np.int64).reshape(-1, 6)
  start_G, stop_G, types_G, documents_G, has_cls_G, has_sep_G = fields_Gx6.T
  size_G = stop_G - start_G + has_cls_G + has_sep_G
  is_padding_G = documents_G == 0
  used_R = np.diff(np.cumsum(size_G)[is_padding_G], prepend=0)
  size_G[is_padding_G] = spec.length - used_R
  end_G = np.cumsum(size_G)
  first_G = end_G - size_G

  def spread_RxL(values_G: np.ndarray) -> np.ndarray:
    return np.repeat(values_G, size_G).reshape(-1, spec.length)

  index_RxL = spread_RxL(start_G - has_cls_G - first_G)
  index_RxL += np.arange(index_RxL.size).reshape(index_RxL.shape)
  # Indices of special tokens and padding may be out of range. They are clipped
  # and the tokens overwritten below.
  tokens_RxL = tokens_T.take(index_RxL, mode="clip")
  np.put(tokens_RxL, first_G[has_cls_G == 1], spec.cls)
  np.put(tokens_RxL, end_G[has_sep_G == 1] - 1, spec.sep)
  documents_RxL = spread_RxL(documents_G.astype(np.uint8))
  tokens_RxL[documents_RxL == 0] = spec.pad
  return tokens_RxL, spread_RxL(types_G.astype(np.uint8)), documents_RxL
