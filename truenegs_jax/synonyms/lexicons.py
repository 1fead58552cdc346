"""Reads files of synonyms: pairs, PPDB's lists, wordnets of other languages.

A reader yields all pairs of a file, `select_pairs` those of a vocabulary:

  for word, synonym in select_pairs(words, read_pairs(file), file): ...
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

PPDB = " ||| "  # separates PPDB's fields
PHRASE = re.compile(r"[^ _][ _]+[^ _]")
SYNSET = re.compile("[0-9]{8}-([a-z])")


def select_pairs(
  words: Iterable[str], pairs: Iterable[tuple[str, str]], file: File
) -> Pairs:
  """Yields the pairs of a file of which both words are in a vocabulary.

  An entry of the file matches the word that it equals as written or in lower
  case. Phrases match nothing. Words that differ only in case are no pair. The
  order is that of `words`, synonyms sorted.

  Raises:
    DataError: at the call, the file has no pair; later, no pair is left.
  """
  pairs = iter(pairs)
  first = next(pairs, None)
  if first is None:
    raise DataError(f"{file.path}: the file has no pairs. Use another file.")
  return _select_pairs(words, itertools.chain([first], pairs), file)


def _select_pairs(
  words: Iterable[str], pairs: Iterable[tuple[str, str]], file: File
) -> Pairs:
  synonyms: dict[str, set[str]] = {word: set() for word in words}
  num_pairs = num_phrases = 0
  for pair in pairs:
    num_pairs += 1
    num_phrases += any(map(PHRASE.search, pair))
    golds, others = (synonyms.keys() & {name, name.lower()} for name in pair)
    for gold, other in itertools.product(golds, others):
      if gold.lower() != other.lower():
        synonyms[gold].add(other)
  if not any(synonyms.values()):
    raise DataError(
      f"{file.path}: none of {num_pairs:,} pairs has two words of the"
      f" vocabulary ({num_phrases:,} contain a phrase). Use pairs in the"
      " language and case of the vocabulary."
    )
  for gold, others in synonyms.items():
    yield from ((gold, other) for other in sorted(others))


def read_pairs(file: File) -> Pairs:
  """Yields (word, synonym) pairs of a file; does not add reverse pairs.

  The format depends on the suffix, before that of a compression:

    .json   {"word": ["synonym", ...], ...} or [["word", "synonym"], ...]
    .jsonl  {"word": "word", "synonyms": ["synonym", ...]} on each line
    others  the format of the first line: word<TAB>synonym; PPDB's
            `[NN] ||| word ||| synonym ||| ...`, further fields ignored; or a
            word and its synonyms, separated by spaces

  Raises:
    DataError: the file is damaged or of another format, with the line or entry.
  """
  readers = {".json": _json, ".jsonl": _json_lines}
  return readers.get(file.suffix, _columns)(file)


def read_omw(file: File, *, pos: str) -> Pairs:
  """Yields the pairs of lemmas that share a synset (Open Multilingual WordNet).

  Lines are `00001740-n<TAB>fra:lemma<TAB>word`, with or without the language.
  Lines of definitions and examples, and comments (`#`), are skipped.

  `pos` has the parts of speech, see `wordnet.parse_parts_of_speech`.

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


def _columns(file: File) -> Pairs:
  separator = ""
  for number, line in _filled_lines(file):
    if not separator:  # the first line decides the format
      separator = next((x for x in (PPDB, "\t") if x in line), " ")
    match line.split(PPDB if separator == PPDB else "\t"):
      case [_, word, synonym, *_] if separator == PPDB:
        yield word, synonym
      case [word, synonym] if separator == "\t":
        yield word, synonym
      case [text] if separator == " ":
        word, *synonyms = text.split(" ")
        yield from ((word, synonym) for synonym in synonyms)
      case columns:
        raise DataError(
          f"{file.path}:{number}: {len(columns)} columns. On every line, write"
          " either a word, a tab and a synonym; or a word and its synonyms,"
          " separated by spaces; or PPDB's '[NN] ||| word ||| synonym ||| ...'."
        )


def _json(file: File) -> Pairs:
  text = "".join(read_text(file, ReadState(), records=True))
  content = _decode(text.rstrip(), file, 1)
  if isinstance(content, dict):
    content = list(map(list, content.items()))
  elif isinstance(content, list):
    content = [[p[0], p[1:]] if _is_pair(p) else p for p in content]
  else:
    content = [content]
  for number, entry in enumerate(content, 1):
    yield from _entry_pairs(entry, f"{file.path}: entry {number:,}")


def _json_lines(file: File) -> Pairs:
  for number, line in _filled_lines(file):
    entry = _decode(line, file, number)
    if isinstance(entry, dict):
      entry = [entry.get("word"), entry.get("synonyms")]
    yield from _entry_pairs(entry, f"{file.path}:{number}")


def _is_pair(value: object) -> bool:
  return isinstance(value, list) and len(value) == 2


def _decode(text: str, file: File, number: int) -> Any:
  """Decodes JSON that begins on line `number`."""
  try:
    return json.loads(text)
  except (ValueError, RecursionError) as error:
    number += getattr(error, "lineno", 1) - 1
    raise DataError(
      f"{file.path}:{number}: not JSON ({getattr(error, 'msg', error)}). Repair"
      " the file, or download it again."
    ) from error


def _entry_pairs(entry: Any, place: str) -> Pairs:
  """Yields the pairs of `[word, [synonym, ...]]`."""
  word, synonyms = entry if _is_pair(entry) else (None, None)
  names = [word, *synonyms] if isinstance(synonyms, list) else [None]
  if not all(isinstance(name, str) for name in names):
    raise DataError(
      f"{place}: {json.dumps(entry)[:60]} is not a word and its synonyms. Use"
      ' {"word": ["synonym"]} or [["word", "synonym"]] in a .json file, and'
      ' {"word": "word", "synonyms": ["synonym"]} on a line of a .jsonl file.'
    )
  yield from itertools.product(names[:1], names[1:])
