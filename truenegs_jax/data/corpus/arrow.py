"""Text columns of Arrow tables: Parquet files and data sets of `datasets`.

pyarrow, which comes with `datasets`, takes a quarter of a second to import; it
is imported where it is used.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from truenegs_jax.data.corpus.read_state import NOT_UTF8, ReadState
from truenegs_jax.runtime.errors import DataError, TrueNegsError

# Few calls, and little memory even where every record is of 1 MB.
MAX_BATCH_RECORDS = 256
BATCH_BYTES = 4_000_000


def read_parquet(
  raw: BinaryIO, reading: ReadState, *, column: str
) -> Iterator[str | None]:
  """The texts of a column, read a part of a row group at a time.

  Raises:
    DataError: damaged, no such column, or it does not hold text.
  """
  from pyarrow import parquet

  reading.unit, reading.number = "record", 0
  with damage(reading, "no Parquet file, or damaged or cut off"):
    table = parquet.ParquetFile(raw, pre_buffer=False, buffer_size=2**20)
    schema, metadata = table.schema_arrow, table.metadata
    column_bytes = sum(
      metadata.row_group(i).total_byte_size
      for i in range(metadata.num_row_groups)
    )
    batch_records = records_of_batch(column_bytes, metadata.num_rows)
    check_column(schema, column, reading.where)
    batches = table.iter_batches(
      batch_records, columns=[column], use_threads=False
    )
  yield from read_batches(
    batches, reading, column=column, num_records=metadata.num_rows
  )


def read_batches(
  batches: Iterator[Any],
  reading: ReadState,
  *,
  column: str,
  num_records: int | None,
) -> Iterator[str | None]:
  """The texts of a column of record batches or tables.

  Args:
    num_records: of all of them; None where not known.

  Raises:
    DataError: damaged, or not UTF-8.
  """
  num_read = 0
  if num_records is None:
    reading.fraction_read = None
  while True:
    reading.number = num_read + 1
    with damage(reading, "damaged"):
      batch = next(batches, None)
      if batch is None:
        return
      check_column(batch.schema, column, reading.where)
      texts = _texts(batch.column(column), reading)
    for number, text in enumerate(texts, start=num_read + 1):
      reading.number = number
      yield text
    num_read += len(texts)
    if num_records is not None:
      reading.advance(num_read / max(1, num_records))


def check_column(schema: Any, column: str, where: str) -> None:
  """Refuses a column that is not there or is not of text.

  Args:
    schema: `pyarrow.Schema`.
  """
  import pyarrow

  if column not in schema.names:
    known = ", ".join(schema.names[:20]) or "none"
    raise DataError(
      f"{where}: no column {column!r}; there are: {known}. Name one with"
      " column=."
    )
  kind = schema.field(column).type
  if pyarrow.types.is_dictionary(kind):
    kind = kind.value_type
  if not _is_text(kind):
    texts = [field.name for field in schema if _is_text(field.type)]
    raise DataError(
      f"{where}: column {column!r} holds {kind}, not text; columns of text:"
      f" {', '.join(texts[:20]) or 'none'}. Name one with column=."
    )


def records_of_batch(num_bytes: int, num_records: int) -> int:
  """How many records to hold at a time, by the mean size of one."""
  mean = max(1, num_bytes // max(1, num_records))
  return max(1, min(MAX_BATCH_RECORDS, BATCH_BYTES // mean))


@contextlib.contextmanager
def damage(reading: ReadState, what: str) -> Iterator[None]:
  """Turns whatever a library says of damaged data into a DataError."""
  try:
    yield
  except TrueNegsError:
    raise
  # Arrow raises half a dozen kinds, and what else the damage leads to.
  except Exception as error:
    raise DataError(
      f"{reading.place}: {what} ({type(error).__name__}: {error}): fetch it"
      " again."
    ) from error


def _is_text(kind: Any) -> bool:
  import pyarrow

  types = pyarrow.types
  return any(
    is_kind(kind)
    for is_kind in (
      types.is_string,
      types.is_large_string,
      types.is_string_view,
    )
  )


def _texts(column: Any, reading: ReadState) -> list[str | None]:
  import pyarrow

  if isinstance(column, pyarrow.ChunkedArray):
    chunks = [_texts(chunk, reading) for chunk in column.chunks]
    return [text for chunk in chunks for text in chunk]
  if pyarrow.types.is_dictionary(column.type):
    column.validate(full=True)
    column = column.dictionary_decode()
  column = column.cast(pyarrow.large_string())
  try:
    column.validate(full=True)  # without it damaged offsets end the process
    return column.to_pylist()
  except pyarrow.ArrowInvalid:
    values = column.view(pyarrow.large_binary())
    values.validate(full=True)
  return _mended(values.to_pylist(), reading)


def _mended(values: list[bytes | None], reading: ReadState) -> list[str | None]:
  texts: list[str | None] = []
  first = reading.number
  for number, value in enumerate(values, start=first):
    reading.number = number
    text = None if value is None else value.decode(errors="replace")
    if value is not None and text is not None and text.encode() != value:
      reading.mend(
        NOT_UTF8,
        f"{reading.place}: not UTF-8: write the file anew",
        count=text.count("\ufffd") - value.count("\ufffd".encode()),
      )
    texts.append(text)
  return texts
