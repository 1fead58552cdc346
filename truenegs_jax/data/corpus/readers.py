"""Reads text: lines of files, records of every format, and WordNet.

A format yields the text of one record after another, or groups of complete
lines, and updates position and progress of the `ReadState`. A new one needs a
function and an entry in FORMATS.
"""

import codecs
import csv
import functools
import io
import itertools
from collections.abc import (
  Callable,
  Collection,
  Hashable,
  Iterable,
  Iterator,
  Mapping,
)
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from truenegs_jax.data.corpus import read_state
from truenegs_jax.data.corpus.files import File, open_file, read_blocks
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime.errors import DataError, TrueNegsError
from truenegs_jax.runtime.files import parse_json, short_sha256

if TYPE_CHECKING:
  import pyarrow  # takes a quarter of a second, so functions import it

BATCH_RECORDS = 64  # few calls, and little memory for all but novels
SYNSETS_PER_DOCUMENT = 64  # about 1,100 tokens: eight rows of 128


def read_text(
  file: File, state: ReadState, *, records: bool = False
) -> Iterator[str]:
  """Yields groups of complete lines, of some hundred KB; all end in "\n".

  CR and CRLF end a line like LF.

  Args:
    records: every line holds a record, which may be longer than a line of text
      but is never cut. A longer line of text is refused before its end is read,
      or cut.
  """
  limit = read_state.MAX_RECORD_BYTES if records else read_state.MAX_LINE_BYTES
  # Blocks within the limit: only the first line of a block can exceed it.
  size = min(read_state.BLOCK_BYTES, limit)
  rest, line = b"", 1
  for block in _unify_line_ends(read_blocks(file, state, size=size)):
    rest += block
    state.where, state.unit, state.number = file.path, "line", line
    while len(rest) > limit and rest.find(b"\n", 0, limit + 1) < 0:
      if records:
        raise DataError(
          f"{state.location()}: a line of more than {limit:,} bytes. Split the"
          " record, or remove it."
        )
      cut = cut_of_long_line(rest, state)
      yield _decode(rest[:cut], state) + "\n"
      rest, state.number = rest[cut:], line
    if end := rest.rfind(b"\n") + 1:
      yield _decode(rest[:end], state)
      line += rest.count(b"\n", 0, end)
      rest = rest[end:]
  state.number = line
  if text := _decode(rest, state):
    yield text + "\n"


def cut_of_long_line(data: bytes, state: ReadState) -> int:
  """Returns where to cut a line, if possible at white space, and counts it."""
  limit = read_state.MAX_LINE_BYTES
  state.count_repair(
    read_state.LONG_LINES,
    f"{state.location()}: a line of more than {limit:,} bytes. Put one sentence"
    " or paragraph on a line, and a blank line between documents.",
  )
  cut = max(data.rfind(b" ", 0, limit), data.rfind(b"\t", 0, limit)) + 1
  if not cut:
    cut = limit
    while cut > limit - 3 and data[cut] & 0xC0 == 0x80:  # inside a character
      cut -= 1
  return cut


def _unify_line_ends(blocks: Iterable[bytes]) -> Iterator[bytes]:
  held = b""  # a CR, which an LF may follow
  for block in blocks:
    data = held + block
    held = b"\r" if data.endswith(b"\r") else b""
    data = data.removesuffix(held)
    yield data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
  if held:
    yield b"\n"


def _decode(data: bytes, state: ReadState) -> str:
  """Decodes lines, without a byte-order mark before the first."""
  if state.number == 1:
    data = data.removeprefix(codecs.BOM_UTF8)
  return state.decode(data)


def read_records(file: File, state: ReadState) -> Iterator[str]:
  """Yields lines that hold records; each ends in "\n"."""
  for lines in read_text(file, state, records=True):
    # `splitlines` would also split at U+2028, which texts contain.
    yield from io.StringIO(lines, newline="\n")


def read_objects(
  file: File, state: ReadState
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields the number and the JSON object of each line that is not blank."""
  for number, line in enumerate(read_records(file, state), start=1):
    if line.isspace():
      continue
    try:
      record = parse_json(line[:-1], strict=False)
    except ValueError as error:
      raise DataError(
        f"{file.path}:{number}: {error}. Write one JSON object per line;"
        " `jq -c '.[]'` converts an array."
      ) from error
    yield number, record


def read_csv_rows(
  file: File, state: ReadState, *, delimiter: str = ","
) -> Iterator[tuple[int, list[str]]]:
  """Yields the first line and the fields of each row (RFC 4180)."""
  limit = read_state.MAX_RECORD_BYTES
  csv.field_size_limit(limit)  # of the process; was 131,072
  rows = csv.reader(read_records(file, state), delimiter=delimiter, strict=True)
  number = 1
  try:
    for row in rows:
      yield number, row
      number = rows.line_num + 1
  except csv.Error as error:
    raise DataError(
      f"{file.path}:{number}: unbalanced quotes in the record that starts"
      f" here, or it exceeds {limit:,} bytes ({error}). Double each quote"
      " inside a quoted field."
    ) from error


def read_jsonl(
  file: File, state: ReadState, *, column: str
) -> Iterator[str | None]:
  """Yields the value `column` of the JSON object on each line."""
  for number, record in read_objects(file, state):
    state.number = number
    check_name(state.location(), record, column)
    yield record[column]


def read_csv(file: File, state: ReadState, *, column: str) -> Iterator[str]:
  """Yields a column of comma-separated values; .tsv is separated by tabs."""
  delimiter = "\t" if file.suffix == ".tsv" else ","
  names: list[str] = []
  for number, row in read_csv_rows(file, state, delimiter=delimiter):
    state.number = number
    if not names:
      names = row
      check_name(state.location(), names, column)
    elif len(row) == len(names):
      yield row[names.index(column)]
    elif row:  # a blank line is an empty row
      raise DataError(
        f"{state.location()}: {len(row)} fields, but {len(names)} in the first"
        " line. Quote a field that holds the separator."
      )


def read_parquet(
  file: File, state: ReadState, *, column: str
) -> Iterator[str | None]:
  """Yields the text column of a Parquet file; holds a part of a row group."""
  from pyarrow import parquet

  try:
    with open_file(file) as raw:
      table = parquet.ParquetFile(raw, pre_buffer=False, buffer_size=2**20)
      check_column(table.schema_arrow, column, file.path)
      batches = table.iter_batches(
        BATCH_RECORDS, columns=[column], use_threads=False
      )
      num_records = table.metadata.num_rows
      yield from read_batches(
        batches, state, column=column, num_records=num_records
      )
  except TrueNegsError:
    raise
  # Arrow raises half a dozen types, and damage leads to yet others.
  except Exception as error:
    raise DataError(
      f"{state.location()}: not a Parquet file, or compressed, damaged or cut"
      f" off ({type(error).__name__}: {error}). Unpack it or download it again."
    ) from error


def read_batches(
  batches: "Iterable[pyarrow.RecordBatch | pyarrow.Table]",
  state: ReadState,
  *,
  column: str,
  num_records: int | None,
) -> Iterator[str | None]:
  """Yields the texts of a column; `num_records` of all batches, or None."""
  import pyarrow

  state.unit, state.number = "record", 0
  if num_records is None:
    state.fraction_read = None
  for batch in batches:
    check_column(batch.schema, column, state.where)
    values = batch.column(column)
    if pyarrow.types.is_dictionary(values.type):
      values.validate(full=True)
    texts = values.cast(pyarrow.large_binary())
    texts.validate(full=True)  # damaged offsets would crash the process
    for text in texts.to_pylist():
      state.number += 1
      yield None if text is None else state.decode(text)
    if num_records is not None:
      state.advance(state.number / max(1, num_records))


def check_column(schema: "pyarrow.Schema", column: str, where: str) -> None:
  """Raises a DataError unless `column` exists and holds text."""
  import pyarrow

  check_name(where, schema.names, column)
  kind = schema.field(column).type
  text = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
  texts = (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())
  if text not in texts:
    raise DataError(
      f"{where}: column {column!r} holds {kind}, not text. Set column=NAME."
    )


def check_name(where: str, names: Collection[str], column: str) -> None:
  """Raises a DataError unless the column exists once."""
  if list(names).count(column) != 1:
    first = ", ".join(map(str, itertools.islice(names, 20))) or "none"
    raise DataError(
      f"{where}: no column {column!r}. Columns: {first}. Set column=NAME."
    )


class Format(NamedTuple):
  """A format of files."""

  # Yields records of a file, if it has columns; else groups of lines.
  read: Callable[..., Iterator[Any]]
  suffixes: tuple[str, ...]  # of the files that it reads
  has_columns: bool = True
  # Default of the option `document`, one of `documents.RULES`.
  document: str = "record"


FORMATS = {
  "csv": Format(read_csv, (".csv", ".tsv")),
  "jsonl": Format(read_jsonl, (".jsonl", ".json")),
  "parquet": Format(read_parquet, (".parquet",)),
  "text": Format(read_text, (".txt",), has_columns=False, document="block"),
}
SUFFIXES = {x: name for name, entry in FORMATS.items() for x in entry.suffixes}


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
