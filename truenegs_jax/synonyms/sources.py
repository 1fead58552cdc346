"""Where synonyms come from: named functions that yield pairs of words.

A source is a function `fn(tokens, **options)` that yields `(word, synonym)`
pairs: if a model that should say `word` says `synonym`, it is not wrong. Both
are whole-word tokens of the vocabulary and differ; the order is the same on
every call. To add one, write it here under `@source("its name")`.

A source checks its options, and that its files are there, when it is called;
the rest is done once it is asked for pairs.

  pairs = SOURCES["wordnet"](tokens, pos="nv")
"""

import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from truenegs_jax.data.corpus.files import File, describe
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import lexicons
from truenegs_jax.synonyms import wordnet as wordnet_lib
from truenegs_jax.synonyms.word_vectors import neighbours

Pairs = Iterable[tuple[str, str]]

SOURCES: dict[str, Callable[..., Pairs]] = {}


def source(name: str) -> Callable[[Callable[..., Pairs]], Callable[..., Pairs]]:
  """Registers `fn(tokens, **options) -> (word, synonym) pairs` under `name`."""

  def add(fn: Callable[..., Pairs]) -> Callable[..., Pairs]:
    if name in SOURCES:
      raise ValueError(f"Synonym source {name!r} is registered twice.")
    SOURCES[name] = fn
    return fn

  return add


def is_word(token: str) -> bool:
  """True for a whole word; False for `##piece` and for `[SPECIAL]` tokens."""
  special = len(token) > 2 and token[0] == "[" and token[-1] == "]"
  return bool(token) and not special and not token.startswith("##")


@source("wordnet")
def wordnet(
  tokens: Sequence[str],
  *,
  folder: str = "",
  pos: str = "nvar",
  inflections: bool = False,
  reader: Any = None,
) -> Iterator[tuple[str, str]]:
  """Yields each token with the other tokens of its WordNet synsets.

  The synonyms of a token are the lemma names of all its synsets, whatever the
  part of speech (paper, section "Hard Correction"), as far as they are tokens.

  Args:
    tokens: the vocabulary, token `i` at position `i`.
    folder: where WordNet is, see `open_wordnet`.
    pos: parts of speech: n, v, a (with s), r, or several such as "nv".
    inflections: also the inflected forms of the lemmas (homes for house).
    reader: a WordNet opened by `open_wordnet`; None opens the one of `folder`.

  Yields:
    (word, synonym), in the order of `tokens`, synonyms sorted.

  Raises:
    InputError: as `parts_of_speech` and `find_wordnet`, at once.
    DataError: as `open_wordnet` and `wordnet.pairs`.
  """
  pos = wordnet_lib.parts_of_speech(pos)
  options: dict[str, Any] = {"pos": pos, "inflections": inflections}
  words = list(filter(is_word, tokens))
  if reader is not None:
    return wordnet_lib.pairs(words, reader, **options)
  wordnet_lib.find_wordnet(folder)
  return _of_wordnet(words, folder, options)


@source("vectors")
def vectors(
  tokens: Sequence[str],
  *,
  path: str,
  top: int = 10,
  threshold: float = -1.0,
  among: str = "vocabulary",
) -> Iterator[tuple[str, str]]:
  """Yields each token with the tokens whose word vectors are most like its own.

  The paper's footnote 9 takes 10 by the vectors GloVe 6B of 50 dimensions. For
  arguments, order and errors see `vectors.neighbours`.
  """
  file = find_file(
    path,
    "word vectors, such as glove.6B.50d.txt from glove.6B.zip of"
    " https://nlp.stanford.edu/projects/glove",
  )
  words = filter(is_word, tokens)
  return neighbours(words, file, top=top, threshold=threshold, among=among)


@source("pairs")
def pairs(tokens: Sequence[str], *, path: str) -> Iterator[tuple[str, str]]:
  """Yields the pairs of a file of synonyms or paraphrases, such as PPDB's.

  For formats, order and errors see `lexicons.read_pairs`.
  """
  file = find_file(path, "pairs of words, such as lines of `word<TAB>synonym`")
  words = filter(is_word, tokens)
  return lexicons.listed(words, lexicons.read_pairs(file), file)


@source("omw")
def omw(
  tokens: Sequence[str], *, path: str, pos: str = "nvar"
) -> Iterator[tuple[str, str]]:
  """Yields each token with those of its synsets in a WordNet of its language.

  For the format, order and errors see `lexicons.read_omw`; `pos` is as in the
  source "wordnet".
  """
  pos = wordnet_lib.parts_of_speech(pos)
  file = find_file(
    path,
    "the Open Multilingual WordNet, such as wn-data-fra.tab from"
    " https://omwn.org",
  )
  words = filter(is_word, tokens)
  return lexicons.listed(words, lexicons.read_omw(file, pos=pos), file)


def find_file(path: str, content: str) -> File:
  """The file that an option `path` names.

  Args:
    content: what the file should hold, for the error.

  Raises:
    InputError: there is no file, or nothing else than one, under this name.
    DataError: it is of a kind that is not read, see `files.describe`.
  """
  location = os.path.expanduser(path)
  if not os.path.isfile(location):
    raise InputError(
      f"negatives.sources: there is no file {path!r}; give, by path=, a file of"
      f" {content}."
    )
  return describe(pathlib.Path(location))


def _of_wordnet(
  words: Sequence[str], folder: str, options: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
  reader = wordnet_lib.open_wordnet(folder)
  try:
    yield from wordnet_lib.pairs(words, reader, **options)
  finally:
    wordnet_lib.close_wordnet(reader)
