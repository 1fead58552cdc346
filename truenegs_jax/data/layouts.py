"""How the tokens of documents become rows of a fixed length: named layouts.

A layout is a pure function from encoded documents to unpadded rows; what it
draws at random depends on the seed and the number of the document alone.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from truenegs_jax.errors import InputError

# google-research/electra, build_pretraining_dataset.py.
SINGLE_SHARE = 0.10  # rows with one segment
SHORT_SHARE = 0.05  # rows with a random target length
LINE_SHARE = 0.5  # a line that overfills segment A still goes there
MIN_TARGET = 5
MIN_LENGTH = 8
MAX_LENGTH = 65_536
OVERFLOWS = ("carry", "discard")

Document = list[list[int]]  # the ids of each line


@dataclasses.dataclass(frozen=True)
class Row:
  """One row before padding; three lists of one length.

  `documents` numbers the documents of the row from 1; 0 is for padding.
  """

  tokens: list[int]
  types: list[int]
  documents: list[int]


@dataclasses.dataclass(frozen=True)
class Shape:
  """What every layout is given."""

  length: int
  cls: int
  sep: int
  overflow: str = "carry"


Layout = Callable[..., Iterator[Row]]
LAYOUTS: dict[str, Layout] = {}


def layout(name: str) -> Callable[[Layout], Layout]:
  """Registers `fn(documents, shape, *, seed) -> iterator of Row`.

  `documents` are pairs of a document's number and the ids of its lines.
  """

  def add(fn: Layout) -> Layout:
    if name in LAYOUTS:
      raise ValueError(f"Layout {name!r} is registered twice.")
    LAYOUTS[name] = fn
    return fn

  return add


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


@layout("electra")
def electra_rows(
  documents: Iterable[tuple[int, Document]], shape: Shape, *, seed: int
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
  for number, lines in documents:
    rng = np.random.default_rng([seed, number])
    pending: Document = []
    target = _target(rng, shape.length)
    size = 0
    for line in lines:
      pending.append(line)
      size += len(line)
      # A carried rest may fill further rows; what is discarded cannot.
      while size >= target:
        row, pending = _close(pending, shape, target, rng)
        yield row
        target = _target(rng, shape.length)
        size = sum(map(len, pending))
    while pending:
      row, pending = _close(pending, shape, target, rng)
      yield row
      target = _target(rng, shape.length)


def _target(rng: np.random.Generator, length: int) -> int:
  if rng.random() >= SHORT_SHARE:
    return length
  return MIN_TARGET + int(rng.random() * (length - MIN_TARGET + 1))


def _close(
  lines: Document, shape: Shape, target: int, rng: np.random.Generator
) -> tuple[Row, Document]:
  """Makes a row of the lines gathered; returns it and the rest to carry."""
  single = rng.random() < SINGLE_SHARE
  budget = 2**62 if single else (target - 3) // 2
  in_order = shape.overflow == "carry"
  a, b = _split(lines, budget, rng, in_order=in_order)
  room_a = shape.length - 2
  room_b = max(0, shape.length - min(len(a), room_a) - 3)
  rest = [part for part in (a[room_a:], b[room_b:]) if part]
  row = _row(a[:room_a], b[:room_b], shape)
  return row, rest if shape.overflow == "carry" else []


def _split(
  lines: Document, budget: int, rng: np.random.Generator, *, in_order: bool
) -> tuple[list[int], list[int]]:
  a: list[int] = []
  b: list[int] = []
  for line in lines:
    fits = len(a) + len(line) < budget and not (in_order and b)
    if (
      not a or fits or (not b and len(a) < budget and rng.random() < LINE_SHARE)
    ):
      a += line
    else:
      b += line
  return a, b


def _row(a: list[int], b: list[int], shape: Shape) -> Row:
  first = [shape.cls, *a, shape.sep]
  second = [*b, shape.sep] if b else []
  tokens = first + second
  types = [0] * len(first) + [1] * len(second)
  return Row(tokens, types, [1] * len(tokens))
