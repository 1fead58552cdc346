"""A corpus: reads its parts as one stream of documents.

  for document in corpus.read(meter := Meter()): ...

The parts follow one another, or alternate if they have shares. `sources_spec`
opens the corpus of `config.data.sources`.
"""

import collections
import dataclasses
import heapq
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from truenegs_jax.data.corpus.documents import num_bytes
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime.errors import DataError

REPLACE_HINT = "Or set --config.data.errors=replace to repair such text."


class Document(NamedTuple):
  """A text of at least one line, separated by "\\n", without blank lines.

  Attributes:
    text: about 1 MB at most.
    part: index of its part in the corpus.
    number: index in the part, the same in every pass over the part.
    repeat: how often the part was read to its end before.
  """

  text: str
  part: int
  number: int
  repeat: int


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of a corpus that is ready to be read.

  Attributes:
    name: its file, folder, glob, source or data set, as in `data.sources`.
    read: makes one pass over its documents and updates the `ReadState`.
    identity: returns as JSON what determines the documents, as of now.
    num_bytes: approximate size, before decompression; None if unknown.
    is_local: reading needs no hub.
    is_repairable: `data.errors` may change its documents.
    paths: absolute paths of its files, if any.
  """

  name: str
  read: Callable[[ReadState], Iterator[str]]
  identity: Callable[[], dict[str, Any]]
  num_bytes: int | None
  is_local: bool = True
  is_repairable: bool = True
  paths: tuple[str, ...] = ()


@dataclasses.dataclass
class Meter:
  """Counts of one pass over a corpus so far; `Corpus.read` resets them.

  Attributes:
    oddities: counts of what was replaced, cut or left out, by the names in
      `read_state`; repeats of a part do not count again.
    fraction_read: of the pass, 0 to 1; None if unknown. A mixture reports the
      fraction of the part that its end depends on.
    part_bytes: UTF-8 bytes of text of each part.
    part_documents: documents of each part.
    part_passes: how often each part was begun.
  """

  oddities: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  fraction_read: float | None = 0.0
  part_bytes: list[int] = dataclasses.field(default_factory=list)
  part_documents: list[int] = dataclasses.field(default_factory=list)
  part_passes: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The documents of some parts; every pass yields them in the same order.

  Attributes:
    shares: of the text, one for each part; empty to read one after another.
    errors: "strict" or "replace", see `ReadState`.
    stopping: end of a mixture: "all" or "first" part read to its end.
  """

  parts: tuple[Part, ...]
  shares: tuple[float, ...]
  errors: str
  stopping: str

  def read(self, meter: Meter) -> Iterator[Document]:
    """Makes one pass and counts it in `meter`.

    Raises:
      DataError: text cannot be read or is refused, or a part has no document.
    """
    meter.oddities.clear()
    meter.fraction_read = 0.0
    for counts in (meter.part_bytes, meter.part_documents, meter.part_passes):
      counts[:] = [0] * len(self.parts)
    documents = self._read_mixture(meter) if self.shares else self._read(meter)
    for document in documents:
      meter.part_bytes[document.part] += num_bytes(document.text)
      meter.part_documents[document.part] += 1
      meter.part_passes[document.part] = document.repeat + 1
      yield document
    meter.fraction_read = 1.0

  def __iter__(self) -> Iterator[str]:
    """Yields the texts of one pass."""
    return (document.text for document in self.read(Meter()))

  def read_parts(self) -> Iterator[Iterator[str]]:
    """Yields the texts of each part, to read the beginnings."""
    return (_read_part(part, self._new_state()) for part in self.parts)

  def __str__(self) -> str:
    """Returns the names of its parts."""
    return ", ".join(part.name for part in self.parts)

  def identity(self) -> list[dict[str, Any]]:
    """Returns as JSON what determines the documents and their order.

    Raises:
      DataError: files are missing by now.
    """
    identities = []
    for part, share in itertools.zip_longest(self.parts, self.shares):
      identity = part.identity()
      if self.errors != "strict" and part.is_repairable:
        identity["errors"] = self.errors
      if share is not None:
        identity |= {"share": share, "stopping": self.stopping}
      identities.append(identity)
    return identities

  def is_local(self) -> bool:
    """Returns whether all parts can be read without the hub."""
    return all(part.is_local for part in self.parts)

  def includes(self, folder: pathlib.Path) -> bool:
    """Returns whether a part would read text files written to `folder`."""
    for part in self.parts:
      start, recursive, _ = part.name.partition("**")
      root = pathlib.Path(start).expanduser().resolve()
      if (root.is_dir() or recursive) and folder.is_relative_to(root):
        return True
    return False

  def _read(self, meter: Meter) -> Iterator[Document]:
    """Reads one part after another."""
    for part in self.parts[1:]:  # an empty part fails now, not hours later
      next(_read_part(part, self._new_state()))
    sizes = [part.num_bytes for part in self.parts]
    for index, part in enumerate(self.parts):
      state = self._new_state(meter)
      for number, text in enumerate(_read_part(part, state)):
        meter.fraction_read = _total_fraction(sizes, index, state.fraction_read)
        yield Document(text, index, number, 0)

  def _read_mixture(self, meter: Meter) -> Iterator[Document]:
    """Always reads the part that is furthest behind its share of the text."""
    states = [self._new_state(meter) for _ in self.parts]
    streams = [self._repeat(index, state) for index, state in enumerate(states)]
    unfinished = set(range(len(self.parts)))
    # A heap of (bytes so far / share, part).
    queue = [(0.0, index) for index in unfinished]
    choose = max if self.stopping == "first" else min
    while unfinished:
      index = queue[0][1]
      document, is_last = next(streams[index])
      if is_last:
        unfinished.discard(index)
      fractions = [
        state.fraction_read if i in unfinished else 1.0
        for i, state in enumerate(states)
      ]
      known = [fraction for fraction in fractions if fraction is not None]
      all_known = len(known) == len(fractions)
      meter.fraction_read = choose(known) if all_known else None
      yield document  # `read` now counts its bytes
      if is_last and self.stopping == "first":
        return
      weighted_bytes = meter.part_bytes[index] / self.shares[index]
      heapq.heapreplace(queue, (weighted_bytes, index))

  def _repeat(
    self, index: int, state: ReadState
  ) -> Iterator[tuple[Document, bool]]:
    """Reads a part forever; yields also whether a document ends a pass."""
    for repeat in itertools.count():
      texts = _read_part(self.parts[index], state)
      text, number = next(texts), 0
      while text:
        following = next(texts, "")
        yield Document(text, index, number, repeat), not following
        text, number = following, number + 1
      state = self._new_state()  # later passes do not count oddities again

  def _new_state(self, meter: Meter | None = None) -> ReadState:
    oddities = collections.Counter() if meter is None else meter.oddities
    return ReadState(self.errors, oddities, REPLACE_HINT)


def _read_part(part: Part, state: ReadState) -> Iterator[str]:
  """Yields the texts of a part, at least one."""
  texts = part.read(state)
  first = next(texts, None)
  if first is None:
    raise DataError(
      f"{part.name!r}: no document, because every line or record is blank (or"
      " shorter than min_chars). Add text, or remove this part from"
      " data.sources."
    )
  yield first
  yield from texts


def _total_fraction(
  sizes: list[int | None], index: int, fraction: float | None
) -> float | None:
  """Returns the fraction of all parts after `fraction` of the part `index`."""
  if len(sizes) == 1:
    return fraction
  known = [size for size in sizes if size is not None]
  if fraction is None or len(known) < len(sizes):
    return None
  return (sum(known[:index]) + known[index] * fraction) / max(1, sum(known))
