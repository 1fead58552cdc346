"""Reads the lines of a file as checked UTF-8 text.

Blocks are decoded at once, in C; only after an error the position of the bad
byte is computed. CR and CRLF end a line like LF.
"""

import io
import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from truenegs_jax.data.corpus import read_state
from truenegs_jax.data.corpus.files import File, read_blocks
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import DataError

LINE_END = re.compile(rb"\r\n?|\n")
# UTF-32 first: its little-endian mark begins with that of UTF-16.
BYTE_ORDER_MARKS = {
  b"\xff\xfe\0\0": "UTF-32",
  b"\0\0\xfe\xff": "UTF-32",
  b"\xff\xfe": "UTF-16",
  b"\xfe\xff": "UTF-16",
}


def read_records(file: File, state: ReadState) -> Iterator[str]:
  """Yields lines that hold records, each with a "\\n" at its end.

  Raises:
    DataError: as `read_text`.
  """
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


def read_text(
  file: File, state: ReadState, *, records: bool = False
) -> Iterator[str]:
  """Yields groups of complete lines, of some hundred KB; all end in "\\n".

  Args:
    records: every line holds a record, which may be longer than a line of text
      (MAX_RECORD_BYTES) but is never cut. A line of text above MAX_LINE_BYTES
      is refused before its end is read, or cut, if possible at white space.

  Raises:
    DataError: the file cannot be read, or a line is not UTF-8, has a NUL or is
      too long; the message gives line and byte.
  """
  limit = read_state.MAX_RECORD_BYTES if records else read_state.MAX_LINE_BYTES
  # Blocks within the limit: only the first line of a block can exceed it.
  size = min(read_state.BLOCK_BYTES, limit)
  rest, start = b"", _Position(file.path, 0, 0)
  # The empty block marks the end.
  for block in itertools.chain(read_blocks(file, state, size=size), [b""]):
    data = rest + block
    while end := _cut_of_first_line(data, limit):
      _check_long_line(start, limit, state, records=records)
      yield _decode(data[:end], start, state) + "\n"
      data, start = data[end:], start._replace(offset=start.offset + end)
    # A CR at the end of a block may be half of a CRLF.
    end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
    end = end if block else len(data)
    rest = data[end:]
    if end:
      text = _decode(data[:end], start, state)
      yield text if text.endswith("\n") else text + "\n"
      num_lines = start.num_lines + text.count("\n")
      start = _Position(file.path, start.offset + end, num_lines)


class _Position(NamedTuple):
  """Start of some bytes of a file: the bytes and lines before it."""

  path: str
  offset: int
  num_lines: int

  def locate(self, data: bytes, index: int) -> tuple[str, str]:
    """Returns "FILE:LINE" and "byte N" of `data[index]`, for messages."""
    line = self.num_lines + len(LINE_END.findall(data[:index])) + 1
    return f"{self.path}:{line}", f"byte {self.offset + index:,}"


def _cut_of_first_line(data: bytes, limit: int) -> int:
  """Returns where to cut the first line, or 0 if it is within the limit."""
  if len(data) <= limit:
    return 0
  end = LINE_END.search(data)
  if (end.start() if end else len(data)) <= limit:
    return 0
  cut = max(data.rfind(b" ", 0, limit), data.rfind(b"\t", 0, limit)) + 1
  if not cut:
    cut = limit
    while cut > limit - 3 and data[cut] & 0xC0 == 0x80:  # inside a character
      cut -= 1
  return cut


def _check_long_line(
  start: _Position, limit: int, state: ReadState, *, records: bool
) -> None:
  line, byte = start.locate(b"", 0)
  problem = f"{line}: a line of more than {limit:,} bytes (from {byte})."
  if records:
    raise DataError(f"{problem} Split the record, or remove it.")
  state.count_repair(
    read_state.LONG_LINES,
    f"{problem} Put one sentence or paragraph on a line, and a blank line"
    " between documents.",
  )


def _decode(data: bytes, start: _Position, state: ReadState) -> str:
  if not start.offset:
    _check_byte_order_mark(data, start.path)
  try:
    text = data.decode()
  except UnicodeDecodeError as error:
    line, byte = start.locate(data, error.start)
    text = state.decode(
      data,
      f"{line}: byte 0x{data[error.start]:02x} at {byte} is not UTF-8. Convert"
      " the file, for example with `iconv -f LATIN1 -t UTF-8`, or repair the"
      " line.",
    )
  if "\0" in text:
    line, byte = start.locate(data, data.index(0))
    state.count_repair(
      read_state.NUL,
      f"{line}: NUL at {byte}. Plain text has none, but UTF-16 and binary files"
      " do. Convert the file to UTF-8.",
      count=text.count("\0"),
    )
    text = text.replace("\0", "\ufffd")
  if "\r" in text:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
  return text if start.offset else text.removeprefix("\ufeff")


def _check_byte_order_mark(data: bytes, path: str) -> None:
  for mark, encoding in BYTE_ORDER_MARKS.items():
    if data.startswith(mark):
      raise DataError(
        f"{path}: begins with the byte-order mark of {encoding}. Convert it to"
        f" UTF-8, for example with `iconv -f {encoding} -t UTF-8`."
      )
