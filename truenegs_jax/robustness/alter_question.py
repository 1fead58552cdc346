"""Alters the words of a question, so that it asks for something else.

The rules are TextFlint's, after Jia & Liang (2017): each token is replaced by
the first candidate of the first rule that has one.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.data.corpus.files import stat_file
from truenegs_jax.data.corpus.sources import WordNetReader
from truenegs_jax.robustness.annotate import Token
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import DataError, UnavailableError
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.vocabulary import Vocabulary
from truenegs_jax.synonyms.word_vectors import find_neighbours, rank_neighbours

MODEL = "model"
TOP = 100  # nearest words of a word
_FROM = "States US U.S U.S. UK U.K U.K. largest smallest highest lowest May"
_TO = "Kingdom UK U.K. U.K. US U.S. U.S. smallest largest lowest highest April"
SPECIAL = dict(zip(_FROM.split(), _TO.split(), strict=True))
SPECIAL["Peyton"] = "Trevor"
_DO_NOT_ALTER = """
many such few much other same general type record kind sort part form terms use
place way old young bowl united one different square war republic doctor color
"""
DO_NOT_ALTER = frozenset(_DO_NOT_ALTER.split())
BAD_ALTERATIONS = {"mx2004", "planet", "u.s.", "http://www.co.mo.md.us"}
ADJECTIVES = ("JJ", "JJR", "JJS")
ENTITY_WORDS = {
  "PERSON": "Jackson",
  "LOCATION": "Berlin",
  "ORGANIZATION": "Acme",
  "MISC": "Neptune",
}


@dataclasses.dataclass(frozen=True)
class Words:
  """Knowledge of words that the rules need.

  Attributes:
    reader: WordNet, for antonyms.
    neighbours: word in lower case -> other words, nearest first.
    tag_of: returns the most frequent tag of a word.
  """

  reader: WordNetReader
  neighbours: Mapping[str, Sequence[str]]
  tag_of: Callable[[str], str]


def alter(tokens: Sequence[Token], words: Words) -> list[str]:
  """Returns the words of a question, altered where a rule applies."""
  refused = {token.text.lower() for token in tokens} | BAD_ALTERATIONS
  altered = []
  for token in tokens:
    new = (c for c in _candidates(token, words) if c.lower() not in refused)
    altered.append(match_case(next(new, token.text), token.text))
  return altered


def match_case(word: str, pattern: str) -> str:
  """Returns a word in capitals or with a capital if `pattern` is so."""
  if pattern.isupper():
    return word.upper()
  return word.title() if pattern.istitle() else word


def _candidates(token: Token, words: Words) -> Iterator[str]:
  """Yields other words for a token, by TextFlint's rules in order."""
  text, tag, entity = token.text, token.tag, token.entity
  if text.lower() in DO_NOT_ALTER:
    return
  if text in SPECIAL:
    yield SPECIAL[text]
  if tag == "NN" or tag in ADJECTIVES:
    yield from _antonyms(text, "n" if tag == "NN" else "a", words.reader)
  near = _neighbours(text.lower(), words.neighbours)
  if tag in ("CD", "NNP", "NNPS"):
    yield from near
  elif entity in ENTITY_WORDS and tag in ("NN", "NNS", *ADJECTIVES):
    yield from (word for word in near if words.tag_of(word) == tag)
  if tag[:2] not in ("JJ", "NN", "RB", "VB"):
    return
  if entity == "ORGANIZATION" and text.isupper():
    yield "UNICEF"
  elif entity in ENTITY_WORDS:
    yield ENTITY_WORDS[entity]
  elif tag == "NNPS":
    yield "Daleks"


def _antonyms(word: str, pos: str, reader: WordNetReader) -> Iterator[str]:
  """Yields the antonyms of a word's first sense."""
  names = [
    antonym.name()
    for synset in reader.synsets(word, pos)[:1]
    for lemma in synset.lemmas()
    for antonym in lemma.antonyms()
  ]
  wordnet.close_wordnet(reader)  # until the next word
  yield from (name for name in names if "_" not in name)


def _neighbours(
  word: str, neighbours: Mapping[str, Sequence[str]]
) -> Iterator[str]:
  """Yields the neighbours of a word that do not share its stem."""
  stem = _stem(word)
  for other in neighbours.get(word, ()) if word not in "war" else ():
    other_stem = _stem(other)
    if not stem.startswith(other_stem) and not other_stem.startswith(stem):
      yield other


@functools.lru_cache(maxsize=2**16)
def _stem(word: str) -> str:
  return _stemmer().stem(word)


@functools.cache
def _stemmer() -> Any:
  from nltk.stem.lancaster import LancasterStemmer

  return LancasterStemmer()


def read_neighbours(
  where: str,
  words: Iterable[str],
  *,
  vocabulary: Vocabulary | None = None,
  word_VxE: np.ndarray | None = None,
) -> dict[str, list[str]]:
  """Reads the nearest words of words in lower case.

  Nearest are the TOP words of `words`, by cosine.

  Args:
    where: a file of word vectors, see `word_vectors.find_neighbours`; MODEL for
      the embeddings of a model; TextFlint's neighbour.json, {word: [{"word":
      ...}, ...]} with the word itself first; or "" for none.
    words: all words of the questions. Those without a letter or digit have no
      neighbours and are none.
    vocabulary: tokens of the model; only for MODEL.
    word_VxE: their embeddings; only for MODEL.

  Raises:
    UnavailableError: there is no such file.
    DataError: it is damaged, or has no vector of any of the words.
  """
  if not where:
    return {}
  names = {word for word in words if any(map(str.isalnum, word))}
  if where == MODEL and vocabulary and word_VxE is not None:
    return _neighbours_in_model(names, vocabulary, word_VxE)
  path = pathlib.Path(where).expanduser()
  if not path.is_file():
    raise UnavailableError(
      f"robustness.neighbours={where!r}: there is no such file. Pass a file of"
      " word vectors, such as glove.6B.100d.txt, a neighbour.json, or model."
    )
  if path.suffix == ".json":
    return _read_neighbour_json(path)
  vocabulary = Vocabulary(sorted(names))
  neighbours: dict[str, list[str]] = {}
  for word, other in find_neighbours(
    vocabulary, stat_file(path), top=TOP, symbols=True
  ):
    neighbours.setdefault(word, []).append(other)
  return neighbours


def _neighbours_in_model(
  names: set[str], vocabulary: Vocabulary, word_VxE: np.ndarray
) -> dict[str, list[str]]:
  """Ranks the tokens of a model that are among `names`, nearest first."""
  ids = [i for i, token in enumerate(vocabulary.tokens) if token in names]
  if not ids:
    raise DataError(
      "robustness.neighbours='model': its vocabulary has none of the words of"
      " the questions. Pass a file of word vectors."
    )
  tokens = [vocabulary.tokens[i] for i in ids]
  ranked = rank_neighbours(word_VxE[ids].astype(np.float32), len(ids), top=TOP)
  return {
    word: [tokens[j] for j in near_J]
    for word, near_J in zip(tokens, ranked, strict=True)
  }


def _read_neighbour_json(path: pathlib.Path) -> dict[str, list[str]]:
  """Reads TextFlint's lists, without the word itself, which is first."""
  form = 'The form is {"word": [{"word": "word", "dist": 0}, ...]}.'
  with json_text.read_file(path, DataError, form) as lists:
    return {
      word: [entry["word"] for entry in entries[1:]]
      for word, entries in lists.items()
    }
