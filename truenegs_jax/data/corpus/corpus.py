"""A corpus: reads its parts as one stream of documents.

  for document in corpus.read(meter := Meter()): ...

The parts follow one another, or alternate if they have shares. `sources_spec`
opens the corpus of `config.data.sources`. With the sizes of all documents,
reading can start at any of them, without the text before it.
"""

import collections
import dataclasses
import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from truenegs_jax.data.corpus.documents import num_bytes
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime.errors import DataError

REPLACE_HINT = "Or set --config.data.errors=replace to repair such text."
# Of each part and unit: bytes and characters of its documents, uint32 [D, 2].
Sizes = Sequence[Sequence[np.ndarray]]


class Document(NamedTuple):
  """A text of at least one line, separated by "\\n", without blank lines."""

  text: str  # about 1 MB at most; empty if only sizes are read
  part: int  # index of its part in the corpus
  number: int  # index in the part, the same in every pass over the part
  repeat: int  # how often the part was read to its end before
  num_bytes: int  # of the text in UTF-8
  num_chars: int  # of the text


class Cursor(NamedTuple):
  """The place of the next document of a part."""

  repeat: int = 0  # number of passes that ended before it
  unit: int = 0  # the unit of the part that it is in
  skipped: int = 0  # number of documents of the unit before it
  number: int = 0  # number of documents of the pass before it


class Position(NamedTuple):
  """A place in the order of a corpus, at which reading can start."""

  number: int  # of documents of all parts before it
  cursors: tuple[Cursor, ...]  # of each part
  part_bytes: tuple[int, ...]  # of the text of each part before it


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of a corpus that is ready to be read."""

  name: str  # its file, folder, glob, source or data set
  # Yields the documents of a unit, which can be read without those before it.
  read: Callable[[ReadState, int], Iterator[str]]
  # Returns as JSON what determines the documents, as of now.
  identity: Callable[[], dict[str, Any]]
  num_bytes: int | None  # about, before decompression; None if unknown
  num_units: int = 1  # the units, one after another, are the part
  is_local: bool = True  # reading needs no hub
  paths: tuple[str, ...] = ()  # absolute paths of its files, if any

  def read_all(self, state: ReadState) -> Iterator[str]:
    """Yields the documents of all units."""
    for unit in range(self.num_units):
      yield from self.read(state, unit)


@dataclasses.dataclass
class Meter:
  """Counts of one pass over a corpus so far; `Corpus.read` resets them.

  Attributes:
    repairs: what was replaced, cut or left out, by name; repeats of a part do
      not count again.
    fraction_read: of the pass; None if unknown. A mixture reports that of the
      part that its end depends on.
    number: of documents before the next one, from the start of the corpus.
    cursors: where each part is read next.
    part_bytes: UTF-8 bytes of each part, from the start of the corpus.
    part_documents: documents that were read of each part.
    part_passes: how often each part was begun.
  """

  repairs: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  fraction_read: float | None = 0.0
  number: int = 0
  cursors: list[Cursor] = dataclasses.field(default_factory=list)
  part_bytes: list[int] = dataclasses.field(default_factory=list)
  part_documents: list[int] = dataclasses.field(default_factory=list)
  part_passes: list[int] = dataclasses.field(default_factory=list)

  def position(self) -> Position:
    """Returns the place of the next document."""
    return Position(self.number, tuple(self.cursors), tuple(self.part_bytes))


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The documents of some parts; every pass yields them in the same order."""

  parts: tuple[Part, ...]
  # Of the text, one for each part; empty to read one after another.
  shares: tuple[float, ...] = ()
  errors: str = "strict"  # "strict" refuses bad text, "replace" repairs it
  # End of a mixture: "all" or "first" part read to its end.
  stopping: str = "all"

  def read(
    self,
    meter: Meter,
    *,
    start: Position | None = None,
    sizes: Sizes | None = None,
  ) -> Iterator[Document]:
    """Makes one pass and counts it in `meter`.

    Without shares the parts follow one another. With shares it always reads
    the part that is furthest behind its share of the text.

    Args:
      start: the first document; None for the first of the corpus.
      sizes: of all documents. If given, no text is read, and texts are empty.
    """
    zeros = [0] * len(self.parts)
    start = start or Position(0, tuple(Cursor() for _ in zeros), tuple(zeros))
    meter.repairs.clear()
    meter.fraction_read, meter.number = 0.0, start.number
    meter.cursors[:], meter.part_bytes[:] = start.cursors, start.part_bytes
    meter.part_documents[:] = meter.part_passes[:] = zeros
    if not (self.shares or start.number or sizes):
      for part in self.parts[1:]:  # an empty part fails now, not hours later
        next(_refuse_empty(part.read_all(self._new_state()), part.name))
    states = [self._new_state(meter) for _ in self.parts]
    streams = [
      self._read_part(index, meter.cursors[index], state, sizes)
      for index, state in enumerate(states)
    ]
    unfinished = [i for i, c in enumerate(meter.cursors) if not c.repeat]

    def share_read(index: int) -> tuple[float, int]:
      share = self.shares[index] if self.shares else 1.0
      return meter.part_bytes[index] / share, index

    queue = sorted(map(share_read, range(len(self.parts))))  # a heap
    while unfinished:
      index = queue[0][1] if self.shares else unfinished[0]
      document, following = next(streams[index])
      meter.number += 1
      meter.cursors[index] = following
      meter.part_bytes[index] += document.num_bytes
      meter.part_documents[index] += 1
      meter.part_passes[index] = document.repeat + 1
      meter.fraction_read = self._fraction_read(states, unfinished)
      yield document
      if following.repeat and index in unfinished:
        unfinished.remove(index)
        if self.shares and self.stopping == "first":
          break
      if self.shares:
        heapq.heapreplace(queue, share_read(index))
    meter.fraction_read = 1.0

  def __iter__(self) -> Iterator[str]:
    """Yields the texts of one pass."""
    return (document.text for document in self.read(Meter()))

  def count(
    self, index: int, unit: int
  ) -> tuple[np.ndarray, collections.Counter[str]]:
    """Returns the sizes of the documents of a unit, [D, 2], and its repairs."""
    state = self._new_state()
    texts = self.parts[index].read(state, unit)
    sizes = [(num_bytes(text), len(text)) for text in texts]
    return np.array(sizes, np.uint32).reshape(-1, 2), state.repairs

  def read_parts(self) -> Iterator[Iterator[str]]:
    """Yields the texts of each part, to read the beginnings."""
    for part in self.parts:
      yield _refuse_empty(part.read_all(self._new_state()), part.name)

  def __str__(self) -> str:
    return ", ".join(part.name for part in self.parts)

  def identity(self) -> list[dict[str, Any]]:
    """Returns as JSON what determines the documents and their order."""
    identities = []
    for part, share in itertools.zip_longest(self.parts, self.shares):
      identity = part.identity()
      if self.errors != "strict":
        identity["errors"] = self.errors
      if share is not None:
        identity |= {"share": share, "stopping": self.stopping}
      identities.append(identity)
    return identities

  def check_unchanged(self, identity: list[dict[str, Any]]) -> None:
    """Raises DataError if the identity is another one by now."""
    if self.identity() != identity:
      raise DataError(
        f"data.sources: {self} changed while it was read. Run the same command"
        " again when nothing writes to it anymore."
      )

  def is_local(self) -> bool:
    """Returns whether all parts can be read without the hub."""
    return all(part.is_local for part in self.parts)

  def _read_part(
    self, index: int, cursor: Cursor, state: ReadState, sizes: Sizes | None
  ) -> Iterator[tuple[Document, Cursor]]:
    """Reads a part forever; yields also the place of the next document."""
    name = self.parts[index].name
    while True:
      documents = self._read_pass(index, cursor, state, sizes)
      entry = next(_refuse_empty(documents, name))
      while entry:
        later = next(documents, None)
        document, following = entry
        yield document, following if later else Cursor(document.repeat + 1)
        entry = later
      # Later passes do not count repairs again.
      cursor, state = Cursor(cursor.repeat + 1), self._new_state()

  def _read_pass(
    self, index: int, cursor: Cursor, state: ReadState, sizes: Sizes | None
  ) -> Iterator[tuple[Document, Cursor]]:
    repeat, first, skipped, number = cursor
    part = self.parts[index]
    for unit in range(first, part.num_units):
      if sizes:
        texts = (("", *size) for size in sizes[index][unit].tolist())
      else:
        texts = ((t, num_bytes(t), len(t)) for t in part.read(state, unit))
      for text, size, num_chars in itertools.islice(texts, skipped, None):
        document = Document(text, index, number, repeat, size, num_chars)
        skipped, number = skipped + 1, number + 1
        yield document, Cursor(repeat, unit, skipped, number)
      skipped = 0

  def _fraction_read(
    self, states: list[ReadState], unfinished: list[int]
  ) -> float | None:
    fractions = []
    for index, state in enumerate(states):
      fraction = state.fraction_read if index in unfinished else 1.0
      if fraction is None:
        return None
      fractions.append(fraction)
    if self.shares:
      return (max if self.stopping == "first" else min)(fractions)
    sizes = [max(1, part.num_bytes or 0) for part in self.parts]
    return float(np.average(fractions, weights=sizes))

  def _new_state(self, meter: Meter | None = None) -> ReadState:
    repairs = collections.Counter() if meter is None else meter.repairs
    return ReadState(self.errors, repairs, REPLACE_HINT)


def _refuse_empty(items: Iterator[Any], name: str) -> Iterator[Any]:
  """Yields the items of a part, at least one."""
  first = next(items, None)
  if first is None:
    raise DataError(
      f"{name!r}: no document, because every line or record is blank (or"
      " shorter than min_chars). Add text, or remove this part from"
      " data.sources."
    )
  yield first
  yield from items
