"""Forms documents: lines parted by "\\n", none of them blank, at least one.

What a document is, `document=` of a part of the corpus says:

* "block": blank lines part documents;
* "record": every record is one, and every line of a plain text;
* "file": a file is one; blank lines are left out.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from truenegs_jax.data.corpus import read_state
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime.errors import DataError

RULES = ("block", "record", "file")
BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")
SURROGATES = re.compile("[\ud800-\udfff]")


def from_lines(
  runs: Iterable[str], rule: str, reading: ReadState
) -> Iterator[str]:
  """Documents of a text.

  Args:
    runs: runs of whole lines, each line ending in "\\n", checked.
    rule: one of RULES.
  """
  if rule == "record":
    for run in runs:
      for line in run.split("\n"):
        if line and not line.isspace():
          yield line
    return
  if rule == "file":
    runs = (BLANK_LINES.sub("\n", "\n" + run)[1:] for run in runs)
  begun, size = [""], 0  # parts of the document that is not at its end yet
  for run in runs:
    first, *others = BLANK_LINES.split("\n" + run)
    begun.append(first[1:])
    size += num_bytes(first)
    if others:
      yield from _cut("".join(begun).removesuffix("\n"), reading)
      for document in others[:-1]:
        yield from _cut(document, reading)
      begun, size = [others[-1]], num_bytes(others[-1])
    if size > read_state.MAX_DOCUMENT_BYTES:
      *complete, rest = _cut("".join(begun), reading)
      yield from complete
      begun, size = [rest], num_bytes(rest)
  yield from _cut("".join(begun).removesuffix("\n"), reading)


def from_records(
  values: Iterable[Any], rule: str, reading: ReadState
) -> Iterator[str]:
  """Documents of records.

  Args:
    values: the text of each record; None, blank and unfit ones are counted.
      Meanwhile `reading` names the place of the record at hand.
    rule: one of RULES; "block" parts a record at its blank lines, too.

  Raises:
    DataError: not a text; where errors are strict, a NUL, a lone surrogate or
      a line of more than 1 MB.
  """
  texts = (fit for v in values if (fit := _fit(v, reading)) is not None)
  if rule != "record":
    yield from from_lines((t + "\n\n" for t in texts), rule, reading)
    return
  for text in texts:
    if "\n" in text:
      text = BLANK_LINES.sub("\n", f"\n{text}\n")[1:-1]
    yield from _cut(text, reading)


def num_bytes(text: str) -> int:
  """Size of a text in UTF-8."""
  return len(text) if text.isascii() else len(text.encode())


def _cut(text: str, reading: ReadState) -> list[str]:
  """Cuts what is too long for a document, at the ends of lines.

  No document for no text. Each but the last is as long as whole lines
  allow, so that it does not depend on what follows.
  """
  limit = read_state.MAX_DOCUMENT_BYTES
  if len(text) * 4 <= limit or num_bytes(text) <= limit:
    return [text] if text else []
  data, start, documents = text.encode(), 0, []
  while len(data) - start > limit:
    end = data.rfind(b"\n", start, start + limit + 1)
    end = end if end >= 0 else data.find(b"\n", start)
    if end < 0 or end + 1 == len(data):
      break
    documents.append(data[start:end].decode())
    reading.oddities[read_state.LONG_DOCUMENTS] += 1
    start = end + 1
  return [*documents, data[start:].decode()]


def _fit(value: Any, reading: ReadState) -> str | None:
  """The text of a record, mended where need be; None to leave it out."""
  if value is None:
    reading.oddities[read_state.NULL_VALUES] += 1
    return None
  if not isinstance(value, str):
    raise DataError(
      f"{reading.place}: the column holds {type(value).__name__}, not text;"
      " name another one with column=."
    )
  if not value.isascii() and not _is_encodable(value):
    value, count = SURROGATES.subn("\ufffd", value)
    reading.mend(
      read_state.SURROGATES,
      f"{reading.place}: half of a surrogate pair ({count} in all), which is"
      " no character: repair the record",
      count=count,
    )
  if "\0" in value:
    reading.mend(
      read_state.NUL,
      f"{reading.place}: NUL in the text: repair the record",
      count=value.count("\0"),
    )
    value = value.replace("\0", "\ufffd")
  if "\r" in value:
    value = value.replace("\r\n", "\n").replace("\r", "\n")
  if not value or value.isspace():
    reading.oddities[read_state.BLANK_DOCUMENTS] += 1
    return None
  if len(value) * 4 > read_state.MAX_LINE_BYTES:
    value = "\n".join(_cut_lines(value, reading))
  return value


def _is_encodable(text: str) -> bool:
  try:
    text.encode()  # ten times as fast as to search
  except UnicodeEncodeError:
    return False
  return True


def _cut_lines(text: str, reading: ReadState) -> Iterator[str]:
  limit = read_state.MAX_LINE_BYTES
  for line in text.split("\n"):
    while num_bytes(line) > limit:
      reading.mend(
        read_state.LONG_LINES,
        f"{reading.place}: a line of more than {limit:,} bytes within the"
        " text; put one sentence or paragraph on a line",
      )
      head = line.encode()[:limit].decode(errors="ignore")
      at = max(head.rfind(" "), head.rfind("\t")) + 1 or len(head)
      yield line[:at]
      line = line[at:]
    yield line
