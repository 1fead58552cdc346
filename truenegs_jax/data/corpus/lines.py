"""The lines of a file as checked text.

UTF-8 is checked a block at a time, in C; the exact place of a bad byte is
looked for once there is one. CR and CRLF end a line as LF does.
"""

import itertools
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from truenegs_jax.data.corpus import read_state
from truenegs_jax.data.corpus.files import File, read_blocks
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime.errors import DataError

LINE_END = re.compile(rb"\r\n?|\n")
# Longest first: that of UTF-32 begins with that of UTF-16.
FOREIGN_MARKS = {
  b"\xff\xfe\0\0": "UTF-32",
  b"\0\0\xfe\xff": "UTF-32",
  b"\xff\xfe": "UTF-16",
  b"\xfe\xff": "UTF-16",
}


def read_text(
  file: File, reading: ReadState, *, records: bool = False
) -> Iterator[str]:
  """Runs of whole lines, some hundred KB each; every line ends in "\\n".

  Args:
    records: a line holds a record, which may be longer than a line of text
      but cannot be cut. A longer line of text is refused before it is read to
      its end, or cut, at white space where there is some.

  Raises:
    DataError: cannot be read; by line and byte: not UTF-8, a NUL, too long.
  """
  limit = read_state.MAX_RECORD_BYTES if records else read_state.MAX_LINE_BYTES
  # Not longer than a line may be: only the first of a block can be too long.
  size = min(read_state.BLOCK_BYTES, limit)
  rest, place = b"", _Place(file.path, 0, 0)
  # No block is empty, but the one that stands for the end.
  for block in itertools.chain(read_blocks(file, reading, size=size), [b""]):
    data = rest + block
    while at := _cut_of_first_line(data, limit):
      _refuse_long_line(place, limit, reading, records=records)
      yield _decode(data[:at], place, reading) + "\n"
      data, place = data[at:], place._replace(offset=place.offset + at)
    # A CR at the end of a block may be half of a CRLF.
    end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
    end = end if block else len(data)
    rest = data[end:]
    if end:
      text = _decode(data[:end], place, reading)
      yield text if text.endswith("\n") else text + "\n"
      num_lines = place.num_lines + text.count("\n")
      place = _Place(file.path, place.offset + end, num_lines)


class _Place(NamedTuple):
  """Where a run of bytes begins: so many bytes and lines come before it."""

  path: pathlib.Path
  offset: int
  num_lines: int

  def of(self, data: bytes, index: int) -> tuple[str, str]:
    """File and line, and byte of the file, of `data[index]`."""
    line = self.num_lines + len(LINE_END.findall(data[:index])) + 1
    return f"{self.path}:{line}", f"byte {self.offset + index:,}"


def _cut_of_first_line(data: bytes, limit: int) -> int:
  """Where to cut the first line; 0 where it is not over the limit."""
  if len(data) <= limit:
    return 0
  end = LINE_END.search(data)
  if (end.start() if end else len(data)) <= limit:
    return 0
  at = max(data.rfind(b" ", 0, limit), data.rfind(b"\t", 0, limit)) + 1
  if not at:
    at = limit
    while at > limit - 3 and data[at] & 0xC0 == 0x80:  # within a character
      at -= 1
  return at


def _refuse_long_line(
  place: _Place, limit: int, reading: ReadState, *, records: bool
) -> None:
  line, byte = place.of(b"", 0)
  message = f"{line}: a line of more than {limit:,} bytes (from {byte})"
  if records:
    raise DataError(f"{message}; split the record, or leave it out.")
  reading.mend(
    read_state.LONG_LINES,
    f"{message}; put one sentence or paragraph on a line, and a blank line"
    " between documents",
  )


def _decode(data: bytes, place: _Place, reading: ReadState) -> str:
  if not place.offset:
    _refuse_foreign_mark(data, place)
  try:
    text = data.decode()
  except UnicodeDecodeError as error:
    text = data.decode(errors="replace")
    line, byte = place.of(data, error.start)
    reading.mend(
      read_state.NOT_UTF8,
      f"{line}: byte 0x{data[error.start]:02x} at {byte} is not UTF-8:"
      " convert the file, for example with `iconv -f LATIN1 -t UTF-8`, or"
      " repair the line",
      count=text.count("\ufffd") - data.count("\ufffd".encode()),
    )
  if "\0" in text:
    line, byte = place.of(data, data.index(0))
    reading.mend(
      read_state.NUL,
      f"{line}: NUL at {byte}; this is not plain text (UTF-16, or a binary"
      " file?): convert it to UTF-8",
      count=text.count("\0"),
    )
    text = text.replace("\0", "\ufffd")
  if "\r" in text:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
  return text if place.offset else text.removeprefix("\ufeff")


def _refuse_foreign_mark(data: bytes, place: _Place) -> None:
  for mark, name in FOREIGN_MARKS.items():
    if data.startswith(mark):
      raise DataError(
        f"{place.path}: begins with the byte-order mark of {name}: convert it"
        f" to UTF-8, for example with `iconv -f {name} -t UTF-8`."
      )
