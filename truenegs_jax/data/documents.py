"""Cleans text, forms documents, and tells their language.

A document has lines separated by "\\n", at least one, none of them blank. The
option `document=` of a part sets the rule:

* "block": blank lines separate documents;
* "record": every record is a document, in plain text every line;
* "file": every file is a document, without its blank lines;
* "join": consecutive records, in plain text blocks, are one document.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.text import ESCAPED, explain_bytes

JOIN = "join"  # of the documents of a format's default rule
RULES = ("block", "record", "file", JOIN)
# Of a line or document; longer ones are cut. A file without blank lines would
# be one document.
MAX_CHARS = 1_000_000
# Names of repairs.
NUL = "NUL characters, replaced"
CONTROLS = "control characters, replaced"
NOT_UTF8 = "bytes that are not UTF-8, replaced"
SURROGATES = "lone surrogates, replaced"
LONG_LINES = "cuts in lines over 1,000,000 characters"
LONG_DOCUMENTS = "cuts in documents over 1,000,000 characters"
BLANK_DOCUMENTS = "blank documents, left out"
NULL_VALUES = "null values, left out"
SHORT_LINES = "lines under {} characters, left out"
BAD = re.compile("[\0\x80-\x9f\ud800-\udfff]")
C1_IN_UTF8 = re.compile(b"\xc2[\x80-\x9f]")
SAMPLE_CHARACTERS = 100_000  # of all excerpts together, of 10 times the text
EXCERPT_CHARACTERS = 500
MIN_CHARACTERS = 60_000  # some 10,000 words; less text is not refused
NO_LANGUAGE = ("zxx", "und")  # numbers; unsure, as of artificial text
# Languages that a detector confuses: each passes as any other of its group.
RELATED = (
  {"bs", "hr", "sr"},
  {"da", "nb", "nn", "no"},
  {"gl", "pt"},
  {"id", "ms"},
)


@dataclasses.dataclass
class ReadCounts:
  """Counts of a unit that are filled while it is read."""

  # Of what was replaced, cut or left out, by the names above.
  repairs: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  num_records: int = 0  # of the source, before documents are joined


@dataclasses.dataclass
class Place:
  """A place in a source, and how bad text is treated there."""

  counts: ReadCounts
  errors: str  # "strict" refuses bad text; "replace" repairs and counts it
  path: str  # a file or data set
  form: str = "{}:{}"  # of path and number in messages
  number: int = 0  # of the current line or record, from 1

  def __str__(self) -> str:
    return self.form.format(self.path, self.number)

  def count(self, items: Iterable[Any]) -> Iterator[Any]:
    """Yields items and counts them as records of the source."""
    for item in items:
      self.counts.num_records += 1
      yield item

  def repair(self, repair: str, problem: str) -> None:
    """Counts a repair that the caller makes; DataError if errors are strict."""
    if self.errors == "strict":
      raise DataError(
        f"{self}: {problem} Or set --config.data.errors=replace to repair such"
        " text."
      )
    self.counts.repairs[repair] += 1

  def clean(self, text: str, *, is_lines: bool = False) -> str:
    """Replaces bytes that are not UTF-8, lone surrogates, NUL and controls.

    If the text `is_lines` of a file, messages have the number of the line.
    """
    with contextlib.suppress(UnicodeEncodeError):  # of a surrogate
      # Twice as fast as BAD.
      if "\0" not in text and not C1_IN_UTF8.search(text.encode()):
        return text
    for number, match in enumerate(BAD.finditer(text)):
      if is_lines and not number:
        self.number += text.count("\n", 0, match.start())
      self.repair(*_describe_bad(match, text, self))
    return BAD.sub("\ufffd", text)


def from_lines(groups: Iterable[str], rule: str, place: Place) -> Iterator[str]:
  """Forms the documents of a text, which is given as groups of lines."""
  lines = _split_lines(groups, place)
  if rule != "block":
    lines = (line for line in lines if line and not line.isspace())
  if rule == "record":
    return lines
  return join(lines, place)


def from_records(
  values: Iterable[object], rule: str, place: Place
) -> Iterator[str]:
  """Forms the documents of records, `place` being at each of them.

  None and blank texts are counted and left out. The rule "block" also splits a
  record at its blank lines.
  """
  texts = filter(None, (_clean_record(value, place) for value in values))
  if rule != "record":
    yield from from_lines((text + "\n\n" for text in texts), rule, place)
    return
  for text in texts:
    if "\n" in text or len(text) > MAX_CHARS:
      yield from from_lines([text], "file", place)
    else:
      yield text


def join(
  texts: Iterable[str], place: Place, *, num_chars: float = math.inf
) -> Iterator[str]:
  """Joins texts up to each blank one, or until they have `num_chars`.

  A document also ends before it would exceed MAX_CHARS, which is counted.
  """
  joined: list[str] = []
  chars = 0  # without line ends
  for text in itertools.chain(texts, [""]):
    is_blank = not text or text.isspace()
    is_complete = is_blank or chars >= num_chars
    is_long = chars + len(joined) + len(text) > MAX_CHARS
    if joined and (is_complete or is_long):
      if not is_complete:
        place.counts.repairs[LONG_DOCUMENTS] += 1
      yield "\n".join(joined)
      joined = []
      chars = 0
    if not is_blank:
      joined.append(text)
      chars += len(text)


def drop_short_lines(
  texts: Iterable[str], place: Place, *, min_chars: int
) -> Iterator[str]:
  """Leaves out and counts lines of less than `min_chars` characters."""
  for text in texts:
    lines = text.split("\n")
    long_lines = [line for line in lines if len(line) >= min_chars]
    if num_short := len(lines) - len(long_lines):
      place.counts.repairs[SHORT_LINES.format(min_chars)] += num_short
    if long_lines:
      yield "\n".join(long_lines)


def cut_line(line: str, place: Place) -> int:
  """Returns where to cut a line of more than MAX_CHARS, and counts it."""
  place.repair(
    LONG_LINES,
    f"a line of more than {MAX_CHARS:,} characters. Put one sentence or"
    " paragraph on a line, and a blank line between documents.",
  )
  return line.rfind(" ", 0, MAX_CHARS) + 1 or MAX_CHARS


def _split_lines(groups: Iterable[str], place: Place) -> Iterator[str]:
  for group in groups:
    lines = group.removesuffix("\n").split("\n")
    if len(group) <= MAX_CHARS:
      yield from lines
      continue
    for line in lines:
      while len(line) > MAX_CHARS:
        cut = cut_line(line, place)
        yield line[:cut]
        line = line[cut:]
      yield line


def _describe_bad(
  match: re.Match[str], text: str, place: Place
) -> tuple[str, str]:
  """Returns the repair of a match of BAD, and the problem if it is refused."""
  code = f"U+{ord(match[0]):04X}"
  if match[0] == "\0":
    return NUL, "NUL in the text, as in binary files. Remove it, or the file."
  if match[0] < "\xa0":
    return CONTROLS, (
      f"the control character {code}, as of a text in CP1252 that was read as"
      " LATIN1. Convert the original: `iconv -f CP1252 -t UTF-8`."
    )
  if ESCAPED.match(match[0]):
    problem = ""
    if place.errors == "strict":
      problem = explain_bytes(text, match, place.path)
    return NOT_UTF8, problem
  return SURROGATES, f"{code} is half of a surrogate pair. Repair the record."


def _clean_record(value: object, place: Place) -> str:
  """Returns the repaired text of a record, or "" to leave it out."""
  if value is None:
    place.counts.repairs[NULL_VALUES] += 1
    return ""
  if not isinstance(value, str):
    raise DataError(
      f"{place}: the column holds {type(value).__name__}, not text. Set"
      " column=NAME to a column of text."
    )
  text = place.clean(value)
  if "\r" in text:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
  if not text or text.isspace():
    place.counts.repairs[BLANK_DOCUMENTS] += 1
    return ""
  return text


def check_code(language: str) -> None:
  """Raises InputError unless `data.language` is "" or a code of ISO 639-1."""
  if language in ("", "en"):
    return
  from nltk.langnames import iso639long  # slow to import

  if language not in iso639long:
    raise InputError(
      f"data.language={language!r} is not a code of ISO 639-1 such as en. Set"
      " --config.data.language to one, or to '' for other text, without checks."
    )


def measure_languages(
  texts: Iterable[str], num_characters: int = SAMPLE_CHARACTERS
) -> dict[str, int]:
  """Returns characters by language, of excerpts from the first texts."""
  characters = itertools.chain.from_iterable(text + "\n" for text in texts)
  beginning = "".join(itertools.islice(characters, 10 * num_characters))
  step = EXCERPT_CHARACTERS * max(1, len(beginning) // num_characters)
  lengths = collections.Counter[str]()
  for start in range(0, len(beginning), step):
    excerpt = beginning[start : start + EXCERPT_CHARACTERS]
    code, _ = _load_detector().classify(excerpt)
    if code not in NO_LANGUAGE:
      lengths[code] += len(excerpt)
  return dict(lengths)


def check_language(
  lengths: Mapping[str, int], language: str, say: Callable[[str], None]
) -> None:
  """Refuses a text mostly in another language; warns where it is unsure."""
  related = next((x for x in RELATED if language in x), {language})
  total = sum(lengths.values())
  declared = sum(n for code, n in lengths.items() if code in related)
  if not language or declared >= total / 2:
    return
  if related.isdisjoint(_load_detector().labels):
    say(f"warning: data.language={language!r} cannot be detected.")
    return
  common = collections.Counter(lengths).most_common(4)
  shares = ", ".join(f"{n / total:.0%} {code}" for code, n in common)
  problem = (
    f"data.language={language!r}, but the text of data.sources looks like"
    f" {shares}. Set --config.data.language={common[0][0]}, or to '' for no"
    " check."
  )
  if total >= MIN_CHARACTERS:
    raise InputError(problem)
  say(f"warning: {problem}")


@functools.cache
def _load_detector() -> Any:
  """Returns a `LanguageIdentifier` of languages with a code of ISO 639-1."""
  from py3langid import langid  # takes half a second to load

  detector = langid.LanguageIdentifier.from_model_file(
    langid.MODEL_FILE, norm_probs=True, min_confidence=0.5
  )
  codes = [x for x in detector.labels if len(x) == 2 or x in NO_LANGUAGE]
  detector.set_languages(codes)
  return detector
