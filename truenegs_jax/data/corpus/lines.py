"""Reads the lines of a file as checked UTF-8 text.

CR and CRLF end a line like LF.
"""

import codecs
import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

from truenegs_jax.data.corpus import read_state
from truenegs_jax.data.corpus.files import File, read_blocks
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import DataError

# The one of little-endian UTF-32 begins as that of UTF-16.
BYTE_ORDER_MARKS = (
  codecs.BOM_UTF16_LE,
  codecs.BOM_UTF16_BE,
  codecs.BOM_UTF32_BE,
)


def read_records(file: File, state: ReadState) -> Iterator[str]:
  """Yields lines that hold records, as `read_text`; each ends in "\\n"."""
  for lines in read_text(file, state, records=True):
    # `splitlines` would also split at U+2028, which texts contain.
    yield from io.StringIO(lines, newline="\n")


def read_objects(
  file: File, state: ReadState
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields the number and the JSON object of each line that is not blank.

  Raises:
    DataError: as `read_text`; or a line is not a JSON object.
  """
  for number, line in enumerate(read_records(file, state), start=1):
    if line.isspace():
      continue
    try:
      record = json_text.parse_loosely(line[:-1])
    except ValueError as error:
      raise DataError(
        f"{file.path}:{number}: {error}. Write one JSON object per line;"
        " `jq -c '.[]'` converts an array."
      ) from error
    yield number, record


def read_csv_rows(
  file: File, state: ReadState, *, delimiter: str = ","
) -> Iterator[tuple[int, list[str]]]:
  """Yields the first line and the fields of each row (RFC 4180).

  Raises:
    DataError: as `read_text`; or a quote is broken.
  """
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


def read_text(
  file: File, state: ReadState, *, records: bool = False
) -> Iterator[str]:
  """Yields groups of complete lines, of some hundred KB; all end in "\\n".

  Args:
    records: every line holds a record, which may be longer than a line of text
      but is never cut. A longer line of text is refused before its end is read,
      or cut.

  Raises:
    DataError: the file cannot be read, or a line is not UTF-8, has a NUL or is
      too long; the message gives the line.
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
  """Returns where to cut a line, if possible at white space, and counts it.

  Raises:
    DataError: errors are strict.
  """
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
  """Decodes lines; refuses or removes a byte-order mark before the first."""
  if state.number == 1:
    if data.startswith(BYTE_ORDER_MARKS):
      encoding = "UTF-32" if b"\0\0" in data[:4] else "UTF-16"
      raise DataError(
        f"{state.where}: begins with the byte-order mark of {encoding}. Convert"
        f" it to UTF-8, for example with `iconv -f {encoding} -t UTF-8`."
      )
    data = data.removeprefix(codecs.BOM_UTF8)
  return state.decode(data)
