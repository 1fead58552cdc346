"""Reads text: lines of files, records of every format, and WordNet.

A format yields the text of one record after another, and keeps its position in
a `ReadState`. A new one needs a function, and an entry in RECORD_FORMATS and in
SUFFIXES. `datasets` does not read files here: it drops the text "NA" of .csv,
reads short rows as null, and does not say in which line an error is.
"""

import codecs
import collections
import contextlib
import csv
import dataclasses
import functools
import io
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from truenegs_jax.data.corpus import files
from truenegs_jax.data.corpus.files import File
from truenegs_jax.runtime.errors import DataError, TrueNegsError
from truenegs_jax.runtime.files import parse_json

if TYPE_CHECKING:
  import pyarrow  # takes a quarter of a second, so functions import it

BATCH_RECORDS = 64  # few calls, and little memory for all but novels
SYNSETS_PER_DOCUMENT = 64  # about 1,100 tokens: eight rows of 128
MAX_LINE_BYTES = 1_000_000
# Longer ones are cut: a file without blank lines would be one document.
MAX_DOCUMENT_BYTES = 1_000_000
# A JSON or CSV record is held in memory. The longest novels have 10 MB, and
# JSON may write a letter in six bytes.
MAX_RECORD_BYTES = 16_000_000

Counts = collections.Counter[str]
# Keys of `ReadState.repairs` and of a manifest.
NOT_UTF8 = "bytes that are not UTF-8, replaced"
NUL = "NUL characters, replaced"
SURROGATES = "lone surrogates, replaced"
LONG_LINES = "cuts in lines over 1 MB"
LONG_DOCUMENTS = "cuts in documents over 1 MB"
BLANK_DOCUMENTS = "blank documents, left out"
NULL_VALUES = "null values, left out"
EMPTY_FILES = "files without text, left out"
SHORT_LINES = "lines under {} characters, left out"


@dataclasses.dataclass
class ReadState:
  """How to treat bad text, the current position, and counts of repairs."""

  errors: str = "strict"  # refuses bad text; "replace" repairs and counts it
  # Of what was replaced, cut or left out, by the names above.
  repairs: Counts = dataclasses.field(default_factory=Counts)
  hint: str = ""  # sentence at the end of the message that refuses bad text
  where: str = ""  # the current file or data set
  unit: str = "line"  # what `number` counts, "line" or "record"
  number: int = 0  # of the current line or record, from 1
  num_records: int = 0  # of documents so far, before they are joined

  def location(self, before: bytes = b"") -> str:
    """Returns the position for a message; `before` holds lines before it."""
    if not self.number:
      return self.where
    if self.unit == "line":
      number = self.number + before.count(b"\n")
      return f"{self.where}:{number}"
    return f"{self.where}: {self.unit} {self.number}"

  def decode(self, data: bytes) -> str:
    """Decodes UTF-8 from the current position; replaces other bytes and NUL."""
    try:
      text = data.decode()
    except UnicodeDecodeError as error:
      start = error.start
      text = data.decode(errors="replace")
      code = "UTF-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "LATIN1"
      self.count_repair(
        NOT_UTF8,
        f"{self.location(data[:start])}: byte 0x{data[start]:02x} is not UTF-8."
        f" Repair it, or convert the text: `iconv -f {code} -t UTF-8`.",
        count=text.count("\ufffd") - data.count("\ufffd".encode()),
      )
    if "\0" in text:
      self.count_repair(
        NUL,
        f"{self.location(data[: data.index(0)])}: NUL in the text, as in UTF-16"
        " and binary files. Convert it to UTF-8.",
        count=text.count("\0"),
      )
      text = text.replace("\0", "\ufffd")
    return text

  def count_repair(self, repair: str, message: str, *, count: int = 1) -> None:
    """Counts a repair that the caller makes, if repairs are allowed."""
    if self.errors == "strict":
      raise DataError(f"{message} {self.hint}".rstrip())
    self.repairs[repair] += count


def read_text(
  file: File, state: ReadState, *, records: bool = False
) -> Iterator[str]:
  """Yields groups of complete lines; each ends in LF, also after CR and CRLF.

  A long line is cut or refused. If lines are `records`, it is always refused.
  """
  limit = MAX_RECORD_BYTES if records else MAX_LINE_BYTES
  # Blocks within the limit: only the first line of a block can exceed it.
  blocks = files.read_blocks(file, size=min(files.BLOCK_BYTES, limit))
  rest = b""
  line = 1
  for block in _unify_line_ends(blocks):
    rest += block
    state.where = file.path
    state.unit = "line"
    state.number = line
    while len(rest) > limit and rest.find(b"\n", 0, limit + 1) < 0:
      if records:
        _check_size(state.location(), len(rest))
      cut = cut_of_long_line(rest, state)
      yield _decode(rest[:cut], state) + "\n"
      rest = rest[cut:]
      state.number = line
    if end := rest.rfind(b"\n") + 1:
      yield _decode(rest[:end], state)
      line += rest.count(b"\n", 0, end)
      rest = rest[end:]
  state.number = line
  if text := _decode(rest, state):
    yield text + "\n"


def cut_of_long_line(data: bytes, state: ReadState) -> int:
  """Returns where to cut a line, if possible at white space, and counts it."""
  limit = MAX_LINE_BYTES
  state.count_repair(
    LONG_LINES,
    f"{state.location()}: a line of more than {limit:,} bytes. Put one sentence"
    " or paragraph on a line, and a blank line between documents.",
  )
  cut = max(data.rfind(b" ", 0, limit), data.rfind(b"\t", 0, limit)) + 1
  if not cut:
    cut = limit
    while cut > limit - 3 and data[cut] & 0xC0 == 0x80:  # inside a character
      cut -= 1
  return cut


def cut_line(line: bytes, state: ReadState) -> Iterator[bytes]:
  """Yields the pieces of a line."""
  while len(line) > MAX_LINE_BYTES:
    cut = cut_of_long_line(line, state)
    yield line[:cut]
    line = line[cut:]
  yield line


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


def read_lines(file: File, state: ReadState) -> Iterator[str]:
  """Yields lines that hold records; each ends in LF."""
  groups = read_text(file, state, records=True)
  # `splitlines` would also split at U+2028, which texts contain.
  lines = (io.StringIO(group, newline="\n") for group in groups)
  for number, line in enumerate(itertools.chain.from_iterable(lines), start=1):
    state.number = number
    yield line


def read_objects(file: File, state: ReadState) -> Iterator[dict[str, Any]]:
  """Yields the JSON object of each line that is not blank."""
  for line in read_lines(file, state):
    if line.isspace():
      continue
    try:
      yield parse_json(line[:-1], strict=False)
    except ValueError as error:
      raise DataError(
        f"{state.location()}: {error}. Write one JSON object per line;"
        " `jq -c '.[]'` converts an array."
      ) from error


def read_csv_rows(
  file: File, state: ReadState, *, delimiter: str = ","
) -> Iterator[list[str]]:
  """Yields the fields of each row (RFC 4180), `state` being at its start."""
  rows = csv.reader(read_lines(file, state), delimiter=delimiter, strict=True)
  start = 1
  try:
    while True:
      before = csv.field_size_limit(MAX_RECORD_BYTES)  # of the process
      try:
        row = next(rows, None)
      finally:
        csv.field_size_limit(before)
      if row is None:
        return
      state.number = start
      start = rows.line_num + 1
      yield row
  except csv.Error as error:
    raise DataError(
      f"{file.path}:{start}: unbalanced quotes in the record that starts"
      f" here, or it exceeds {MAX_RECORD_BYTES:,} bytes ({error}). Double each"
      " quote inside a quoted field."
    ) from error


def read_jsonl(
  file: File, state: ReadState, *, column: str
) -> Iterator[str | None]:
  """Yields the value `column` of the JSON object on each line."""
  for record in read_objects(file, state):
    check_name(state.location(), [*record], column)
    yield record[column]


def read_csv(file: File, state: ReadState, *, column: str) -> Iterator[str]:
  """Yields a column of comma-separated values; .tsv is separated by tabs."""
  delimiter = "\t" if file.suffix == ".tsv" else ","
  names: list[str] = []
  for row in read_csv_rows(file, state, delimiter=delimiter):
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


@contextlib.contextmanager
def _open_parquet(file: File, state: ReadState) -> Iterator[Any]:
  """Opens a Parquet file; what fails in the body is a DataError, too."""
  from pyarrow import parquet

  try:
    with files.open_file(file) as raw:
      yield parquet.ParquetFile(raw, pre_buffer=False, buffer_size=2**20)
  except TrueNegsError:
    raise
  # Arrow raises half a dozen types, and damage leads to yet others.
  except Exception as error:
    raise DataError(
      f"{state.location()}: not a Parquet file, or compressed, damaged or cut"
      f" off ({type(error).__name__}: {error}). Unpack it or download it again."
    ) from error


def read_parquet(
  file: File, state: ReadState, *, column: str
) -> Iterator[str | None]:
  """Yields the text column of a Parquet file; holds a part of a row group."""
  with _open_parquet(file, state) as table:
    check_column(table.schema_arrow, column, file.path)
    size = _batch_size(table.metadata, column, file.path)
    batches = table.iter_batches(size, columns=[column], use_threads=False)
    yield from read_batches(batches, state, column=column)


def count_parquet(file: File) -> int:
  """Returns the number of records, which the end of the file has."""
  with _open_parquet(file, ReadState(where=file.path)) as table:
    return int(table.metadata.num_rows)


def _batch_size(metadata: Any, column: str, where: str) -> int:
  """Returns how many records to hold; refuses records that are too long."""
  size = BATCH_RECORDS
  groups = map(metadata.row_group, range(metadata.num_row_groups))
  for chunk in (x.column(i) for x in groups for i in range(x.num_columns)):
    if chunk.path_in_schema == column:
      num_bytes = chunk.total_uncompressed_size
      _check_size(where, num_bytes // max(1, chunk.num_values))
      if num_bytes > max(MAX_RECORD_BYTES, 16 * chunk.total_compressed_size):
        size = 1  # a dictionary may hold one long text for many records
  return size


def _check_size(where: str, num_bytes: int) -> None:
  if num_bytes > MAX_RECORD_BYTES:
    raise DataError(
      f"{where}: a record of more than {MAX_RECORD_BYTES:,} bytes. Split the"
      " record, or remove it."
    )


def read_batches(
  batches: "Iterable[pyarrow.RecordBatch | pyarrow.Table]",
  state: ReadState,
  *,
  column: str,
) -> Iterator[str | None]:
  """Yields the texts of a column."""
  import pyarrow
  import pyarrow.compute

  state.unit = "record"
  state.number = 0
  for batch in batches:
    check_column(batch.schema, column, state.where)
    values = batch.column(column)
    if pyarrow.types.is_dictionary(values.type):
      values.validate(full=True)
    texts = values.cast(pyarrow.large_binary())
    texts.validate(full=True)  # damaged offsets would crash the process
    longest = pyarrow.compute.max(pyarrow.compute.binary_length(texts)).as_py()
    _check_size(f"{state.where}: after record {state.number}", longest or 0)
    for text in texts.to_pylist():
      state.number += 1
      yield None if text is None else state.decode(text)


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


def check_name(where: str, names: list[str], column: str) -> None:
  """Raises a DataError unless the column exists once."""
  if (count := names.count(column)) != 1:
    first = ", ".join(names[:20]) or "none"
    problem = f"{count} columns" if count else "no column"
    raise DataError(
      f"{where}: {problem} {column!r}. Columns: {first}. Set column=NAME."
    )


# Name -> yields a column of the records of a file.
RECORD_FORMATS: dict[str, Callable[..., Iterator[str | None]]] = {
  "csv": read_csv,
  "jsonl": read_jsonl,
  "parquet": read_parquet,
}
TEXT = "text"  # the format of all other files
SUFFIXES = {
  ".csv": "csv",
  ".json": "jsonl",
  ".jsonl": "jsonl",
  ".parquet": "parquet",
  ".tsv": "csv",
  ".txt": TEXT,
}


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


# One reader per process: parsing WordNet takes seconds, its text 11 MB.
@functools.lru_cache(maxsize=1)
def read_wordnet(reader: WordNetReader) -> tuple[str, ...]:
  """Returns the definitions and example sentences of WordNet, one a line.

  A document holds 64 neighboring synsets of one of WordNet's lexicographer
  files, which have related meanings (all persons, all plants, ...).
  """
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
