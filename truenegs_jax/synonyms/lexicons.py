"""Files that list synonyms: pairs, PPDB's lists, wordnets of other languages.

A reader yields all pairs of a file, and `select_pairs` those of a vocabulary:

  for word, synonym in listed(words, read_pairs(file), file): ...
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from truenegs_jax.data.corpus.files import File
from truenegs_jax.data.corpus.lines import read_text
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime.errors import DataError

Pairs = Iterator[tuple[str, str]]

PPDB = " ||| "  # between its fields
PHRASE = re.compile(r"[^ _][ _]+[^ _]")
SYNSET = re.compile("[0-9]{8}-([a-z])")


def select_pairs(
  words: Iterable[str], pairs: Iterable[tuple[str, str]], file: File
) -> Pairs:
  """Yields the pairs of a file whose words are both in a vocabulary.

  An entry stands for the word that it equals as written or in lower case.
  Phrases are no words, and no word is its own synonym, whatever the case.

  Args:
    words: the whole words of the vocabulary.
    pairs: those of the file, in any order.
    file: named in errors.

  Yields:
    (word, synonym), in the order of `words`, synonyms sorted.

  Raises:
    DataError: there is no pair, at once; or none is left; or as `pairs`.
  """
  pairs = iter(pairs)
  first = next(pairs, None)
  if first is None:
    raise DataError(
      f"{file.path}: there is no pair in it: give a file of words and their"
      " synonyms."
    )
  return _listed(words, itertools.chain([first], pairs), file)


def _listed(
  words: Iterable[str], pairs: Iterable[tuple[str, str]], file: File
) -> Pairs:
  lists: dict[str, set[str]] = {word: set() for word in words}
  num_pairs = num_phrases = 0
  for pair in pairs:
    num_pairs += 1
    num_phrases += any(map(PHRASE.search, pair))
    golds, others = (lists.keys() & {name, name.lower()} for name in pair)
    for gold, other in itertools.product(golds, others):
      if gold.lower() != other.lower():
        lists[gold].add(other)
  if not any(lists.values()):
    raise DataError(
      f"{file.path}: none of its {num_pairs:,} pairs is of two words of the"
      f" vocabulary ({num_phrases:,} hold a phrase): give pairs of the"
      " vocabulary's language and case."
    )
  for gold, synonyms in lists.items():
    yield from ((gold, other) for other in sorted(synonyms))


def read_pairs(file: File) -> Pairs:
  """Reads pairs of a word and a synonym of it; the reverse is not implied.

  The suffix says the format, and may be followed by that of a compression:

    .json   {"word": ["synonym", ...], ...} or [["word", "synonym"], ...]
    .jsonl  {"word": "word", "synonyms": ["synonym", ...]} on each line
    others  as the first line is: word<TAB>synonym; PPDB's own
            `[NN] ||| word ||| synonym ||| ...`, of which no more is read; else
            a word and its synonyms, parted by spaces

  Raises:
    DataError: the file is damaged or not of its format, by line or entry.
  """
  readers = {".json": _json, ".jsonl": _json_lines}
  return readers.get(file.suffix, _columns)(file)


def read_omw(file: File, *, pos: str) -> Pairs:
  """Reads pairs of lemmas that share a synset (Open Multilingual WordNet).

  Lines are `00001740-n<TAB>fra:lemma<TAB>word`, also without the language;
  those of definitions and examples are passed over, as are comments (`#`).

  Args:
    file: such as wn-data-fra.tab.
    pos: parts of speech by the letter of the synset, as
      `wordnet.parts_of_speech` returns them.

  Raises:
    DataError: the file is damaged or not of this format, by its line.
  """
  synsets: dict[str, list[str]] = {}
  for number, line in _lines(file):
    if line.startswith("#"):
      continue
    synset, *columns = line.split("\t")
    match = SYNSET.fullmatch(synset)
    if not match or len(columns) < 2:
      raise DataError(
        f"{file.path}:{number}: {line[:40]!r} is no line of the Open"
        " Multilingual WordNet, such as '00001740-n<TAB>fra:lemma<TAB>word':"
        " fetch the file again."
      )
    is_lemma = columns[0].split(":")[-1] == "lemma"
    if is_lemma and match[1].replace("s", "a") in pos:
      synsets.setdefault(synset, []).append(columns[1])
  for names in synsets.values():
    yield from itertools.permutations(names, 2)


def _lines(file: File) -> Iterator[tuple[int, str]]:
  """The lines that are not blank, and their numbers."""
  runs = read_text(file, ReadState(), records=True)
  lines = itertools.chain.from_iterable(run[:-1].split("\n") for run in runs)
  for number, line in enumerate(lines, 1):
    if line.strip():
      yield number, line


def _columns(file: File) -> Pairs:
  sign = ""
  for number, line in _lines(file):
    sign = sign or next((s for s in (PPDB, "\t") if s in line), " ")
    columns = line.split("\t" if sign == " " else sign)
    pair = columns[1:3] if sign == PPDB else columns
    if len(pair) != (1 if sign == " " else 2):
      raise DataError(
        f"{file.path}:{number}: {len(columns)} columns: give a word, a tab and"
        " a synonym on every line, or on every line a word and its synonyms,"
        " parted by spaces, or PPDB's '[NN] ||| word ||| synonym ||| ...'."
      )
    word, *others = line.split(" ") if sign == " " else pair
    yield from ((word, other) for other in others)


def _json(file: File) -> Pairs:
  text = "".join(read_text(file, ReadState(), records=True))
  content = _decoded(text.rstrip(), file, 1)
  if isinstance(content, dict):
    content = [[word, synonyms] for word, synonyms in content.items()]
  elif isinstance(content, list):
    content = [[p[0], p[1:]] if _is_pair(p) else p for p in content]
  else:
    content = [content]
  for number, entry in enumerate(content, 1):
    yield from _pairs(entry, f"{file.path}: entry {number:,}")


def _json_lines(file: File) -> Pairs:
  for number, line in _lines(file):
    entry = _decoded(line, file, number)
    if isinstance(entry, dict):
      entry = [entry.get("word"), entry.get("synonyms")]
    yield from _pairs(entry, f"{file.path}:{number}")


def _is_pair(value: Any) -> bool:
  return isinstance(value, list) and len(value) == 2


def _decoded(text: str, file: File, number: int) -> Any:
  """The value of JSON that begins on line `number`."""
  try:
    return json.loads(text)
  except (ValueError, RecursionError) as error:
    number += getattr(error, "lineno", 1) - 1
    raise DataError(
      f"{file.path}:{number}: not JSON ({getattr(error, 'msg', error)}): repair"
      " or fetch it again."
    ) from error


def _pairs(entry: Any, place: str) -> Pairs:
  """The pairs of `[word, [synonym, ...]]`."""
  word, synonyms = entry if _is_pair(entry) else (None, None)
  names = [word, *synonyms] if isinstance(synonyms, list) else [None]
  if not all(isinstance(name, str) for name in names):
    raise DataError(
      f"{place}: {json.dumps(entry)[:60]} is not a word and its synonyms: give"
      ' {"word": ["synonym"]} or [["word", "synonym"]] in a .json file,'
      ' {"word": "word", "synonyms": ["synonym"]} on a line of a .jsonl file.'
    )
  yield from itertools.product(names[:1], names[1:])
