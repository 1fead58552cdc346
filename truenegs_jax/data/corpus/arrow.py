"""Reads the text column of record batches, and checks the columns of records.

pyarrow takes a quarter of a second to import, so functions import it.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime.errors import DataError

if TYPE_CHECKING:
  import pyarrow

BATCH_RECORDS = 64  # few calls, and little memory for all but novels


def read_batches(
  batches: "Iterable[pyarrow.RecordBatch | pyarrow.Table]",
  state: ReadState,
  *,
  column: str,
  by: str = "",
  num_records: int | None,
) -> Iterator[str | None]:
  """Yields the texts of a column; `num_records` of all batches, or None.

  `state.group` is the value of the column `by`, if there is one.

  Raises:
    DataError: no such columns, or a text is not UTF-8.
    Exception: a batch is damaged. Arrow raises half a dozen types.
  """
  state.unit, state.number = "record", 0
  if num_records is None:
    state.fraction_read = None
  for batch in batches:
    check_column(batch.schema, column, state.where, by=by)
    texts = _to_bytes(batch.column(column))
    groups: Iterable[object] = itertools.repeat(None, len(texts))
    if by:
      batch.column(by).validate(full=True)
      groups = batch.column(by).to_pylist()
    for text, state.group in zip(texts, groups, strict=True):
      state.number += 1
      yield None if text is None else state.decode(text)
    if num_records is not None:
      state.advance(state.number / max(1, num_records))


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


def _is_text(kind: "pyarrow.DataType") -> bool:
  import pyarrow

  if pyarrow.types.is_dictionary(kind):
    kind = kind.value_type
  texts = (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())
  return kind in texts


def _to_bytes(
  column: "pyarrow.Array | pyarrow.ChunkedArray",
) -> list[bytes | None]:
  import pyarrow

  if pyarrow.types.is_dictionary(column.type):
    column.validate(full=True)
  values = column.cast(pyarrow.large_binary())
  values.validate(full=True)  # damaged offsets would crash the process
  return values.to_pylist()
