"""WordNet: opened with NLTK, and its synonyms of a word or of a vocabulary.

with opened() as reader:
  for word, synonym in pairs(words, reader, pos="nv"): ...
"""

import contextlib
import os
import pathlib
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from truenegs_jax.runtime import cache
from truenegs_jax.runtime.errors import DataError, InputError

# Nouns, verbs, adjectives (with their satellites) and adverbs.
PARTS_OF_SPEECH = "nvar"


def find_pairs(
  words: Sequence[str],
  reader: Any,
  *,
  pos: str = PARTS_OF_SPEECH,
  inflections: bool = False,
) -> Iterator[tuple[str, str]]:
  """Yields each word with the other words that are lemmas of its synsets.

  Lemmas are names (`Indiana`) where a lower-case vocabulary has `indiana`: a
  word is a lemma as WordNet writes it or in lower case.

  Args:
    words: the whole words of a vocabulary.
    reader: a WordNet opened by `open_wordnet`.
    pos: of the synsets, as `parse_parts_of_speech` returns them.
    inflections: a lower-case word also stands for the lemmas that it is an
      inflected form of, each in its part of speech (houses, a noun, for home).

  Yields:
    (word, synonym), in the order of `words`, synonyms sorted.

  Raises:
    DataError: as `find_lemma_names`.
  """
  known = frozenset(words)
  forms = _forms(words, reader, pos) if inflections else {}
  for word in words:
    synonyms: set[str] = set()
    for part in pos:
      for name in find_lemma_names(word, reader, pos=part):
        synonyms.update(known & {name, name.lower()})
        synonyms.update(forms.get((part, name.lower()), ()))
    for form in sorted(synonyms):
      if form.lower() != word.lower():
        yield word, form


def parse_parts_of_speech(letters: str) -> str:
  """Returns the parts of speech of an option `pos`, once each, in our order.

  Args:
    letters: some of n (nouns), v (verbs), a or s (adjectives), r (adverbs).

  Raises:
    InputError: there is none, or another letter.
  """
  if not letters or set(letters) - set("nvars"):
    raise InputError(
      f"source of synonyms: pos={letters!r}: give one or more of the letters n"
      " (nouns), v (verbs), a (adjectives) and r (adverbs), such as pos=nv."
    )
  return "".join(p for p in PARTS_OF_SPEECH if p in letters.replace("s", "a"))


def find_lemma_names(
  word: str, reader: Any, *, pos: str = PARTS_OF_SPEECH
) -> tuple[str, ...]:
  """Returns the sorted lemma names of all synsets of `word`, as written there.

  Nothing is removed: the word itself and phrases (`primary_coil`) are included.
  The result is empty exactly where WordNet does not know the word.

  Raises:
    DataError: WordNet's index names a synset that its data does not hold.
  """
  names: set[str] = set()
  for part in pos:
    for stem in find_stems(word.lower(), part, reader):
      for offset in reader._lemma_pos_offset_map[stem][part]:
        names.update(_synset(part, offset, reader).lemma_names())
  return tuple(sorted(names))


@contextlib.contextmanager
def session(folder: str = "") -> Iterator[Any]:
  """Opens WordNet as `open_wordnet` does, and closes it at the end."""
  reader = open_wordnet(folder)
  try:
    yield reader
  finally:
    close_wordnet(reader)


def open_wordnet(folder: str = "") -> Any:
  """Opens WordNet with NLTK.

  Args:
    folder: a folder that holds WordNet's files, or an `nltk_data` folder above
      them. Empty: NLTK's own places (`$NLTK_DATA`, `~/nltk_data`, ...), then
      the cache folder that launch/wordnet.sh fills.

  Returns:
    An `nltk.corpus.reader.wordnet.WordNetCorpusReader`.

  Raises:
    InputError: there is no WordNet in these places.
    DataError: there is one, but it is damaged.
  """
  root = find_wordnet(folder)
  reader = _new_reader(root)
  try:
    with warnings.catch_warnings():
      warnings.filterwarnings("ignore", message=".*multilingual functions")
      reader.__init__(root, None)
    for pos in PARTS_OF_SPEECH:
      index = reader._lemma_pos_offset_map.values()
      last = max(
        (max(entry[pos]) for entry in index if pos in entry), default=0
      )
      if last:  # A file that was cut off lacks the end.
        _synset(pos, last, reader)
  except Exception as error:  # NLTK raises a dozen unrelated types here.
    close_wordnet(reader)
    raise DataError(
      f"WordNet in {root} is damaged ({type(error).__name__}: {error}). Put a "
      "whole one there, or remove it and run launch/wordnet.sh."
    ) from error
  return reader


def find_wordnet(folder: str = "") -> str:
  """Looks for WordNet where `open_wordnet` does; nothing is opened.

  Returns:
    The folder with `data.noun`, or `<zip file>/wordnet/`, as NLTK wants it.

  Raises:
    InputError: there is no WordNet in these places.
  """
  if folder:
    given = pathlib.Path(os.path.expanduser(folder))
    places = [given, given / "corpora", given / "nltk_data/corpora"]
  else:
    import nltk  # Only here: a saved table needs no NLTK.

    roots = [pathlib.Path(str(path)) for path in nltk.data.path]
    roots.append(cache.folder() / "nltk_data")
    places = [root / "corpora" for root in roots]
  for place in places:
    for root in (place / "wordnet", place) if folder else (place / "wordnet",):
      if (root / "data.noun").is_file():
        return str(root.resolve())
    # NLTK's downloader leaves some packages packed.
    if (place / "wordnet.zip").is_file():
      return f"{(place / 'wordnet.zip').resolve()}/wordnet/"
  where = f"in {folder!r}" if folder else "where NLTK looks or in the cache"
  raise InputError(
    f"There is no WordNet {where}. Run launch/wordnet.sh, which puts it into "
    f"{cache.folder()}, or `python -m nltk.downloader wordnet`."
  )


def list_files(folder: str = "") -> list[pathlib.Path]:
  """The files of the WordNet that `open_wordnet` would open.

  Raises:
    InputError: as `find_wordnet`.
  """
  root = pathlib.Path(find_wordnet(folder))
  if root.parent.suffix == ".zip":
    return [root.parent]
  kinds = ("data.*", "index.*", "*.exc")
  return sorted(file for kind in kinds for file in root.glob(kind))


def close_wordnet(reader: Any) -> None:
  """Closes the data files, which NLTK leaves to the garbage collector."""
  while getattr(reader, "_data_file_map", None):
    reader._data_file_map.popitem()[1].close()


def find_stems(
  word: str, pos: str, reader: Any, *, again: bool = True
) -> list[str]:
  """The entries of WordNet that `word` may be a form of, `word` first.

  This is NLTK 3.8.1's `_morphy`, which stems again where one stemming found
  nothing (lester -> lest -> l...). From 3.9 on NLTK stems once only and knows
  19,075 tokens of BERT's vocabulary, not the 19,080 (62.51 %) of the paper.

  Args:
    pos: one of PARTS_OF_SPEECH.
    again: False stems once only.
  """

  def known(forms: Iterable[str]) -> list[str]:
    index = reader._lemma_pos_offset_map
    return [f for f in dict.fromkeys(forms) if pos in index.get(f, ())]

  exceptions = reader._exception_map[pos]
  if word in exceptions:
    return known([word, *exceptions[word]])
  forms = _without_ending([word], pos, reader)
  entries = known([word, *forms])
  while again and forms and not entries:
    forms = _without_ending(forms, pos, reader)
    entries = known(forms)
  return entries


def _forms(
  words: Sequence[str], reader: Any, pos: str
) -> dict[tuple[str, str], list[str]]:
  """Part of speech and lemma -> the words that are forms of it."""
  # Stemmed once: `assess` is no plural of `ass`, `beings` no form of `be`. No
  # word with a capital is one: those that WordNet's index lists have none.
  forms: dict[tuple[str, str], list[str]] = {}
  for word in words:
    for part in pos:
      for stem in find_stems(word, part, reader, again=False):
        forms.setdefault((part, stem), []).append(word)
  return forms


def _without_ending(forms: list[str], pos: str, reader: Any) -> list[str]:
  return [
    form[: -len(ending)] + replacement
    for form in forms
    for ending, replacement in reader.MORPHOLOGICAL_SUBSTITUTIONS[pos]
    if form.endswith(ending)
  ]


def _synset(pos: str, offset: int, reader: Any) -> Any:
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # "No WordNet synset found": raised below.
    synset = reader.synset_from_pos_and_offset(pos, offset)
  if synset is None:
    raise DataError(
      f"WordNet's index names synset {offset} ({pos!r}), which its data file "
      "does not hold: the two are of different versions or one is damaged. Run "
      "launch/wordnet.sh for a whole WordNet."
    )
  return synset


def _new_reader(root: str) -> Any:
  """A reader whose constructor has yet to be run."""
  import nltk
  from nltk.corpus.reader.wordnet import WordNetCorpusReader

  # Since 3.10 NLTK opens nothing outside the folders of its search path.
  folder = re.sub(r"/[^/]*\.zip/wordnet/$", "", root)
  if folder not in nltk.data.path:
    nltk.data.path.append(folder)
  reader = WordNetCorpusReader.__new__(WordNetCorpusReader)
  # The constructor maps synsets to other versions and languages; NLTK 3.9 and
  # later read a second WordNet for it. English needs no map.
  reader.map_wn = reader.map_wn30 = lambda *_: None
  return reader
