"""Reads files of synonyms: pairs, thesauri, wordnets of other languages.

for pair in select_pairs(read_pairs(file), vocabulary, file): ...
"""

import functools
import itertools
import re
from collections.abc import Iterator
from typing import TypeVar

from truenegs_jax.data.corpus.files import File, read_blocks
from truenegs_jax.data.corpus.read_state import (
  BLOCK_BYTES,
  MAX_LINE_BYTES,
  ReadState,
)
from truenegs_jax.data.corpus.readers import read_text
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.synonyms.vocabulary import Vocabulary, is_spelled

Item = TypeVar("Item")
Pairs = Iterator[tuple[str, str]]

PPDB = " ||| "  # separates PPDB's fields
PHRASE = re.compile("[ _]")
SYNSET = re.compile("[0-9]{8}-([a-z])")
NUM_EXAMPLES = 5  # of words outside the vocabulary
NUM_ROWS = 1000  # read to recognize a format without marks of its own
NUM_SHORT = 20  # fewer lines may be pairs with numbers: two 2

# The first two lines of a MyThes file: an encoding; an entry.
MYTHES = re.compile(
  rb"(?:\xef\xbb\xbf)?([\w.:-]+)[ \t]*\r?\n[^\n]*\|[0-9]{1,4}[ \t]*\r?\n"
)
# A word and its number of meanings.
ENTRY = re.compile(r"(.*)\|([0-9]{1,4})\s*")
# Of style, abbreviated: (fam.), (ugs., regional); or of a group's main word.
LABEL = re.compile(r" ?\((?=[^()|]*?(?:\.|Hauptform))[^()|]*\)")
ANTONYM = re.compile("ant[oòó]n|антон", re.IGNORECASE)

FORMATS = """Use a file of one of these formats:
  word<TAB>synonym
  word synonym synonym ...
  [NN] ||| word ||| synonym ||| ... (PPDB)
  th_*.dat of MyThes, the thesauri of LibreOffice (not the index, .idx)"""


def peek(items: Iterator[Item], file: File) -> tuple[Item, Iterator[Item]]:
  """Returns the first entry of a file, and all entries.

  Raises:
    DataError: there is none, or the beginning of the file is of another format.
  """
  for first in items:
    return first, itertools.chain([first], items)
  raise DataError(f"{file.path}: the file has no entries. Use another file.")


def select_pairs(pairs: Pairs, vocabulary: Vocabulary, file: File) -> Pairs:
  """Yields the pairs of a file of which both words are in a vocabulary.

  Phrases match nothing. The order is that of the vocabulary, synonyms sorted.
  If most pairs are lost, this is reported at the end.

  Raises:
    DataError: no pair is left.
  """
  synonyms: dict[str, set[str]] = {word: set() for word in vocabulary.words}
  match = functools.cache(vocabulary.match)
  is_phrase = functools.cache(PHRASE.search)  # a long word has many pairs
  lost: dict[str, None] = {}  # words that match nothing
  num_pairs = num_lost = 0
  for pair in pairs:
    golds, others = map(match, pair)
    for gold in golds:
      synonyms[gold] |= others
    num_pairs += 1
    if not (golds and others):
      num_lost += 1
      lost |= {x: None for x in pair if not (match(x) or is_phrase(x))}
  message = (
    f"{file.path}: {num_lost:,} of {num_pairs:,} pairs have a phrase or a word"
    f" outside the vocabulary{spread_examples(list(lost))}."
  )
  lists = itertools.starmap(vocabulary.list_pairs, synonyms.items())
  selected = list(itertools.chain.from_iterable(lists))
  if not selected:
    raise DataError(
      f"{message} The others are no pairs of different words. Use a file in the"
      " language of the vocabulary."
    )
  if 2 * num_lost > num_pairs:
    vocabulary.report(message)
  yield from selected


def spread_examples(words: list[str]) -> str:
  """Returns ", such as A, B" with words from the beginning to the end."""
  examples = words[:: -(-len(words) // NUM_EXAMPLES) or 1]
  return f", such as {', '.join(examples)}" if examples else ""


def read_pairs(file: File) -> Pairs:
  """Yields (word, synonym) pairs of a file; does not add reverse pairs.

  The format is that of the first lines:

    MyThes  the thesauri of LibreOffice
    PPDB    `[NN] ||| word ||| synonym ||| ...`; further fields are ignored
    others  word<TAB>synonym; or a word and its synonyms, separated by spaces.
            Three of five lines have to consist of words, not punctuation or,
            in longer files, numbers: prose, CSV and dictionaries are refused.

  Raises:
    DataError: the file is damaged or of another format, with the line.
  """
  head = next(read_blocks(file, ReadState(), size=BLOCK_BYTES), b"")
  if match := MYTHES.match(head):
    return _mythes(file, match[1].decode(errors="replace"))
  return _columns(file)


def read_omw(file: File, *, pos: str) -> Pairs:
  """Yields the pairs of lemmas that share a synset (Open Multilingual WordNet).

  Lines are `00001740-n<TAB>fra:lemma<TAB>word`, with or without the language.
  Lines of definitions and examples, and comments (`#`), are skipped.

  `pos` has the letters of the parts of speech.

  Raises:
    DataError: the file is damaged or of another format, with the line.
  """
  synsets: dict[str, list[str]] = {}
  for number, line in _filled_lines(file):
    if line.startswith("#"):
      continue
    synset, *columns = line.split("\t")
    match = SYNSET.fullmatch(synset)
    if not match or len(columns) < 2:
      raise DataError(
        f"{file.path}:{number}: {line[:40]!r} is not a line of the Open"
        " Multilingual WordNet, such as '00001740-n<TAB>fra:lemma<TAB>word'."
        " Download the file again."
      )
    is_lemma = columns[0].split(":")[-1] == "lemma"
    if is_lemma and match[1].replace("s", "a") in pos:
      synsets.setdefault(synset, []).append(columns[1])
  for names in synsets.values():
    yield from itertools.permutations(names, 2)


def numbered_lines(file: File) -> Iterator[tuple[int, str]]:
  """Yields the number, from 1, and the text of each line."""
  runs = read_text(file, ReadState(), records=True)
  # splitlines would also split at characters such as U+0085 and U+2028.
  lines = itertools.chain.from_iterable(run[:-1].split("\n") for run in runs)
  return enumerate(lines, 1)


def _filled_lines(file: File) -> Iterator[tuple[int, str]]:
  return (item for item in numbered_lines(file) if item[1].strip())


def _mythes(file: File, encoding: str) -> Pairs:
  """Yields the pairs of a file of MyThes.

  The first line has the encoding. Each word is followed by its number of
  meanings, and these have a line each:

    big|2
    (adj)|large|great (similar term)|small (antonym)
    (adv)|boastfully (fam.)

  Notes in parentheses name another relation (antonym, generic term, ...) or are
  labels. Synonyms with notes of the first kind are dropped, whatever their
  language; labels are removed.
  """
  data = b"".join(read_blocks(file, ReadState(), size=BLOCK_BYTES))
  try:
    text = data.decode(encoding.removeprefix("microsoft-"))
  except (LookupError, UnicodeError) as error:
    raise DataError(
      f"{file.path}:1: the encoding {encoding!r} is wrong: {error}. Correct the"
      " first line, or download the file again."
    ) from error
  texts = text.rstrip().split("\n")
  length, number = max((len(line), i) for i, line in enumerate(texts, 1))
  if length > MAX_LINE_BYTES:
    raise DataError(
      f"{file.path}:{number}: a line of {length:,} characters. Download the"
      " file again."
    )
  lines = enumerate(texts, 1)
  next(lines)
  for number, line in lines:
    entry = ENTRY.fullmatch(line)
    meanings = list(itertools.islice(lines, int(entry[2]))) if entry else []
    if not entry or len(meanings) < int(entry[2]):
      raise DataError(
        f"{file.path}:{number}: {line[:40]!r} is not a word, | and the number"
        " of the lines of its meanings, which follow. Download the file again."
      )
    for _, meaning in meanings:
      kind, *names = meaning.rstrip("\r").split("|")
      if not ANTONYM.search(kind):  # where Russian has it
        names = [LABEL.sub("", name) for name in names]
        # Words are in lower case, synonyms as they are written (German).
        words = {entry[1], *(n for n in names if n.lower() == entry[1])}
        synonyms = (name for name in names if "(" not in name)
        yield from itertools.product(sorted(words), synonyms)


def _columns(file: File) -> Pairs:
  (_, first), lines = peek(_filled_lines(file), file)
  separator = next((x for x in (PPDB, "\t") if x in first), None)

  def split_lines() -> Iterator[list[str]]:
    for number, line in lines:
      columns = line.split(separator)
      row = columns[1:3] if separator == PPDB else columns
      if separator and len(row) != 2:
        raise DataError(
          f"{file.path}:{number}: {len(columns)} columns. {FORMATS}"
        )
      yield row

  rows = split_lines()
  head = list(itertools.islice(rows, NUM_ROWS))
  num_lists = sum(
    _are_words(row)
    or (len(head) < NUM_SHORT and len(row) == 2 and "".join(row).isalnum())
    for row in head
  )
  if separator != PPDB and 5 * num_lists < 3 * len(head):
    raise DataError(
      f"{file.path}: an unknown format: only {num_lists} of the first"
      f" {len(head)} lines are a word and its synonyms. {FORMATS}"
    )
  for word, *synonyms in itertools.chain(head, rows):
    yield from itertools.product([word], synonyms)


def _are_words(names: list[str]) -> bool:
  """Returns whether there are several names, and all have letters."""
  words = re.split("[ _]+", " ".join(names))
  return len(names) > 1 and all(
    is_spelled(word, also="-'’.0123456789") for word in words
  )
