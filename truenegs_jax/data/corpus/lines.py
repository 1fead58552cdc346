"""Reads the lines of a file as checked UTF-8 text.

CR and CRLF end a line like LF.
"""

import codecs
import io
import itertools
from collections.abc import Iterator
from typing import Any

from truenegs_jax.data.corpus import read_state
from truenegs_jax.data.corpus.files import File, read_blocks
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import DataError

# Decodes a byte 0xNN that is not UTF-8 as U+DCNN, which UTF-8 never holds.
ESCAPE = "surrogateescape"
BYTE_ORDER_MARKS = ("\udcff\udcfe", "\udcfe\udcff", "\0\0\udcfe\udcff")


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
      too long; the message gives the line.
  """
  limit = read_state.MAX_RECORD_BYTES if records else read_state.MAX_LINE_BYTES
  # Blocks within the limit: only the first line of a block can exceed it.
  size = min(read_state.BLOCK_BYTES, limit)
  utf8 = codecs.getincrementaldecoder("utf-8-sig")(ESCAPE)
  decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
  rest, line = "", 1
  # The empty block marks the end.
  for block in itertools.chain(read_blocks(file, state, size=size), [b""]):
    rest += decoder.decode(block, final=not block)
    while cut := _cut_of_first_line(rest, limit):
      problem = f"{file.path}:{line}: a line of more than {limit:,} bytes."
      if records:
        raise DataError(f"{problem} Split the record, or remove it.")
      state.count_repair(
        read_state.LONG_LINES,
        f"{problem} Put one sentence or paragraph on a line, and a blank line"
        " between documents.",
      )
      yield _check(rest[:cut], file, line, state) + "\n"
      rest = rest[cut:]
    end = rest.rfind("\n") + 1 if block else len(rest)
    if end:
      text, rest = _check(rest[:end], file, line, state), rest[end:]
      yield text if text.endswith("\n") else text + "\n"
      line += text.count("\n")


def cut_of_line(data: bytes, limit: int) -> int:
  """Returns where to cut a line above the limit, if possible at white space."""
  cut = max(data.rfind(b" ", 0, limit), data.rfind(b"\t", 0, limit)) + 1
  if not cut:
    cut = limit
    while cut > limit - 3 and data[cut] & 0xC0 == 0x80:  # inside a character
      cut -= 1
  return cut


def _cut_of_first_line(text: str, limit: int) -> int:
  """Returns where to cut the first line, or 0 if it is within the limit."""
  end = text.find("\n")
  length = end if end >= 0 else len(text)
  if length * 4 <= limit:
    return 0
  data = text[:length].encode(errors=ESCAPE)
  if len(data) <= limit:
    return 0
  return len(data[: cut_of_line(data, limit)].decode(errors=ESCAPE))


def _check(text: str, file: File, line: int, state: ReadState) -> str:
  """Returns the text without bad characters, which it refuses or replaces."""
  if line == 1 and text.startswith(BYTE_ORDER_MARKS):
    encoding = "UTF-32" if "\0\0" in text[:4] else "UTF-16"
    raise DataError(
      f"{file.path}: begins with the byte-order mark of {encoding}. Convert it"
      f" to UTF-8, for example with `iconv -f {encoding} -t UTF-8`."
    )
  try:
    text.encode()  # ten times as fast as a search for surrogates
  except UnicodeEncodeError as error:
    place = f"{file.path}:{line + text.count(chr(10), 0, error.start)}"
    text = state.decode(
      text.encode(errors=ESCAPE),
      f"{place}: byte 0x{ord(text[error.start]) - 0xDC00:02x} is not UTF-8."
      " Convert the file, for example with `iconv -f LATIN1 -t UTF-8`, or"
      " repair the line.",
    )
  if "\0" in text:
    place = f"{file.path}:{line + text.count(chr(10), 0, text.index(chr(0)))}"
    state.count_repair(
      read_state.NUL,
      f"{place}: NUL in the text. Plain text has none, but UTF-16 and binary"
      " files do. Convert the file to UTF-8.",
      count=text.count("\0"),
    )
    text = text.replace("\0", "\ufffd")
  return text
