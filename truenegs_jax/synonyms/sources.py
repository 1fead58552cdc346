"""Where synonyms come from: named functions that yield pairs of words.

A source is a function `fn(tokens, **options)` that yields `(word, synonym)`
pairs: if a model that should say `word` says `synonym`, it is not wrong. Both
are whole-word tokens of the vocabulary and differ; the order is the same on
every call. To add one, write it here under `@source("its name")`.

  pairs = synonym_source("wordnet")(tokens)
"""

import pathlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from truenegs_jax import cache
from truenegs_jax.errors import DataError, InputError
from truenegs_jax.synonyms.vectors import neighbours

Pairs = Iterable[tuple[str, str]]

SOURCES: dict[str, Callable[..., Pairs]] = {}

# Nouns, verbs, adjectives (with their satellites) and adverbs.
PARTS_OF_SPEECH = "nvar"

# WordNet 3.0's lexicographer files, in the order of their numbers (manual page
# lexnames(5WN)). NLTK wants them as a file, which Debian's package lacks.
LEXICOGRAPHER_FILES = tuple(
  """
  adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact
  noun.attribute noun.body noun.cognition noun.communication noun.event
  noun.feeling noun.food noun.group noun.location noun.motive noun.object
  noun.person noun.phenomenon noun.plant noun.possession noun.process
  noun.quantity noun.relation noun.shape noun.state noun.substance noun.time
  verb.body verb.change verb.cognition verb.communication verb.competition
  verb.consumption verb.contact verb.creation verb.emotion verb.motion
  verb.perception verb.possession verb.social verb.stative verb.weather
  adj.ppl
  """.split()
)


def source(name: str) -> Callable[[Callable[..., Pairs]], Callable[..., Pairs]]:
  """Registers `fn(tokens, **options) -> (word, synonym) pairs` under `name`."""

  def add(fn: Callable[..., Pairs]) -> Callable[..., Pairs]:
    if name in SOURCES:
      raise ValueError(f"Synonym source {name!r} is registered twice.")
    SOURCES[name] = fn
    return fn

  return add


def synonym_source(name: str) -> Callable[..., Pairs]:
  """Returns the source registered under `name`.

  Raises:
    InputError: no source has this name.
  """
  if name not in SOURCES:
    known = ", ".join(sorted(SOURCES))
    raise InputError(
      f"There is no synonym source {name!r}; negatives.sources may name: "
      f"{known}."
    )
  return SOURCES[name]


def is_word(token: str) -> bool:
  """True for a whole word; False for `##piece` and for `[SPECIAL]` tokens."""
  special = len(token) > 2 and token[0] == "[" and token[-1] == "]"
  return bool(token) and not special and not token.startswith("##")


@source("wordnet")
def wordnet(
  tokens: Sequence[str], *, reader: Any = None
) -> Iterator[tuple[str, str]]:
  """Yields each token with the other tokens of its WordNet synsets.

  The synonyms of a token are the lemma names of all its synsets, whatever the
  part of speech (paper, section "Hard Correction"), as WordNet writes them or
  in lower case, as far as they are tokens themselves.

  Args:
    tokens: the vocabulary, token `i` at position `i`.
    reader: a WordNet opened by `open_wordnet`; None opens it here.

  Yields:
    (word, synonym), in the order of `tokens`, synonyms sorted.

  Raises:
    InputError, DataError: as `open_wordnet`.
  """
  own = open_wordnet() if reader is None else None
  try:
    yield from _wordnet_pairs(tokens, reader or own)
  finally:
    if own is not None:
      close_wordnet(own)


@source("vectors")
def vectors(
  tokens: Sequence[str], *, path: str, top: int = 10, threshold: float = -1.0
) -> Iterator[tuple[str, str]]:
  """Yields each token with the tokens whose word vectors are most like its own.

  The paper's footnote 9 takes 10 by the vectors GloVe 6B of 50 dimensions. For
  arguments, order and errors see `vectors.neighbours`.
  """
  words = filter(is_word, tokens)
  return neighbours(words, path, top=top, threshold=threshold)


def raw_synonyms(word: str, reader: Any) -> tuple[str, ...]:
  """Returns the sorted lemma names of all synsets of `word`, as written there.

  Nothing is removed: the word itself and phrases (`primary_coil`) are included.
  The result is empty exactly where WordNet does not know the word.

  Raises:
    DataError: WordNet's index names a synset that its data does not hold.
  """
  names: set[str] = set()
  word = word.lower()
  for pos in PARTS_OF_SPEECH:
    for stem in _stems(word, pos, reader):
      for offset in reader._lemma_pos_offset_map[stem][pos]:
        names.update(_synset(pos, offset, reader).lemma_names())
  return tuple(sorted(names))


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
  root = _find_wordnet(folder)
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


def close_wordnet(reader: Any) -> None:
  """Closes the data files, which NLTK leaves to the garbage collector."""
  while getattr(reader, "_data_file_map", None):
    reader._data_file_map.popitem()[1].close()


def lexnames_text() -> str:
  """The content of WordNet's file `lexnames`: number, name, part of speech."""
  numbers = {"noun": 1, "verb": 2, "adj": 3, "adv": 4}
  return "".join(
    f"{i:02}\t{name}\t{numbers[name.partition('.')[0]]}\n"
    for i, name in enumerate(LEXICOGRAPHER_FILES)
  )


def _wordnet_pairs(
  tokens: Sequence[str], reader: Any
) -> Iterator[tuple[str, str]]:
  words = {token for token in tokens if is_word(token)}
  for token in tokens:
    if token not in words:
      continue
    names = raw_synonyms(token, reader)
    # Lemmas are names (`Indiana`) where a lower-case vocabulary has `indiana`.
    forms = words.intersection([*names, *(name.lower() for name in names)])
    for form in sorted(forms):
      if form.lower() != token.lower():
        yield token, form


def _stems(word: str, pos: str, reader: Any) -> list[str]:
  """The entries of WordNet that `word` may be a form of, `word` first.

  This is NLTK 3.8.1's `_morphy`, which stems again where one stemming found
  nothing (lester -> lest -> l...). From 3.9 on NLTK stems once only and knows
  19,075 tokens of BERT's vocabulary, not the 19,080 (62.51 %) of the paper.
  """

  def known(forms: Iterable[str]) -> list[str]:
    index = reader._lemma_pos_offset_map
    return [f for f in dict.fromkeys(forms) if pos in index.get(f, ())]

  exceptions = reader._exception_map[pos]
  if word in exceptions:
    return known([word, *exceptions[word]])
  forms = _without_ending([word], pos, reader)
  found = known([word, *forms])
  while forms and not found:
    forms = _without_ending(forms, pos, reader)
    found = known(forms)
  return found


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


def _find_wordnet(folder: str) -> str:
  """The folder with `data.noun`, or `<zip file>/wordnet/`, as NLTK wants it."""
  import nltk  # Only here: a saved table needs no NLTK.

  if folder:
    given = pathlib.Path(folder).expanduser()
    places = [given, given / "corpora", given / "nltk_data/corpora"]
  else:
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
