"""Sources of synonym pairs, and the formats of their files.

A source is a function `fn(vocabulary, **options)` that yields `(word, synonym)`
pairs: predicting `synonym` where `word` is gold counts as correct. Both are
different words of the vocabulary, compared with the entries of files by
`Vocabulary.match`, in the same order on every call. A call checks options and
files; the pairs are found on iteration. To add a source, write its function
here and list it in SOURCES: its parameters with a default are the options in
`negatives.sources`.

Axes: G words with a vector, D numbers per vector.
"""

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from truenegs_jax.data.words import read_words
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.text import ESCAPED, open_bytes, read_lines
from truenegs_jax.synonyms import wordnet as wordnet_lib
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import Vocabulary

Item = TypeVar("Item")
Pairs = Iterator[tuple[str, str]]
Lines = Iterator[tuple[int, str]]  # number, from 1, and text
Groups = Iterator[tuple[list[str], list[str]]]  # words and their synonyms
Entry = tuple[str, str, str]  # place in the file, word, numbers

PPDB = " ||| "  # separates PPDB's fields
SYNSET = re.compile("[0-9]{8}-[a-z]")

# The first two lines of a MyThes file: an encoding; an entry.
MYTHES = re.compile(
  rb"(?:\xef\xbb\xbf)?([\w.:-]+)[ \t]*\r?\n[^\n]*\|[0-9]{1,4}[ \t]*\r?\n"
)
# A word and its number of meanings.
ENTRY = re.compile(r"(.*)\|([0-9]{1,4})\s*")
# Of style, abbreviated: (fam.), (ugs., regional); or of a group's main word.
LABEL = re.compile(r" ?\((?=[^()|]*?(?:\.|Hauptform))[^()|]*\)")
ANTONYM = re.compile("ant[oòó]n|антон", re.IGNORECASE)

FORMATS = "docs/reference/sources.md has the formats of files."

HEADER = re.compile("([0-9]{1,9}) ([1-9][0-9]{0,4})")  # of word2vec
CELLS = 2**25  # cosines computed at a time; each needs some 8 bytes
STEPS = 10**9  # cosines are rounded to multiples of 1 / STEPS


def wordnet(
  vocabulary: Vocabulary, *, senses: int = wordnet_lib.ALL_SENSES
) -> Pairs:
  """Yields tokens that share a WordNet synset (paper, "Hard Correction")."""
  check_options(f"wordnet senses={senses}", senses)
  wordnet_lib.find_wordnet()
  return wordnet_lib.find_pairs(vocabulary, senses=senses)


def vectors(
  vocabulary: Vocabulary,
  *,
  path: str = "",
  top: int = 10,
  threshold: float = -1.0,
  content_words: bool = False,
) -> Pairs:
  """Yields each token with the tokens of the nearest word vectors (footnote 9).

  The nearest come first. The same word in another form (`Cat`) counts for `top`
  but is not yielded. `threshold` is the least cosine; `content_words` leaves
  out punctuation, numbers and stop words.
  """
  check_options(
    f"vectors top={top} threshold={threshold}", top, threshold=threshold
  )
  file = find_file("vectors", path)
  first, entries = peek(read_entries(file), path)
  parse_vector(first)
  words = set(vocabulary.words)
  if content_words:
    words = set(filter(vocabulary.may_have_neighbours, words))

  def find() -> Pairs:
    names, vectors_GxD = read_vectors(entries, words, vocabulary, path)
    ranked = rank_neighbours(vectors_GxD, top=top, threshold=threshold)
    for name, neighbours_J in zip(names, ranked, strict=True):
      for j in neighbours_J:
        if not vocabulary.are_forms(name, names[j]):
          yield name, names[j]

  return find()


def pairs(vocabulary: Vocabulary, *, path: str = "") -> Pairs:
  """Yields the pairs of a file of synonyms or paraphrases, such as PPDB's."""
  _, groups = peek(read_groups(find_file("pairs", path)), path)
  return select_pairs(groups, vocabulary, path)


def omw(vocabulary: Vocabulary, *, path: str = "", language: str = "") -> Pairs:
  """Yields tokens that share a synset in a file, or in NLTK's `omw-1.4`."""
  name = path or f"omw-1.4 of {language!r}"
  if path:
    lines = filled_lines(find_file("omw", path))
  else:
    lines = enumerate(wordnet_lib.read_omw(language).split("\n"), 1)
  _, groups = peek(read_omw(lines, name), name)
  return select_pairs(groups, vocabulary, name)


def saved_table(vocabulary: Vocabulary, *, path: str = "") -> Pairs:
  """Yields the pairs of a saved table; its tokens must be the same, if any."""
  find_file("table", path)
  saved = SynonymTable.load(path, vocabulary.tokens or None)
  words = read_words(saved.tokens).words
  size = saved.vocab_size
  ids = (divmod(key, size) for key in saved.keys_Q.tolist())
  return ((words[a], words[b]) for a, b in ids if a != b)


SOURCES: dict[str, Callable[..., Pairs]] = {
  "wordnet": wordnet,
  "vectors": vectors,
  "pairs": pairs,
  "omw": omw,
  "table": saved_table,
}


def check_options(source: str, *counts: int, threshold: float = 0.0) -> None:
  """Raises InputError for a count below 1, or a threshold that is no cosine."""
  if min(counts) < 1 or not -1 <= threshold <= 1:
    raise InputError(
      f"source of synonyms: {source!r} is out of range. Set threshold= from -1"
      " to 1, and other numbers to 1 or more."
    )


def find_file(source: str, path: str) -> str:
  """Returns `path`; InputError if there is no such file."""
  if not os.path.isfile(path):
    raise InputError(
      f"source of synonyms: there is no file {path!r}. Set path= of {source};"
      " docs/reference/sources.md says which files it reads, and where they"
      " come from."
    )
  return path


def select_pairs(groups: Groups, vocabulary: Vocabulary, name: str) -> Pairs:
  """Yields the pairs of the file `name` with both words in a vocabulary.

  Phrases match nothing. The order is that of the vocabulary, synonyms sorted.
  Raises DataError if there is none.
  """
  synonyms: dict[str, set[str]] = {word: set() for word in vocabulary.words}
  match = functools.cache(vocabulary.match)
  for words, others in groups:
    near = set[str]().union(*map(match, others))
    for gold in set[str]().union(*map(match, words)):
      synonyms[gold] |= near
  lists = itertools.starmap(vocabulary.list_pairs, synonyms.items())
  selected = [*itertools.chain.from_iterable(lists)]
  if not selected:
    raise DataError(
      f"{name}: no pair has two words of the vocabulary. Use a file in the"
      f" vocabulary's language. {FORMATS}"
    )
  yield from selected


def peek(items: Iterator[Item], name: str) -> tuple[Item, Iterator[Item]]:
  """Returns the first entry of a file, and all; DataError for an empty file."""
  for first in items:
    return first, itertools.chain([first], items)
  raise DataError(f"{name}: the file has no entries in UTF-8. {FORMATS}")


def filled_lines(path: str) -> Lines:
  """Yields the lines that are not empty; counts those that are not UTF-8."""
  num_bad = 0
  for number, line in read_lines(path, errors="surrogateescape"):
    if ESCAPED.search(line):
      num_bad += 1
    elif line.strip():
      yield number, line.removesuffix("\n")
  if num_bad:
    progress.say(
      f"warning: {path}: lines that are not UTF-8 are left out: {num_bad:,}."
      " If they are many, convert the file, such as with `iconv -t UTF-8`."
    )


def read_groups(path: str) -> Groups:
  """Yields words and synonyms of a file in MyThes's format, PPDB's, or columns.

  Columns are word<TAB>synonym, or a word and its synonyms with spaces between
  them. The first lines decide. Reverse pairs are not added.
  """
  with open_bytes(path) as file:
    match = MYTHES.match(file.peek())
  if match:
    return _mythes(path, match[1].decode(errors="replace"))
  return _columns(path)


def read_omw(lines: Lines, name: str) -> Groups:
  """Yields the lemmas that share a synset (Open Multilingual WordNet).

  Lines are `00001740-n<TAB>fra:lemma<TAB>word`, with or without the language.
  Lines of definitions and examples, and comments (`#`), are skipped.
  """
  synsets: dict[str, list[str]] = {}
  for number, line in lines:
    if not line or line.startswith("#"):
      continue
    synset, *columns = line.split("\t")
    if not SYNSET.fullmatch(synset) or len(columns) < 2:
      raise DataError(
        f"{name}:{number}: {line[:40]!r} is not a line of the Open"
        " Multilingual WordNet, such as '00001740-n<TAB>fra:lemma<TAB>word'."
      )
    if columns[0].split(":")[-1] == "lemma":
      synsets.setdefault(synset, []).append(columns[1])
  yield from ((names, names) for names in synsets.values())


def _mythes(path: str, encoding: str) -> Groups:
  """Yields the meanings of a file of MyThes, the thesauri of LibreOffice.

  Below the encoding, a word has its number of meanings, with a line each:

    big|2
    (adj)|large|great (similar term)|small (antonym)
    (adv)|boastfully (fam.)

  Labels in parentheses are removed. With a note of another relation, in any
  language, a synonym is no word of a vocabulary.
  """
  with open_bytes(path) as file:
    data = file.read()
  try:
    text = data.decode(encoding.removeprefix("microsoft-"))
  except (LookupError, UnicodeError) as error:
    raise DataError(
      f"{path}:1: the encoding {encoding!r} is wrong: {error}. Correct the"
      " first line."
    ) from error
  lines = enumerate(text.rstrip().split("\n"), 1)
  next(lines)
  for number, line in lines:
    entry = ENTRY.fullmatch(line)
    meanings = list(itertools.islice(lines, int(entry[2]))) if entry else []
    if not entry or len(meanings) < int(entry[2]):
      raise DataError(
        f"{path}:{number}: {line[:40]!r} is not a word, | and the number"
        " of its meanings, which have a line each."
      )
    for _, meaning in meanings:
      kind, *names = meaning.rstrip("\r").split("|")
      if not ANTONYM.search(kind):  # where Russian has it
        names = [LABEL.sub("", name) for name in names]
        # Words are in lower case, synonyms as they are written (German).
        words = {entry[1], *(n for n in names if n.lower() == entry[1])}
        yield sorted(words), names


def _columns(path: str) -> Groups:
  (_, first), lines = peek(filled_lines(path), path)
  separator = next((x for x in (PPDB, "\t") if x in first), None)
  for number, line in lines:
    columns = line.split(separator)
    row = columns[1:3] if separator == PPDB else columns
    if separator and len(row) != 2:
      raise DataError(f"{path}:{number}: {len(columns)} columns. {FORMATS}")
    if row[1:]:
      yield row[:1], row[1:]


def rank_neighbours(
  vectors_GxD: np.ndarray,
  *,
  top: int,
  threshold: float = -1.0,
  cells: int = CELLS,
) -> Iterator[np.ndarray]:
  """Yields the indices of the nearest other vectors of each, nearest first.

  These are at most `top` with a cosine of at least `threshold`. Cosines are
  rounded to nine decimals, so that the order of summation, which differs
  between machines, has no effect. Of equal cosines the earlier vector is
  nearer. No vector is zero. At most `cells` cosines, but at least G, are in
  memory.
  """
  vectors_GxD = vectors_GxD.astype(np.float64)
  norms_G = np.linalg.norm(vectors_GxD, axis=1)
  size = len(norms_G)
  kth = size - min(top, size - 1)  # in ascending order, of the `top` nearest
  step = max(1, cells // size)
  for start in range(0, size, step):
    rows = slice(start, min(start + step, size))
    cosines_TxG = vectors_GxD[rows] @ vectors_GxD.T
    cosines_TxG *= STEPS / norms_G
    cosines_TxG /= norms_G[rows, None]
    np.rint(cosines_TxG, out=cosines_TxG)
    cosines_TxG /= STEPS
    for t, cosines_G in enumerate(cosines_TxG, start):
      cosines_G[t] = -np.inf
      least = threshold
      if kth < size:
        least = max(threshold, np.partition(cosines_G, kth)[kth])
      near_J = np.flatnonzero(cosines_G >= least)
      yield near_J[np.argsort(-cosines_G[near_J], kind="stable")[:top]]


def read_vectors(
  entries: Iterable[Entry],
  words: set[str],
  vocabulary: Vocabulary,
  path: str,
) -> tuple[list[str], np.ndarray]:
  """Returns words that have a vector other than zero, and vectors_GxD.

  If a word occurs twice, the first vector counts. A word missing from the file
  gets the vector of the first word that stands for it (`Vocabulary.match`) and
  is not among `words` itself: lower-case vocabularies have `Paris`.
  """
  exact: dict[str, np.ndarray] = {}
  others: dict[str, np.ndarray] = {}  # of words that stand for one of `words`
  for entry in entries:
    word = entry[1]
    if word in exact:
      continue
    if word in words:
      exact[word] = parse_vector(entry)
    elif new := (vocabulary.match(word) & words) - others.keys():
      others |= dict.fromkeys(new, parse_vector(entry))
  vectors = others | exact
  names = [x for x in vocabulary.words if x in vectors and vectors[x].any()]
  if not names:
    raise DataError(
      f"{path}: no word of the vocabulary has a vector. Use vectors in the"
      " vocabulary's language."
    )
  return names, np.array([vectors[name] for name in names])


def read_entries(path: str) -> Iterator[Entry]:
  """Yields the entries of a file of word vectors.

  A line has a word and its numbers, separated by single spaces (GloVe). A first
  line of two whole numbers (word2vec) gives the counts of words and of numbers
  per word. Phrases (`. . .` in GloVe 840B) are skipped.
  """
  # word2vec and fastText write a space at the end of a line.
  filled = ((i, line.rstrip(" ")) for i, line in filled_lines(path))
  (number, first), lines = peek(filled, path)
  header = HEADER.fullmatch(first) if number == 1 else None
  dim = int(header[2]) if header else first.count(" ")
  count = 0
  for number, line in itertools.islice(lines, 1 if header else 0, None):
    count += 1
    if not 1 <= dim <= line.count(" "):
      raise DataError(
        f"{path}:{number}: {line.count(' ')} numbers after the word, not"
        f" {dim or 'one or more'}. A line is a word and its numbers, separated"
        " by single spaces. Remove this one, or download the file again."
      )
    if line.count(" ") == dim:
      word, _, numbers = line.partition(" ")
      yield f"{path}:{number}", word, numbers
  if header and count != int(header[1]):
    progress.say(
      f"warning: {path}: it has {count:,} words that are read, but its first"
      f" line says {int(header[1]):,}. If it should have all, download it"
      " again."
    )


def parse_vector(entry: Entry) -> np.ndarray:
  """Returns vector_D, float32, its largest number scaled to 1; or zeros."""
  place, _, numbers = entry
  try:
    vector_D = np.array([float(text) for text in numbers.split(" ")])
    scale = np.abs(vector_D).max()
  except ValueError:
    scale = np.nan
  if not np.isfinite(scale):
    raise DataError(
      f"{place}: {numbers[:40]!r} are not finite numbers. Remove the line, or"
      " download the file again."
    )
  return (vector_D / (scale or 1.0)).astype(np.float32)
