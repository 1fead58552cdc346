"""The state of one pass over a part of a corpus, from its start to its end.

Bad text is refused by its place, or mended and counted.

  reading = ReadState(errors="replace")
  for text in jsonl(file=file, reading=reading, column="text"): ...
  reading.oddities  # what was mended, cut or left out, and how often
"""

import collections
import dataclasses

from truenegs_jax.runtime.errors import DataError

BLOCK_BYTES = 2**19  # of one read: few calls, and little memory
MAX_LINE_BYTES = 1_000_000
# Longer ones are cut: a file without blank lines would be one document.
MAX_DOCUMENT_BYTES = 1_000_000
# A JSON or CSV record stands in memory as a whole. The longest novels have 10
# MB, and JSON may write a letter in six bytes.
MAX_RECORD_BYTES = 16_000_000

NOT_UTF8 = "bytes that are not UTF-8, replaced"
NUL = "NUL characters, replaced"
SURROGATES = "lone surrogates, replaced"
LONG_LINES = "cuts in lines over 1 MB"
LONG_DOCUMENTS = "cuts in documents over 1 MB"
BLANK_DOCUMENTS = "blank documents, left out"
NULL_VALUES = "null values, left out"
EMPTY_FILES = "files without text, left out"


@dataclasses.dataclass
class ReadState:
  """How bad text is met, how far the reading is, and what it has met.

  Attributes:
    errors: "strict" refuses bad text; "replace" mends it and counts.
    oddities: what was mended, cut or left out, by the names above.
    done: share of the part that is read, 0 to 1; None where not known.
    where: the file or data set at hand.
    unit: what `number` counts: "line" or "record".
    number: of the record at hand, from 1.
    hint: ends what is refused: how its user may choose "replace".
  """

  errors: str = "strict"
  oddities: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  fraction_read: float | None = 0.0
  where: str = ""
  unit: str = "line"
  number: int = 0
  hint: str = '; or let data.errors="replace" mend and count such places'
  _before: float = 0.0  # share of the part that lies before the file at hand
  _share: float = 1.0  # share of the part that is the file at hand

  @property
  def place(self) -> str:
    """The record at hand, as messages name it."""
    if not self.number:
      return self.where
    if self.unit == "line":
      return f"{self.where}:{self.number}"
    return f"{self.where}: {self.unit} {self.number}"

  def begin_file(self, where: str, *, before: float, share: float) -> None:
    """Goes to the next file; the shares are of the bytes of the part."""
    self.where, self.unit, self.number = where, "line", 0
    self._before, self._share = before, share

  def advance(self, done: float) -> None:
    """Takes note of the share of the file that is read."""
    self.fraction_read = self._before + self._share * min(1.0, done)

  def mend(self, oddity: str, message: str, *, count: int = 1) -> None:
    """Counts what the caller mends; where that is not allowed, refuses.

    Raises:
      DataError: `message`, where errors are strict.
    """
    if self.errors == "strict":
      raise DataError(f"{message}{self.hint}.")
    self.oddities[oddity] += count
