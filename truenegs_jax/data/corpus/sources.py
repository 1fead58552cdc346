"""Sources of text: formats of files, by suffix, and sources with a name.

A source is a function that yields the text of one record after another, or
runs of whole lines. What it can be told in `data.sources` are its arguments:

  @source("jsonl", suffixes=(".jsonl",), keys=("column",))
  def jsonl(*, file: File, reading: ReadState, column: str) -> Iterator[str]:

It tells `reading` the place of the record, for messages, and how far it is.
"""

import csv as csv_lib
import dataclasses
import functools
import io
import itertools
import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Protocol

from truenegs_jax.data.corpus import arrow
from truenegs_jax.data.corpus.files import File, open_seekable
from truenegs_jax.data.corpus.hub_datasets import HubDataset
from truenegs_jax.data.corpus.lines import read_text
from truenegs_jax.data.corpus.read_state import MAX_RECORD_BYTES, ReadState
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import short_sha256

SYNSETS_PER_DOCUMENT = 64  # about 1,100 tokens: eight rows of 128
SOURCES: dict[str, "Source"] = {}


class WordNetReader(Hashable, Protocol):
  """The methods of nltk's `WordNetCorpusReader` that are used."""

  def all_synsets(self, pos: str) -> Iterable[Any]: ...
  def open(self, file: str) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Source:
  """A registered source.

  Attributes:
    read: yields text; its parameters are what it needs.
    identity: of a source with a name: what else decides what is read, as JSON.
    num_bytes: of such a source: about how much there is, to tell progress.
    suffixes: of the files that it reads; none for a source with a name.
    keys: what a part of it can be told; files, also `document`; all, `weight`.
    document: the rule of `documents.RULES`, unless another is asked for.
    is_lines: yields runs of lines rather than records.
  """

  read: Callable[..., Iterator[str | None]]
  identity: Callable[..., dict[str, Any]] = lambda **_: {}
  num_bytes: Callable[..., int | None] = lambda **_: None
  suffixes: tuple[str, ...] = ()
  keys: tuple[str, ...] = ()
  document: str = "record"
  is_lines: bool = False


def source(name: str, **description: Any) -> Callable[[Callable], Callable]:
  """Registers a function under `name`, described by the fields of Source."""

  def add(read: Callable) -> Callable:
    if name in SOURCES:
      raise ValueError(f"Source {name!r} is registered twice.")
    SOURCES[name] = Source(read, **description)
    return read

  return add


def formats() -> dict[str, str]:
  """Suffix of files -> name of the source that reads them."""
  return {
    suffix: name for name, entry in SOURCES.items() for suffix in entry.suffixes
  }


def _wordnet_identity(*, reader: WordNetReader) -> dict[str, Any]:
  # The content: 21 MB hash in 40 ms, and packages differ in times and places.
  contents = []
  for name in ("noun", "verb", "adj", "adv"):
    with reader.open("data." + name) as file:
      contents.append(file.read())
  return {"sha256": short_sha256(*contents)}


@source("wordnet", identity=_wordnet_identity, num_bytes=lambda **_: 11_000_000)
def wordnet(*, reader: WordNetReader, reading: ReadState) -> Iterator[str]:
  """The definitions and example sentences of WordNet, one a line.

  A document is a run of 64 synsets in the order of WordNet's lexicographer
  files, where neighbours are related (all persons, all plants, ...); it never
  crosses a file. About 166,000 lines of real English, 1.3 million words.
  """
  documents = _wordnet_documents(reader)
  for number, document in enumerate(documents, start=1):
    reading.number = number
    reading.advance(number / len(documents))
    yield document


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


@source("text", suffixes=(".txt",), document="block", is_lines=True)
def text(*, file: File, reading: ReadState) -> Iterator[str]:
  """Plain UTF-8; a line stays a line. Files of unknown suffixes are such."""
  return read_text(file, reading)


@source("jsonl", suffixes=(".jsonl", ".json"), keys=("column",))
def jsonl(
  *, file: File, reading: ReadState, column: str
) -> Iterator[str | None]:
  """One JSON object a line, its text under the key `column`.

  Raises:
    DataError: no JSON, no object, or no such key, by line.
  """
  num_lines = 0
  for run in read_text(file, reading, records=True):
    lines = run.split("\n")[:-1]
    for number, line in enumerate(lines, start=num_lines + 1):
      if line and not line.isspace():
        reading.number = number
        record = _parse_json(line, reading)
        if column not in record:
          raise DataError(_no_column(reading.place, column, record))
        yield record[column]
    num_lines += len(lines)


def _parse_json(line: str, reading: ReadState) -> dict[str, Any]:
  try:
    record = json.loads(line)
  except RecursionError as error:
    raise DataError(
      f"{reading.place}: JSON that is nested too deeply to be read."
    ) from error
  except ValueError as error:  # of an integer of thousands of digits, too
    what, where = getattr(error, "msg", error), getattr(error, "colno", 0)
    raise DataError(
      f"{reading.place}: no JSON object on one line: {what}, at column {where}."
    ) from error
  if not isinstance(record, dict):
    raise DataError(
      f"{reading.place}: {type(record).__name__}, not a JSON object: a file"
      " holds one object a line (`jq -c '.[]'` makes such of an array)."
    )
  return record


def _no_column(place: str, column: str, columns: Iterable[str]) -> str:
  known = ", ".join(map(str, itertools.islice(columns, 20))) or "none"
  return (
    f"{place}: no column {column!r}; there are: {known}. Name one with column=."
  )


@source("parquet", suffixes=(".parquet",), keys=("column",))
def parquet(
  *, file: File, reading: ReadState, column: str
) -> Iterator[str | None]:
  """The text column of a Parquet file, some hundred records at a time.

  Raises:
    DataError: damaged, no such column, or it does not hold text.
  """
  with open_seekable(file, reading) as raw:
    yield from arrow.read_parquet(raw, reading, column=column)


@source("csv", suffixes=(".csv", ".tsv"), keys=("column",))
def csv(*, file: File, reading: ReadState, column: str) -> Iterator[str | None]:
  """Fields parted by commas, in .tsv by tabs; the first line names them.

  A field that holds the separator, a quote or a line end stands in quotes,
  and a quote in it is doubled (RFC 4180).

  Raises:
    DataError: no such column; by line, a broken quote or another number of
      fields than the first line has.
  """
  runs = read_text(file, reading, records=True)
  lines = itertools.chain.from_iterable(
    io.StringIO(run, newline="\n") for run in runs
  )
  separator = "\t" if file.suffix == ".tsv" else ","
  csv_lib.field_size_limit(MAX_RECORD_BYTES)  # of the process; was 131,072
  rows = csv_lib.reader(lines, delimiter=separator, strict=True)
  names: list[str] = []
  next_line = 1
  try:
    for row in rows:
      reading.number, next_line = next_line, rows.line_num + 1
      if not names:
        names = row
        if names.count(column) != 1:
          raise DataError(_no_column(reading.place, column, names))
        index = names.index(column)
      elif len(row) == len(names):
        yield row[index]
      elif row:  # none of them: a blank line
        raise DataError(
          f"{reading.place}: {len(row)} fields, and {len(names)} in the first"
          " line: put a field that holds the separator in quotes."
        )
  except csv_lib.Error as error:
    raise DataError(
      f"{reading.where}:{next_line}: a record begins here whose quotes do not"
      f" match, or which is over {MAX_RECORD_BYTES:,} bytes ({error}): double"
      " a quote within quotes."
    ) from error


@source(
  "hf",
  identity=lambda dataset: dataset.identity(),
  num_bytes=lambda dataset: dataset.num_bytes(),
  keys=("document", "column", "split", "config", "revision", "streaming"),
)
def hf(*, dataset: HubDataset, reading: ReadState) -> Iterator[str | None]:
  """A data set of the hub or of a local folder, as `hub.open_dataset` says."""
  return dataset.read(reading)
