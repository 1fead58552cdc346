"""Forms documents: lines separated by "\\n", at least one, none of them blank.

The option `document=` of a part sets the rule:

* "block": blank lines separate documents;
* "record": every record is a document, in plain text every line;
* "file": every file is a document, without its blank lines;
* "join": consecutive records, in plain text blocks, are one document.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator

from truenegs_jax.data.corpus import readers
from truenegs_jax.data.corpus.readers import ReadState
from truenegs_jax.runtime.errors import DataError

RULES = ("block", "record", "file")
JOIN = "join"  # of the documents of a format's default rule
SURROGATES = re.compile("[\ud800-\udfff]")
Texts = Iterable[str]


def from_lines(groups: Texts, rule: str, state: ReadState) -> Iterator[str]:
  """Forms the documents of a text, which is given as groups of lines."""
  lines: Iterator[str] = itertools.chain.from_iterable(
    group.removesuffix("\n").split("\n") for group in groups
  )
  if rule != "block":
    lines = (line for line in lines if line and not line.isspace())
  if rule == "record":
    return lines
  return join(lines, state)


def from_records(
  values: Iterable[object], rule: str, state: ReadState
) -> Iterator[str]:
  """Forms the documents of records, `state` being at the position of each.

  None and blank texts are counted and left out. The rule "block" also splits a
  record at its blank lines.
  """
  texts = filter(None, (_clean(value, state) for value in values))
  if rule != "record":
    yield from from_lines((text + "\n\n" for text in texts), rule, state)
    return
  for text in texts:
    if "\n" in text:
      yield from from_lines([text], "file", state)
    else:
      yield text


def join(
  texts: Texts, state: ReadState, *, num_chars: float = math.inf
) -> Iterator[str]:
  """Joins texts up to each blank one, or until they have `num_chars`.

  A document also ends before it would exceed 1 MB, which is counted.
  """
  joined: list[str] = []
  chars = 0
  size = 0  # in bytes, with the line ends
  for text in itertools.chain(texts, [""]):
    is_blank = not text or text.isspace()
    is_complete = is_blank or chars >= num_chars
    text_size = num_bytes(text) + 1
    is_long = size + text_size > readers.MAX_DOCUMENT_BYTES + 1
    if joined and (is_complete or is_long):
      if not is_complete:
        state.repairs[readers.LONG_DOCUMENTS] += 1
      yield "\n".join(joined)
      joined = []
      chars = 0
      size = 0
    if not is_blank:
      joined.append(text)
      chars += len(text)
      size += text_size


def drop_short_lines(
  texts: Texts, state: ReadState, *, min_chars: int
) -> Iterator[str]:
  """Leaves out and counts lines of less than `min_chars` characters."""
  for text in texts:
    lines = text.split("\n")
    long_lines = [line for line in lines if len(line) >= min_chars]
    if num_short := len(lines) - len(long_lines):
      state.repairs[readers.SHORT_LINES.format(min_chars)] += num_short
    if long_lines:
      yield "\n".join(long_lines)


def num_bytes(text: str) -> int:
  """Returns the size of a text in UTF-8."""
  return len(text) if text.isascii() else len(text.encode())


def _clean(value: object, state: ReadState) -> str:
  """Returns the repaired text of a record, or "" to leave it out."""
  if value is None:
    state.repairs[readers.NULL_VALUES] += 1
    return ""
  if not isinstance(value, str):
    raise DataError(
      f"{state.location()}: the column holds {type(value).__name__}, not text."
      " Set column=NAME to a column of text."
    )
  try:
    value.encode()  # ten times as fast as a search for surrogates
  except UnicodeEncodeError:
    value, count = SURROGATES.subn("\ufffd", value)
    state.count_repair(
      readers.SURROGATES,
      f"{state.location()}: half of a surrogate pair ({count} in all) is not a"
      " character. Repair the record.",
      count=count,
    )
  if "\0" in value:
    value = state.decode(value.encode())
  if "\r" in value:
    value = value.replace("\r\n", "\n").replace("\r", "\n")
  if not value or value.isspace():
    state.repairs[readers.BLANK_DOCUMENTS] += 1
    return ""
  if len(value) * 4 > readers.MAX_LINE_BYTES:
    lines = value.encode().split(b"\n")
    pieces = (readers.cut_line(line, state) for line in lines)
    value = b"\n".join(itertools.chain.from_iterable(pieces)).decode()
  return value
