"""The state of a pass over a part of a corpus: position, progress, repairs."""

import collections
import dataclasses

from truenegs_jax.runtime.errors import DataError

BLOCK_BYTES = 2**19  # read at once: few calls, little memory
MAX_LINE_BYTES = 1_000_000
# Longer ones are cut: a file without blank lines would be one document.
MAX_DOCUMENT_BYTES = 1_000_000
# A JSON or CSV record is held in memory. The longest novels have 10 MB, and
# JSON may write a letter in six bytes.
MAX_RECORD_BYTES = 16_000_000

# Keys of `ReadState.repairs` and of a manifest.
NOT_UTF8 = "bytes that are not UTF-8, replaced"
NUL = "NUL characters, replaced"
SURROGATES = "lone surrogates, replaced"
LONG_LINES = "cuts in lines over 1 MB"
LONG_DOCUMENTS = "cuts in documents over 1 MB"
BLANK_DOCUMENTS = "blank documents, left out"
NULL_VALUES = "null values, left out"
EMPTY_FILES = "files without text, left out"
SHORT_LINES = "lines under {} characters, left out"


@dataclasses.dataclass
class ReadState:
  """How to treat bad text, the current position, and counts of repairs."""

  # "strict" refuses bad text; "replace" repairs and counts it.
  errors: str = "strict"
  # Counts of what was replaced, cut or left out, by the names above.
  repairs: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  hint: str = ""  # sentence at the end of the message that refuses bad text
  # Of the part, 0 to 1; None if its size is unknown.
  fraction_read: float | None = 0.0
  where: str = ""  # the current file or data set
  unit: str = "line"  # what `number` counts, "line" or "record"
  number: int = 0  # of the current line or record, from 1
  _before: float = 0.0  # share of the part before the current file
  _share: float = 1.0  # share of the part in the current file

  def location(self, before: bytes = b"") -> str:
    """Returns the position for a message; `before` holds lines before it."""
    if not self.number:
      return self.where
    if self.unit == "line":
      number = self.number + before.count(b"\n")
      return f"{self.where}:{number}"
    return f"{self.where}: {self.unit} {self.number}"

  def begin_file(self, where: str, *, before: float, share: float) -> None:
    """Moves to the next file; the shares are of the part's bytes."""
    self.where, self.unit, self.number = where, "line", 0
    self._before, self._share = before, share

  def advance(self, fraction: float) -> None:
    """Updates `fraction_read` from the fraction of the file that is read."""
    self.fraction_read = self._before + self._share * min(1.0, fraction)

  def decode(self, data: bytes) -> str:
    """Decodes UTF-8 from the current position; replaces other bytes and NUL."""
    try:
      text = data.decode()
    except UnicodeDecodeError as error:
      start = error.start
      text = data.decode(errors="replace")
      self.count_repair(
        NOT_UTF8,
        f"{self.location(data[:start])}: byte 0x{data[start]:02x} is not UTF-8."
        " Convert the text, for example with `iconv -f LATIN1 -t UTF-8`, or"
        " repair it.",
        count=text.count("\ufffd") - data.count("\ufffd".encode()),
      )
    if "\0" in text:
      place = self.location(data[: data.index(b"\0")])
      self.count_repair(
        NUL,
        f"{place}: NUL in the text. UTF-16 and binary files have it. Convert"
        " the text to UTF-8.",
        count=text.count("\0"),
      )
      text = text.replace("\0", "\ufffd")
    return text

  def count_repair(self, repair: str, message: str, *, count: int = 1) -> None:
    """Counts a repair that the caller makes, if repairs are allowed."""
    if self.errors == "strict":
      raise DataError(f"{message} {self.hint}".rstrip())
    self.repairs[repair] += count
