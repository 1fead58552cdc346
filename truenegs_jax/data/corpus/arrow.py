"""Reads the text column of Parquet files and of data sets of `datasets`.

pyarrow takes a quarter of a second to import, so functions import it.
"""

import contextlib
import io
import itertools
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime.errors import DataError, TrueNegsError

if TYPE_CHECKING:
  import pyarrow

# Few calls, and little memory even if every record has 1 MB.
MAX_BATCH_RECORDS = 256
BATCH_BYTES = 4_000_000


def read_parquet(
  raw: io.RawIOBase, state: ReadState, *, column: str, by: str = ""
) -> Iterator[str | None]:
  """Yields the texts of a column, holding only a part of a row group.

  Raises:
    DataError: the file is damaged, or it has no such column of text.
  """
  from pyarrow import parquet

  with as_data_errors(state, "not a Parquet file, or damaged or cut off"):
    table = parquet.ParquetFile(raw, pre_buffer=False, buffer_size=2**20)
    metadata = table.metadata
    column_bytes = sum(
      metadata.row_group(i).total_byte_size
      for i in range(metadata.num_row_groups)
    )
    check_column(table.schema_arrow, column, state.where, by=by)
    batches = table.iter_batches(
      records_per_batch(column_bytes, metadata.num_rows),
      columns=[column, *filter(None, [by])],
      use_threads=False,
    )
  yield from read_batches(
    batches, state, column=column, by=by, num_records=metadata.num_rows
  )


def read_batches(
  batches: "Iterator[pyarrow.RecordBatch | pyarrow.Table]",
  state: ReadState,
  *,
  column: str,
  by: str = "",
  num_records: int | None,
) -> Iterator[str | None]:
  """Yields the texts of a column; `num_records` of all batches, or None.

  `state.group` is the value of the column `by`, if there is one.

  Raises:
    DataError: a batch is damaged, or a text is not UTF-8.
  """
  num_read, state.unit = 0, "record"
  if num_records is None:
    state.fraction_read = None
  while True:
    state.number = num_read + 1
    with as_data_errors(state, "damaged"):
      batch = next(batches, None)
      if batch is None:
        return
      check_column(batch.schema, column, state.where, by=by)
      texts = list(_texts(batch.column(column), state))
      groups = [None] * len(texts)
      if by:
        batch.column(by).validate(full=True)
        groups = batch.column(by).to_pylist()
    records = zip(texts, groups, strict=True)
    for number, (text, group) in enumerate(records, start=num_read + 1):
      state.number, state.group = number, group
      yield text
    num_read += len(texts)
    if num_records is not None:
      state.advance(num_read / max(1, num_records))


def check_column(
  schema: "pyarrow.Schema", column: str, where: str, *, by: str = ""
) -> None:
  """Raises a DataError unless `column` holds text and `by` exists."""
  check_names(where, schema.names, column=column, by=by)
  kind = schema.field(column).type
  if not _is_text(kind):
    texts = [field.name for field in schema if _is_text(field.type)]
    raise DataError(
      f"{where}: column {column!r} holds {kind}, not text. Columns of text:"
      f" {', '.join(texts[:20]) or 'none'}. Set column=NAME."
    )


def check_names(where: str, names: Collection[str], **options: str) -> None:
  """Raises a DataError unless the columns of all options exist once."""
  for option, column in options.items():
    if column and list(names).count(column) != 1:
      first = ", ".join(map(str, itertools.islice(names, 20))) or "none"
      raise DataError(
        f"{where}: no column {column!r}. Columns: {first}. Set {option}=NAME."
      )


def records_per_batch(num_bytes: int, num_records: int) -> int:
  """Returns how many records of the mean size to hold in memory at once."""
  mean = max(1, num_bytes // max(1, num_records))
  return max(1, min(MAX_BATCH_RECORDS, BATCH_BYTES // mean))


@contextlib.contextmanager
def as_data_errors(state: ReadState, problem: str) -> Iterator[None]:
  """Turns every error of a library on damaged data into a DataError."""
  try:
    yield
  except TrueNegsError:
    raise
  # Arrow raises half a dozen types, and damage leads to yet others.
  except Exception as error:
    raise DataError(
      f"{state.location()}: {problem} ({type(error).__name__}: {error})."
      " Download the file again."
    ) from error


def _is_text(kind: "pyarrow.DataType") -> bool:
  import pyarrow

  if pyarrow.types.is_dictionary(kind):
    kind = kind.value_type
  texts = (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())
  return kind in texts


def _texts(
  column: "pyarrow.Array | pyarrow.ChunkedArray", state: ReadState
) -> Iterator[str | None]:
  """Yields the texts of a column; moves `state` to each."""
  import pyarrow

  for chunk in getattr(column, "chunks", [column]):
    if pyarrow.types.is_dictionary(chunk.type):
      chunk.validate(full=True)
      chunk = chunk.dictionary_decode()
    values = chunk.cast(pyarrow.large_binary())
    values.validate(full=True)  # damaged offsets would crash the process
    for value in values.to_pylist():
      yield None if value is None else state.decode(value)
      state.number += 1
