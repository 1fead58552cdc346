"""Named sources of documents.

A document is a `str` of one or more lines separated by "\\n"; a line is the
unit that the row builder puts into a segment. A source is a function that
yields documents, registered under the name used in `config.data.sources`:

  for document in documents("wordnet,more/*.txt", reader=reader): ...
"""

import dataclasses
import functools
import glob
import hashlib
import inspect
import itertools
import pathlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from truenegs_jax.errors import DataError, InputError

MAX_LINE_BYTES = 1_000_000
# A file without blank lines would be one document: it is cut after this much.
MAX_DOCUMENT_BYTES = 1_000_000
SYNSETS_PER_DOCUMENT = 64  # about 1,100 tokens: eight rows of 128
SOURCES: dict[str, "Source"] = {}


class WordNetReader(Hashable, Protocol):
  """What is used of nltk's `WordNetCorpusReader`."""

  def all_synsets(self, pos: str) -> Iterable[Any]: ...
  def open(self, file: str) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Source:
  """A registered source: its documents, and what they depend on."""

  read: Callable[..., Iterator[str]]
  state: Callable[..., dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Documents:
  """The documents of several sources, one after the other; re-iterable."""

  parts: tuple[tuple[str, Mapping[str, Any]], ...]

  def __iter__(self) -> Iterator[str]:
    """Raises DataError where a source is unreadable or all are empty."""
    num_documents = 0
    for name, arguments in self.parts:
      for document in SOURCES[name].read(**arguments):
        num_documents += 1
        yield document
    if not num_documents:
      raise DataError(
        f"data.sources: no document in {self.names()}: every line is blank;"
        " add text."
      )

  def names(self) -> str:
    """The parts as a person would name them."""
    return ", ".join(str(a.get("path", n)) for n, a in self.parts)

  def state(self) -> list[dict[str, Any]]:
    """What the documents depend on, as JSON: equal states, equal text."""
    return [
      {"source": name, **SOURCES[name].state(**arguments)}
      for name, arguments in self.parts
    ]


def source(
  name: str, *, state: Callable[..., dict[str, Any]] = lambda **_: {}
) -> Callable[[Callable[..., Iterator[str]]], Callable[..., Iterator[str]]]:
  """Registers `fn(**resources) -> iterator of documents` under `name`.

  `state`, called with the same arguments, returns as JSON whatever else
  decides what is read (files, versions); rows are made anew when it changes.
  """

  def add(fn: Callable[..., Iterator[str]]) -> Callable[..., Iterator[str]]:
    if name in SOURCES:
      raise ValueError(f"Source {name!r} is registered twice.")
    SOURCES[name] = Source(fn, state)
    return fn

  return add


def documents(spec: str, **resources: Any) -> Documents:
  """Resolves `config.data.sources`.

  Args:
    spec: comma-separated parts, read in this order; each the name of a
      registered source, or a text file, a folder of .txt files or a glob.
    **resources: what sources need beside text (`reader` for "wordnet"); each
      source gets those that its signature names.

  Raises:
    InputError: an empty part, or a resource is missing.
    DataError: a part is neither a known name nor an existing path.
  """
  parts = source_parts(spec)
  return Documents(tuple(_resolve(part, resources) for part in parts))


def source_parts(spec: str) -> tuple[str, ...]:
  """The parts of a spec; InputError where one is empty."""
  parts = tuple(part.strip() for part in spec.split(","))
  for number, part in enumerate(parts, start=1):
    if not part:
      raise InputError(
        f"data.sources={spec!r}: part {number} is empty; give names or paths"
        f" separated by commas, such as {'wordnet'!r} or 'texts/*.txt'."
      )
  return parts


def _text_state(*, path: str) -> dict[str, Any]:
  # Name, size and time of change, not a hash of the content: that would cost
  # reading the whole corpus at every start, while a copy with another time
  # only costs a second preparation. Folders may move: they do not count.
  files = []
  for file in text_files(path):
    status = file.stat()
    files.append([file.name, status.st_size, status.st_mtime_ns])
  return {"files": files}


@source("text", state=_text_state)
def text(*, path: str) -> Iterator[str]:
  """Plain UTF-8 files: blank lines part documents, a line stays a line.

  A document also ends at the end of its file and after 1 MB, which bounds the
  memory for files without blank lines. A byte-order mark and the CR of CRLF
  are dropped.

  Raises:
    DataError: no such file, not UTF-8, a NUL byte, a line over 1 MB.
  """
  for file in text_files(path):
    yield from _blocks(_lines(file))


def text_files(path: str) -> list[pathlib.Path]:
  """The files a path, folder or glob stands for, sorted; at least one."""
  location = pathlib.Path(path).expanduser()
  if location.is_dir():
    found = sorted(location.rglob("*.txt"))
    # Hidden ones are the debris of editors and archives ("._a.txt").
    files = [f for f in found if not f.name.startswith(".") and f.is_file()]
    if not files:
      raise DataError(f"data.sources: folder {path} holds no .txt file.")
    return files
  if location.is_file():
    return [location]
  matches = sorted(glob.glob(str(location), recursive=True))
  files = [f for f in map(pathlib.Path, matches) if f.is_file()]
  if not files:
    known = ", ".join(sorted(set(SOURCES) - {"text"}))
    raise DataError(
      f"data.sources: {path!r} is no file, no folder of .txt files, no glob"
      f" that matches one, and no named source (known: {known})."
    )
  return files


def _wordnet_state(*, reader: WordNetReader) -> dict[str, Any]:
  # The content: 21 MB hash in 40 ms, and packages differ in times and places.
  digest = hashlib.sha256()
  for name in ("noun", "verb", "adj", "adv"):
    with reader.open("data." + name) as file:
      digest.update(file.read().encode())
  return {"sha256": digest.hexdigest()[:16]}


@source("wordnet", state=_wordnet_state)
def wordnet(*, reader: WordNetReader) -> Iterator[str]:
  """The definitions and example sentences of WordNet, one a line.

  A document is a run of 64 synsets in the order of WordNet's lexicographer
  files, where neighbours are related (all persons, all plants, ...); it never
  crosses a file. About 166,000 lines of real English, 1.3 million words.
  """
  yield from _wordnet_documents(reader)


# One reader a process; parsing WordNet takes seconds, its text 11 MB.
@functools.lru_cache(maxsize=1)
def _wordnet_documents(reader: WordNetReader) -> tuple[str, ...]:
  found = []
  for pos in "nvar":
    synsets = sorted(
      reader.all_synsets(pos), key=lambda s: (s.lexname(), s.offset())
    )
    for _, group in itertools.groupby(synsets, key=lambda s: s.lexname()):
      members = list(group)
      for start in range(0, len(members), SYNSETS_PER_DOCUMENT):
        run = members[start : start + SYNSETS_PER_DOCUMENT]
        lines = [line for s in run for line in [s.definition(), *s.examples()]]
        found.append("\n".join(" ".join(x.split()) for x in lines if x.strip()))
  return tuple(document for document in found if document)


def _resolve(
  part: str, resources: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
  if part not in SOURCES or part == "text":
    text_files(part)  # says now, not after an hour, that a path is wrong
    return "text", {"path": part}
  names = inspect.signature(SOURCES[part].read).parameters
  missing = [n for n in names if n not in resources]
  if missing:
    raise InputError(
      f"data.sources: {part!r} needs {', '.join(missing)}; pass"
      f" documents(..., {missing[0]}=...)."
    )
  return part, {n: resources[n] for n in names}


def _blocks(lines: Iterable[str]) -> Iterator[str]:
  """Joins lines up to a blank one, or up to the size limit of a document."""
  block: list[str] = []
  size = 0
  for line in lines:
    if line.strip():
      block.append(line)
      size += len(line)
    if block and (not line.strip() or size >= MAX_DOCUMENT_BYTES):
      yield "\n".join(block)
      block, size = [], 0
  if block:
    yield "\n".join(block)


def _lines(path: pathlib.Path) -> Iterator[str]:
  """The lines of a file, checked, without their ends."""
  offset = 0
  try:
    with open(path, "rb") as file:
      number = 0
      # A limit on what is read, or a file of one line would fill the memory.
      while data := file.readline(MAX_LINE_BYTES + 2):
        number += 1
        yield _decode(data, place=f"{path}:{number}", offset=offset)
        offset += len(data)
  except OSError as error:
    raise DataError(f"{path}: cannot be read: {error.strerror}.") from error


def _decode(data: bytes, *, place: str, offset: int) -> str:
  line = data.removesuffix(b"\n").removesuffix(b"\r")
  if len(line) > MAX_LINE_BYTES:
    raise DataError(
      f"{place}: a line of more than {MAX_LINE_BYTES:,} bytes (from byte"
      f" {offset:,}); put one sentence or paragraph on a line, and a blank"
      " line between documents."
    )
  if b"\0" in line:
    raise DataError(
      f"{place}: NUL byte at byte {offset + line.index(0):,}; this is not"
      " plain text (UTF-16, or a binary file?): convert it to UTF-8."
    )
  try:
    decoded = line.decode("utf-8")
  except UnicodeDecodeError as error:
    raise DataError(
      f"{place}: byte 0x{line[error.start]:02x} at byte"
      f" {offset + error.start:,} is not UTF-8: convert the file, for"
      " example with `iconv -f LATIN1 -t UTF-8`, or repair the line."
    ) from error
  return decoded.removeprefix("\ufeff") if offset == 0 else decoded
