"""How the tokens of documents become rows of a fixed length: named layouts.

A layout is a pure function that sees the lengths of lines, not their tokens,
and says which spans of the text go into which row. One vectorized function
then copies the tokens.

  build_rows([(0, [90, 75]), (1, [12])], tokens_T, shape, layout="packed",
             seed=0)
"""

import dataclasses
import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from truenegs_jax.runtime.errors import InputError

BLOCK_POSITIONS = 2**16  # assembled at a time: fits into a CPU's cache
# google-research/electra, build_pretraining_dataset.py.
SINGLE_SHARE = 0.10  # rows with one segment
SHORT_SHARE = 0.05  # rows with a random target length
LINE_SHARE = 0.5  # a line that overfills segment A still goes there
MIN_TARGET = 5
# Tokens of each part of a cut document. With its [CLS] and [SEP] it gets one
# slot at 15 % masking, on average; a shorter one would often get none.
MIN_SEGMENT = 5
MAX_DOCUMENTS = 255  # of a row: their numbers are uint8
MIN_LENGTH = 8
MAX_LENGTH = 65_536
OVERFLOWS = ("carry", "discard")


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
class RowSpec:
  """The positions of rows, their special ids, the numpy dtype of tokens."""

  length: int
  cls: int
  sep: int
  pad: int
  overflow: str
  dtype: Any


Row = list[Segment]
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


class LineOffsets(NamedTuple):
  """The lines of a document: tokens_T[offsets[i]:offsets[i + 1]].

  No line is empty; there may be none. `number` addresses the draws.
  """

  number: int
  offsets: list[int]


def check_layout(name: str, *, length: int, overflow: str) -> None:
  """Raises InputError for values that no layout takes."""
  if name not in LAYOUTS:
    known = ", ".join(sorted(LAYOUTS))
    raise InputError(f"data.layout={name!r} is unknown; known: {known}.")
  if overflow not in OVERFLOWS:
    raise InputError(
      f"data.overflow={overflow!r}: choose one of {', '.join(OVERFLOWS)}."
    )
  if not MIN_LENGTH <= length <= MAX_LENGTH:
    raise InputError(
      f"length={length}: a row has {MIN_LENGTH} to {MAX_LENGTH:,} tokens;"
      " ELECTRA has 128 (small) or 512."
    )


def build_rows(
  documents: Iterable[tuple[int, Sequence[int]]],
  tokens_T: np.ndarray,
  shape: RowSpec,
  *,
  layout: str,
  seed: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The rows of consecutive documents.

  Args:
    documents: pairs of a document's number and the lengths of its lines in
      tokens. Lines and documents without a token leave no trace.
    tokens_T: the ids of all these lines, one after another.
    layout: a name in LAYOUTS.
    seed: with the number of a document, what its draws depend on.

  Returns:
    tokens_RxL of `shape.dtype`; types_RxL uint8, 0 or 1; documents_RxL uint8,
    1, 2, ... for the documents of a row and 0 for padding.

  Raises:
    ValueError: the lengths do not add up to the tokens.
  """
  found = _documents(documents, len(tokens_T))
  return assemble(LAYOUTS[layout](found, shape, seed=seed), tokens_T, shape)


def electra_rows(
  documents: Iterable[LineOffsets], shape: RowSpec, *, seed: int
) -> Iterator[Row]:
  """ELECTRA's rows: `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

  Lines are gathered until they reach the target length: the row's length, or
  in 5 % of the rows a uniform draw from 5 to it. In 10 % of the rows all go
  to segment A. Else A is meant to take half: a line goes to A while A is
  empty or stays below half with it, and with probability 1/2 if it is the
  one that overfills A; the rest is B. Types are 0 for `[CLS] A [SEP]`, 1 for
  `B [SEP]`. No row holds tokens of two documents.

  `overflow="carry"` starts the next row with the tokens that did not fit and
  keeps the order of the text: rows of a document, put together, are the
  document. `overflow="discard"` is the released code to the letter: these
  tokens are lost, and a short line after B has begun may still go to A.
  """
  rows_of = _carried if shape.overflow == "carry" else _discarded
  for number, offsets in documents:
    if len(offsets) == 2 and offsets[1] - offsets[0] <= shape.length - 2:
      # A line that fits is the same row whatever is drawn: no need to seed.
      yield [_segment_a(*offsets)]
    else:
      yield from rows_of(offsets, shape.length, _draws(seed, number))


def packed_rows(
  documents: Iterable[LineOffsets], shape: RowSpec, *, seed: int
) -> Iterator[Row]:
  """Rows filled with documents: `[CLS] d1 [SEP] [CLS] d2 [SEP] ...`.

  Token types are 0, so that type 1 is never trained. `seed` has no effect. At
  most 255 documents are in a row.

  `overflow="carry"` cuts a document that exceeds the room left; it goes on in
  the next row, behind a `[CLS]` of its own. Rows, put together, are the
  documents. A cut leaves at least 5 tokens on both sides (3 or 4 in rows of
  less than 11); the room that this costs is padding.

  `overflow="discard"` loses the tokens of a document beyond its first L - 2,
  which is most of a text of long documents, and no others: a document begins
  a row where it exceeds the room left, which becomes padding.
  """
  del seed
  capacity = shape.length - 2
  least = min(MIN_SEGMENT, (shape.length - 1) // 2)
  if shape.overflow == "discard":
    least = capacity
  row: Row = []
  room = capacity  # for tokens, beside [CLS] and [SEP]
  for _, offsets in documents:
    start, stop = offsets[0], offsets[-1]
    if shape.overflow == "discard":
      stop = min(stop, start + capacity)
    while start < stop:
      size = _size_of_part(stop - start, room, least)
      if not size or len(row) == MAX_DOCUMENTS:
        yield row
        row, room = [], capacity
        continue
      row.append(Segment(start, start + size, 0, len(row) + 1, True, True))
      start += size
      room -= size + 2
  if row:
    yield row


# (documents, shape, *, seed) -> iterator of Row. The documents are consecutive;
# random draws depend on the seed and the number of the document alone.
LAYOUTS = {"electra": electra_rows, "packed": packed_rows}


def _documents(
  documents: Iterable[tuple[int, Sequence[int]]], num_tokens: int
) -> Iterator[LineOffsets]:
  start = 0
  for number, lengths in documents:
    offsets = list(itertools.accumulate(filter(None, lengths), initial=start))
    start = offsets[-1]
    yield LineOffsets(number, offsets)
  if start != num_tokens:
    raise ValueError(f"lines of {start} tokens in all, but {num_tokens} tokens")


def _draws(seed: int, number: int) -> Iterator[float]:
  """Uniform draws from [0, 1); one at a time they would cost 200 ns each."""
  rng = np.random.default_rng([seed, number])
  while True:
    yield from rng.random(64).tolist()


def _carried(
  offsets: list[int], length: int, draws: Iterator[float]
) -> Iterator[Row]:
  """ELECTRA's rows of one document, nothing lost."""
  start, line = offsets[0], 0  # of the row; where the gathered lines end
  carried: list[int] = []  # ends of what was carried, in place of its lines
  while start < offsets[-1]:
    target = _target(draws, length)
    last = bisect_left(offsets, start + target, line, len(offsets) - 1)
    ends = carried + offsets[line + 1 : last + 1]
    middle = _end_of_a(start, ends, _budget(target, draws), draws)
    stop = min(middle, start + length - 2)
    row = [_segment_a(start, stop)]
    if stop == middle:  # else nothing is left for B
      stop = max(middle, min(ends[-1], start + length - 3))
      if stop > middle:
        row.append(Segment(middle, stop, 1, 1, False, True))
    yield row
    start, line = stop, last
    carried = [end for end in sorted({middle, ends[-1]}) if end > stop]


def _discarded(
  offsets: list[int], length: int, draws: Iterator[float]
) -> Iterator[Row]:
  """ELECTRA's rows of one document, what exceeds a row lost."""
  line = 0
  while line < len(offsets) - 1:
    start, target = offsets[line], _target(draws, length)
    last = bisect_left(offsets, start + target, line, len(offsets) - 1)
    ends = offsets[line + 1 : last + 1]
    budget = _budget(target, draws)
    middle = _end_of_a(start, ends, budget, draws)
    a, b, size = [(start, middle)], [], middle - start
    rest = ends[bisect_left(ends, middle) :]
    for begin, end in itertools.pairwise(rest):
      if size + end - begin < budget:
        a.append((begin, end))
        size += end - begin
      else:
        b.append((begin, end))
    yield _segment(a, 0, length - 2) + _segment(b, 1, length - 3 - size)
    line = last


def _target(draws: Iterator[float], length: int) -> int:
  if next(draws) >= SHORT_SHARE:
    return length
  return MIN_TARGET + int(next(draws) * (length - MIN_TARGET + 1))


def _budget(target: int, draws: Iterator[float]) -> int:
  return 2**62 if next(draws) < SINGLE_SHARE else (target - 3) // 2


def _end_of_a(
  start: int, ends: list[int], budget: int, draws: Iterator[float]
) -> int:
  """Where segment A ends, of lines that end at `ends`."""
  fit = max(1, bisect_left(ends, start + budget))
  overfills = fit < len(ends) and ends[fit - 1] - start < budget
  if overfills and next(draws) < LINE_SHARE:
    fit += 1
  return ends[fit - 1]


def _segment_a(start: int, stop: int) -> Segment:
  return Segment(start, stop, 0, 1, True, True)


def _segment(spans: list[tuple[int, int]], type: int, room: int) -> Row:
  """Segment A (type 0) or B of spans that need not touch, cut to the room."""
  kept = []
  for start, stop in spans:
    if room > 0:
      kept.append((start, min(stop, start + room)))
    room -= stop - start
  last = len(kept) - 1
  return [
    Segment(*span, type, 1, type == 0 and i == 0, i == last)
    for i, span in enumerate(kept)
  ]


def _size_of_part(size: int, room: int, least: int) -> int:
  """How many of `size` tokens go into the room left of a row; 0 for none."""
  if size <= room:
    return size
  part = min(room, size - least)
  return part if part >= least else 0


def assemble(
  rows: Iterable[Row], tokens_T: np.ndarray, shape: RowSpec
) -> Arrays:
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


def _assemble(rows: list[Row], tokens_T: np.ndarray, shape: RowSpec) -> Arrays:
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
