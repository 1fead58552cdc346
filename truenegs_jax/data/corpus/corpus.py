"""A corpus: reads its parts as one stream of documents.

  for document in corpus.read(read_counts := ReadCounts()): ...

The parts follow one another, or alternate if they have shares. With the sizes
of all documents, reading can start at any of them, without the text before it.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from truenegs_jax.data.corpus.documents import drop_short_lines, join, num_bytes
from truenegs_jax.data.corpus.readers import Counts, ReadState
from truenegs_jax.runtime.errors import DataError

REPLACE_HINT = "Or set --config.data.errors=replace to repair such text."
LEAST_SHARE = 0.99  # of the records that a part is expected to have
Unit = tuple[int, int]  # the index of a part, and the number of its unit
# Of each unit: bytes and characters of its documents, uint32 [D, 2].
Sizes = Mapping[Unit, np.ndarray]


class Document(NamedTuple):
  """A text of at least one line, separated by "\\n", without blank lines."""

  text: str  # about 1 MB at most; empty if only sizes are read
  part: int  # index of its part in the corpus
  number: int  # index in the part, the same in every pass over the part
  repeat: int  # how often the part was read to its end before
  num_chars: int  # of the text


class Cursor(NamedTuple):
  """The place of the next document of a part, and counts of those before it."""

  repeat: int = 0  # number of passes that ended before it
  unit: int = 0  # the unit of the part that it is in
  skipped: int = 0  # number of documents of the unit before it
  number: int = 0  # number of documents of the pass before it
  num_documents: int = 0  # of all passes
  num_bytes: int = 0  # of their text in UTF-8


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of a corpus that is ready to be read."""

  name: str  # its file, folder, glob, source or data set
  # Yields the documents of a unit, which can be read without those before it.
  read: Callable[[ReadState, int], Iterator[str]]
  # Returns as JSON what determines these documents, as of now.
  identity: Callable[[], dict[str, Any]]
  num_bytes: int | None  # of its text, about; None if unknown
  num_units: int = 1  # the units, one after another, are the part
  is_local: bool = True  # reading needs no hub
  paths: tuple[str, ...] = ()  # absolute paths of its files, if any
  # Returns how many documents `read` yields; None if it is not known yet.
  num_records: Callable[[], int | None] = lambda: None
  # On the hub: name -> bytes.
  files: Mapping[str, int] = dataclasses.field(default_factory=dict)
  num_expected: int = 0  # documents that `read` should yield; 0 if unknown
  min_chars: int = 0  # least size of a line
  join_chars: int = 0  # least size of joined documents; 0 to join none

  def read_unit(self, state: ReadState, unit: int) -> Iterator[str]:
    """Reads the documents of a unit as they are trained on."""
    texts = self._count_records(state, unit)
    if self.min_chars:
      texts = drop_short_lines(texts, state, min_chars=self.min_chars)
    if self.join_chars:
      texts = join(texts, state, num_chars=self.join_chars)
    return texts

  def _count_records(self, state: ReadState, unit: int) -> Iterator[str]:
    for text in self.read(state, unit):
      if self.num_expected and not state.num_records:
        self.check_records(self.num_records())  # a data set is prepared by now
      state.num_records += 1
      yield text

  def read_all(self, state: ReadState) -> Iterator[str]:
    """Returns the documents of all units, at least one."""
    units = (self.read_unit(state, unit) for unit in range(self.num_units))
    texts = itertools.chain.from_iterable(units)
    for first in texts:
      return itertools.chain([first], texts)
    raise self.empty_error()

  def empty_error(self) -> DataError:
    """Returns the error of a part without documents."""
    return DataError(
      f"{self.name!r} has no text: it is empty, or its lines are blank or"
      " shorter than min_chars. Add text, or remove this part from"
      " data.sources."
    )

  def check_records(self, number: int | None) -> None:
    """Raises DataError if fewer records are known than expected."""
    if number is not None and number < LEAST_SHARE * self.num_expected:
      raise DataError(
        f"{self.name!r}: {number:,} records, but {self.num_expected:,} are"
        " expected (records=). Get all of it, correct records= in data.sources,"
        " or accept it with --config.data.expect=any."
      )


@dataclasses.dataclass
class ReadCounts:
  """Counts of one pass over a corpus so far; `Corpus.read` resets them."""

  # By name. Repeats of a part do not count again.
  repairs: Counts = dataclasses.field(default_factory=Counts)
  fraction_read: float | None = 0.0  # of the pass; None if unknown
  # Where each part is read next.
  cursors: list[Cursor] = dataclasses.field(default_factory=list)
  # Of each part; None if it was not read from its first record to its last.
  num_records: list[int | None] = dataclasses.field(default_factory=list)

  @property
  def num_documents(self) -> int:
    """The number of documents before the next one, in the whole corpus."""
    return sum(cursor.num_documents for cursor in self.cursors)

  @property
  def num_bytes(self) -> int:
    """The bytes of their text in UTF-8."""
    return sum(cursor.num_bytes for cursor in self.cursors)


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The documents of some parts; every pass yields them in the same order."""

  parts: tuple[Part, ...]
  # Of the text, one for each part; empty to read one after another.
  shares: tuple[float, ...] = ()
  errors: str = "strict"  # refuses bad text; "replace" repairs it
  stopping: str = "all"  # or "first": of the parts, read to the end once

  def read(
    self,
    read_counts: ReadCounts,
    *,
    start: Sequence[Cursor] = (),
    sizes: Sizes | None = None,
  ) -> Iterator[Document]:
    """Makes one pass and counts it in `read_counts`.

    Without shares the parts follow one another. With shares it always reads
    the part that is furthest behind its share of the text.

    It begins at `start`, a cursor for each part, or at the first documents.
    With `sizes` of all documents no text is read, and texts are empty.
    """
    if not (self.shares or start or sizes):
      for part in self.parts[1:]:  # an empty part fails now, not hours later
        next(part.read_all(self._new_state()))
    cursors = read_counts.cursors = [*start] or [Cursor() for _ in self.parts]
    read_counts.repairs.clear()
    read_counts.fraction_read = 0.0
    read_counts.num_records = [None] * len(cursors)
    streams = [
      self._read_part(i, read_counts, sizes) for i in range(len(cursors))
    ]
    unfinished = [i for i, cursor in enumerate(cursors) if not cursor.repeat]

    def share_read(index: int) -> float:
      return cursors[index].num_bytes / self.shares[index]

    while unfinished:
      index = unfinished[0]
      if self.shares:
        index = min(range(len(cursors)), key=share_read)
      document, cursors[index] = next(streams[index])
      read_counts.fraction_read = self._fraction_read(cursors, unfinished)
      yield document
      if cursors[index].repeat and index in unfinished:
        unfinished.remove(index)
        if self.shares and self.stopping == "first":
          break
    read_counts.fraction_read = 1.0

  def __iter__(self) -> Iterator[str]:
    """Yields the texts of one pass."""
    return (document.text for document in self.read(ReadCounts()))

  def list_units(self) -> list[Unit]:
    """Returns the units of all parts."""
    parts = enumerate(self.parts)
    return [(index, i) for index, part in parts for i in range(part.num_units)]

  def count(self, unit: Unit) -> tuple[np.ndarray, ReadState]:
    """Returns the sizes of the documents of a unit, [D, 2], and all counts."""
    state = self._new_state()
    texts = self.parts[unit[0]].read_unit(state, unit[1])
    sizes = [(num_bytes(text), len(text)) for text in texts]
    return np.array(sizes, np.uint32).reshape(-1, 2), state

  def read_parts(self) -> list[Iterator[str]]:
    """Returns the texts of each part, to read the beginnings."""
    return [part.read_all(self._new_state()) for part in self.parts]

  def __str__(self) -> str:
    return ", ".join(part.name for part in self.parts)

  def identity(self) -> list[dict[str, Any]]:
    """Returns as JSON what determines the documents and their order."""
    identities = []
    for part, share in itertools.zip_longest(self.parts, self.shares):
      identity = part.identity()
      if part.min_chars:
        identity["min_chars"] = part.min_chars
      if part.join_chars:
        identity["join"] = part.join_chars
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
    self, index: int, read_counts: ReadCounts, sizes: Sizes | None
  ) -> Iterator[tuple[Document, Cursor]]:
    """Reads a part forever; yields also the place of the next document."""
    part = self.parts[index]
    cursor = read_counts.cursors[index]
    state = self._new_state(read_counts)
    while True:
      is_counted = not sizes and cursor == Cursor()
      # One behind, because the last document ends the pass.
      held: tuple[Document, Cursor] | None = None
      for following in self._read_pass(index, cursor, state, sizes):
        if held:
          yield held
        held = following
      if not held:
        raise part.empty_error()
      document, cursor = held
      if is_counted:
        part.check_records(state.num_records)
        read_counts.num_records[index] = state.num_records
      repeat = cursor.repeat + 1
      cursor = cursor._replace(repeat=repeat, unit=0, skipped=0, number=0)
      yield document, cursor
      state = self._new_state()  # later passes do not count repairs again

  def _read_pass(
    self, index: int, cursor: Cursor, state: ReadState, sizes: Sizes | None
  ) -> Iterator[tuple[Document, Cursor]]:
    part = self.parts[index]
    for unit in range(cursor.unit, part.num_units):
      if unit > cursor.unit:
        cursor = cursor._replace(unit=unit, skipped=0)
      if sizes:
        texts = (("", *size) for size in sizes[index, unit].tolist())
      else:
        texts = ((t, num_bytes(t), len(t)) for t in part.read_unit(state, unit))
      rest = itertools.islice(texts, cursor.skipped, None)
      for text, size, num_chars in rest:
        document = Document(
          text, index, cursor.number, cursor.repeat, num_chars
        )
        cursor = Cursor(
          cursor.repeat,
          unit,
          cursor.skipped + 1,
          cursor.number + 1,
          cursor.num_documents + 1,
          cursor.num_bytes + size,
        )
        yield document, cursor

  def _fraction_read(
    self, cursors: list[Cursor], unfinished: list[int]
  ) -> float | None:
    sizes = [part.num_bytes for part in self.parts]
    fractions = [1.0] * len(sizes)
    for index in unfinished:
      if (size := sizes[index]) is None:
        return None
      fractions[index] = min(1.0, cursors[index].num_bytes / max(1, size))
    if self.shares:  # the fraction of the part that the end depends on
      return (max if self.stopping == "first" else min)(fractions)
    return float(np.average(fractions, weights=[max(1, x or 0) for x in sizes]))

  def _new_state(self, read_counts: ReadCounts | None = None) -> ReadState:
    repairs = read_counts.repairs if read_counts else Counts()
    return ReadState(self.errors, repairs, REPLACE_HINT)
