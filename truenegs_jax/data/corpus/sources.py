"""Formats of files, and WordNet as a text.

A format yields the text of one record after another, or groups of complete
lines, and updates position and progress of the `ReadState`. A new one needs a
function and an entry in FORMATS.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from truenegs_jax.data.corpus import arrow
from truenegs_jax.data.corpus.files import File, open_file
from truenegs_jax.data.corpus.lines import (
  read_csv_rows,
  read_objects,
  read_text,
)
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime.errors import DataError, TrueNegsError
from truenegs_jax.runtime.files import short_sha256

SYNSETS_PER_DOCUMENT = 64  # about 1,100 tokens: eight rows of 128
WORDNET_BYTES = 11_000_000


class WordNetReader(Hashable, Protocol):
  """The parts of nltk's `WordNetCorpusReader` that are used."""

  MORPHOLOGICAL_SUBSTITUTIONS: Mapping[str, list[tuple[str, str]]]
  _exception_map: Mapping[str, dict[str, list[str]]]
  _lemma_pos_offset_map: Mapping[str, dict[str, list[int]]]

  def all_synsets(self, pos: str) -> Iterable[Any]: ...
  def get_version(self) -> str | None: ...
  def open(self, file: str) -> Any: ...
  def synsets(self, lemma: str, pos: str) -> list[Any]: ...
  def synset_from_pos_and_offset(self, pos: str, offset: int) -> Any: ...


def read_wordnet(reader: WordNetReader, state: ReadState) -> Iterator[str]:
  """Yields the definitions and example sentences of WordNet, one a line.

  A document holds 64 neighboring synsets of one of WordNet's lexicographer
  files, which have related meanings (all persons, all plants, ...). In all
  about 166,000 lines of real English, 1.3 million words.
  """
  documents = _wordnet_documents(reader)
  for number, document in enumerate(documents, start=1):
    state.number = number
    state.advance(number / len(documents))
    yield document


def wordnet_identity(reader: WordNetReader) -> dict[str, Any]:
  """Returns as JSON what determines WordNet's text."""
  # A hash, because times and places differ between packages: 21 MB in 40 ms.
  contents = []
  for name in ("noun", "verb", "adj", "adv"):
    with reader.open("data." + name) as file:
      contents.append(file.read())
  return {"sha256": short_sha256(*contents)}


# One reader per process: parsing WordNet takes seconds, its text 11 MB.
@functools.lru_cache(maxsize=1)
def _wordnet_documents(reader: WordNetReader) -> tuple[str, ...]:
  documents = []
  for pos in "nvar":
    synsets = sorted(
      reader.all_synsets(pos), key=lambda s: (s.lexname(), s.offset())
    )
    for _, group in itertools.groupby(synsets, key=lambda s: s.lexname()):
      while members := list(itertools.islice(group, SYNSETS_PER_DOCUMENT)):
        texts = [t for s in members for t in (s.definition(), *s.examples())]
        lines = [" ".join(text.split()) for text in texts if text.strip()]
        documents.append("\n".join(lines))
  return tuple(filter(None, documents))


def read_jsonl(
  file: File, state: ReadState, *, column: str, by: str
) -> Iterator[str | None]:
  """Yields the value `column` of the JSON object on each line.

  Raises:
    DataError: a line is not a JSON object, or has no such key.
  """
  for number, record in read_objects(file, state):
    state.number = number
    arrow.check_names(state.location(), record, column=column, by=by)
    state.group = record.get(by)
    yield record[column]


def read_parquet(
  file: File, state: ReadState, *, column: str, by: str
) -> Iterator[str | None]:
  """Yields the text column of a Parquet file; holds a part of a row group.

  Raises:
    DataError: the file is compressed or damaged, or has no such column of text.
  """
  if file.compression:
    raise DataError(
      f"{file.path}: Parquet files compress their columns, and are not read"
      f" from {file.compression} files. Unpack it."
    )
  from pyarrow import parquet

  columns = [column, *filter(None, [by])]
  try:
    with open_file(file) as raw:
      table = parquet.ParquetFile(raw, pre_buffer=False, buffer_size=2**20)
      arrow.check_column(table.schema_arrow, column, file.path, by=by)
      yield from arrow.read_batches(
        table.iter_batches(
          arrow.BATCH_RECORDS, columns=columns, use_threads=False
        ),
        state,
        column=column,
        by=by,
        num_records=table.metadata.num_rows,
      )
  except TrueNegsError:
    raise
  # Arrow raises half a dozen types, and damage leads to yet others.
  except Exception as error:
    raise DataError(
      f"{state.location()}: not a Parquet file, or damaged or cut off"
      f" ({type(error).__name__}: {error}). Download it again."
    ) from error


def read_csv(
  file: File, state: ReadState, *, column: str, by: str
) -> Iterator[str | None]:
  """Yields a column of comma-separated values; .tsv is separated by tabs.

  Raises:
    DataError: no such column in the first line; or a line has a broken quote,
      or another number of fields than the first.
  """
  delimiter = "\t" if file.suffix == ".tsv" else ","
  names: list[str] = []
  for number, row in read_csv_rows(file, state, delimiter=delimiter):
    state.number = number
    if not names:
      names = row
      arrow.check_names(state.location(), names, column=column, by=by)
    elif len(row) == len(names):
      state.group = row[names.index(by)] if by else None
      yield row[names.index(column)]
    elif row:  # a blank line is an empty row
      raise DataError(
        f"{state.location()}: {len(row)} fields, but {len(names)} in the first"
        " line. Quote a field that holds the separator."
      )


class Format(NamedTuple):
  """A format of files.

  Attributes:
    read: yields records of a file, if it has columns; else groups of lines.
    suffixes: of the files that it reads.
    document: default of the option `document`, one of `documents.RULES`.
  """

  read: Callable[..., Iterator[Any]]
  suffixes: tuple[str, ...]
  has_columns: bool = True
  document: str = "record"


FORMATS = {
  "csv": Format(read_csv, (".csv", ".tsv")),
  "jsonl": Format(read_jsonl, (".jsonl", ".json")),
  "parquet": Format(read_parquet, (".parquet",)),
  "text": Format(read_text, (".txt",), has_columns=False, document="block"),
}
SUFFIXES = {x: name for name, entry in FORMATS.items() for x in entry.suffixes}
