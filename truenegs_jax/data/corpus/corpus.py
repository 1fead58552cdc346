"""A corpus: parts, each a stream of texts, as one stream of documents.

  for document in corpus.read(meter := Meter()): ...

The parts come one after the other or, with shares, take turns. `sources_spec`
opens the corpus that `config.data.sources` names.
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


class Document(NamedTuple):
  """A text of one or more lines, parted by "\\n", none of them blank.

  Attributes:
    text: of about 1 MB at most.
    part: which part of the corpus it is from.
    number: within the part, from 0: the same in every pass over the part.
    repeat: how often the part had been read to its end before.
  """

  text: str
  part: int
  number: int
  repeat: int


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of a corpus, ready to be read.

  Attributes:
    name: as a person would name it.
    read: one pass over its documents, all of which tell the `ReadState`.
    identity: what decides the documents, as JSON; looked up at every call.
    num_bytes: about how much there is, in the units of its own files; None
      where not known.
    is_local: reading needs no hub.
    is_repairable: its documents depend on how errors are met.
    paths: of its files, where it has some; absolute.
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
  """Counts of one pass over a corpus so far; `read` sets them to nothing.

  Attributes:
    oddities: what was mended, cut or left out, by name (`reading` lists them);
      of what is read again, once.
    done: share of the pass, 0 to 1; None where not known. Of a mixture, the
      share of the part whose end it waits for.
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
  """The documents of the parts; re-iterable, in the same order every time.

  Attributes:
    shares: of the text that each part is to have; empty for one after another.
  """

  parts: tuple[Part, ...]
  shares: tuple[float, ...]
  errors: str
  stopping: str

  def read(self, meter: Meter) -> Iterator[Document]:
    """Makes one pass and tells `meter` of it.

    Raises:
      DataError: text that cannot be read or is refused; a part without any.
    """
    meter.oddities.clear()
    meter.fraction_read = 0.0
    meter.part_bytes[:] = [0] * len(self.parts)
    meter.part_documents[:] = [0] * len(self.parts)
    meter.part_passes[:] = [0] * len(self.parts)
    documents = self._mixed(meter) if self.shares else self._in_turn(meter)
    for document in documents:
      meter.part_bytes[document.part] += num_bytes(document.text)
      meter.part_documents[document.part] += 1
      meter.part_passes[document.part] = document.repeat + 1
      yield document
    meter.fraction_read = 1.0

  def __iter__(self) -> Iterator[str]:
    """The texts of one pass."""
    return (document.text for document in self.read(Meter()))

  def part_names(self) -> list[str]:
    """Each part as the spec has it, without its keys."""
    return [part.name for part in self.parts]

  def names(self) -> str:
    """All parts as a person would name them."""
    return ", ".join(self.part_names())

  def identity(self) -> list[dict[str, Any]]:
    """The identity of the documents, as JSON: equal states, equal documents.

    Raises:
      DataError: files are there no more.
    """
    states = []
    for part, share in itertools.zip_longest(self.parts, self.shares):
      state = part.identity()
      if self.errors != "strict" and part.is_repairable:
        state["errors"] = self.errors
      if share is not None:
        state |= {"share": share, "stopping": self.stopping}
      states.append(state)
    return states

  def is_local(self) -> bool:
    """False where reading needs the hub."""
    return all(part.is_local for part in self.parts)

  def includes(self, folder: pathlib.Path) -> bool:
    """Whether what is written to `folder` would be read as text."""
    for name in self.part_names():
      root = pathlib.Path(name.partition("**")[0]).expanduser().resolve()
      if (root.is_dir() or "**" in name) and folder.is_relative_to(root):
        return True
    return False

  def _in_turn(self, meter: Meter) -> Iterator[Document]:
    for part in self.parts[1:]:  # fails now rather than in some hours
      if next(part.read(ReadState(self.errors)), None) is None:
        raise DataError(_empty(part))
    sizes = [part.num_bytes for part in self.parts]
    for index, part in enumerate(self.parts):
      reading = ReadState(self.errors, meter.oddities)
      number = -1
      for number, text in enumerate(part.read(reading)):
        meter.fraction_read = _done_in_turn(sizes, index, reading.fraction_read)
        yield Document(text, index, number, 0)
      if number < 0:
        raise DataError(_empty(part))

  def _mixed(self, meter: Meter) -> Iterator[Document]:
    """Takes the next document from the part that lags behind its share most."""
    readings = [ReadState(self.errors, meter.oddities) for _ in self.parts]
    streams = [self._repeated(i, reading) for i, reading in enumerate(readings)]
    unfinished = set(range(len(self.parts)))
    queue = [(0.0, index) for index in unfinished]  # a heap: ties by order
    choose = max if self.stopping == "first" else min
    while unfinished:
      index = queue[0][1]
      document, is_last = next(streams[index])
      if is_last:
        unfinished.discard(index)
      dones = [
        readings[i].fraction_read if i in unfinished else 1.0
        for i in range(len(streams))
      ]
      known = [done for done in dones if done is not None]
      meter.fraction_read = choose(known) if len(known) == len(dones) else None
      yield document  # and `read` counts its bytes
      if is_last and self.stopping == "first":
        return
      lag = meter.part_bytes[index] / self.shares[index]
      heapq.heapreplace(queue, (lag, index))

  def _repeated(
    self, index: int, reading: ReadState
  ) -> Iterator[tuple[Document, bool]]:
    """A part for ever: each document, and whether it is the last of a pass."""
    part = self.parts[index]
    for repeat in itertools.count():
      texts = part.read(reading)
      text, number = next(texts, None), 0
      if text is None:
        raise DataError(_empty(part))
      while text is not None:
        following = next(texts, None)
        yield Document(text, index, number, repeat), following is None
        text, number = following, number + 1
      reading = ReadState(self.errors)  # what it meets now is counted


def _empty(part: Part) -> str:
  return (
    f"no document in {part.name}: every line or record is blank;"
    " add text, or take this part out."
  )


def _done_in_turn(
  sizes: list[int | None], index: int, done: float | None
) -> float | None:
  if len(sizes) == 1:
    return done
  known = [size for size in sizes if size is not None]
  if done is None or len(known) < len(sizes):
    return None
  return (sum(known[:index]) + known[index] * done) / max(1, sum(known))
