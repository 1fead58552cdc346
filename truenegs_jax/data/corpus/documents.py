"""Forms documents: lines separated by "\\n", at least one, none of them blank.

The option `document=` of a part sets the rule:

* "block": blank lines separate documents;
* "record": every record is a document, in plain text every line;
* "file": every file is a document, without its blank lines;
* "join": consecutive records, in plain text blocks, are one document.
"""

import re
from collections.abc import Iterable, Iterator

from truenegs_jax.data.corpus import readers
from truenegs_jax.data.corpus.readers import ReadState
from truenegs_jax.runtime.errors import DataError

RULES = ("block", "record", "file")
JOIN = "join"  # of the documents of a format's default rule
BLANK_LINES = re.compile(r"\n(?:[^\S\n]*+\n)++")
SURROGATES = re.compile("[\ud800-\udfff]")
Texts = Iterable[str]


def from_lines(groups: Texts, rule: str, state: ReadState) -> Iterator[str]:
  """Forms the documents of a text, which is given as groups of lines."""
  if rule == "record":
    for group in groups:
      yield from (line for line in group.split("\n") if line.strip())
    return
  if rule == "file":
    groups = (BLANK_LINES.sub("\n", "\n" + group)[1:] for group in groups)
  unfinished, size = [""], 0  # text of the document whose end is not reached
  for group in groups:
    first, *others = BLANK_LINES.split("\n" + group)
    unfinished.append(first[1:])
    for text in others:
      yield from _cut("".join(unfinished).removesuffix("\n"), state)
      unfinished = [text]
    size = num_bytes(others[-1]) if others else size + num_bytes(first)
    if size > readers.MAX_DOCUMENT_BYTES:
      *complete, rest = _cut("".join(unfinished), state)
      yield from complete
      unfinished, size = [rest], num_bytes(rest)
  yield from _cut("".join(unfinished).removesuffix("\n"), state)


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
      text = BLANK_LINES.sub("\n", f"\n{text}\n")[1:-1]
    yield from _cut(text, state)


def join(texts: Texts, state: ReadState, *, num_chars: int) -> Iterator[str]:
  """Joins consecutive documents until they have at least `num_chars`.

  A joined document also ends before it would exceed 1 MB, which is counted.
  """
  joined: list[str] = []
  chars, size = 0, 0
  for text in texts:
    text_size = num_bytes(text) + 1  # with the line end
    is_long = size + text_size > readers.MAX_DOCUMENT_BYTES + 1
    if joined and (chars >= num_chars or is_long):
      if chars < num_chars:
        state.repairs[readers.LONG_DOCUMENTS] += 1
      yield "\n".join(joined)
      joined, chars, size = [], 0, 0
    joined.append(text)
    chars, size = chars + len(text), size + text_size
  if joined:
    yield "\n".join(joined)


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


def _cut(text: str, state: ReadState) -> list[str]:
  """Cuts a text at line ends into documents as long as 1 MB allows."""
  limit = readers.MAX_DOCUMENT_BYTES
  if len(text) * 4 <= limit or num_bytes(text) <= limit:
    return [text] if text else []
  data, start, documents = text.encode(), 0, []
  while len(data) - start > limit:
    end = data.rfind(b"\n", start, start + limit + 1)
    if end < start:  # repairs made a line longer
      end = data.find(b"\n", start + limit)
    if not start <= end < len(data) - 1:
      break
    documents.append(data[start:end].decode())
    state.repairs[readers.LONG_DOCUMENTS] += 1
    start = end + 1
  return [*documents, data[start:].decode()]


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
    lines = []
    for line in value.encode().split(b"\n"):
      while len(line) > readers.MAX_LINE_BYTES:
        cut = readers.cut_of_long_line(line, state)
        lines.append(line[:cut].decode())
        line = line[cut:]
      lines.append(line.decode())
    value = "\n".join(lines)
  return value
