"""Guesses which names are persons, places and organizations, by rules.

WordNet knows famous names; of others, words such as `University` or `River`,
titles, capitals and the preposition before tell something.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any

from truenegs_jax.data.corpus.sources import WordNetReader
from truenegs_jax.robustness.word_lists import (
  CALENDAR,
  LAST_WORD,
  LOCATION,
  ORGANIZATION,
  PERSON,
  TITLES,
)
from truenegs_jax.synonyms import wordnet

_LEXNAMES = {
  "noun.person": PERSON,
  "noun.location": LOCATION,
  "noun.object": LOCATION,  # rivers, mountains
  "noun.group": ORGANIZATION,
}


class NameKinds:
  """Kinds of names, by WordNet."""

  def __init__(self, reader: WordNetReader) -> None:
    self._reader = reader

  @functools.lru_cache(maxsize=2**14)  # noqa: B019
  def known(self, name: str) -> str:
    """Returns the kind of a name's first sense that is an instance, or ""."""
    for synset in self._synsets(name)[:2]:
      if synset.instance_hypernyms():
        return _LEXNAMES.get(synset.lexname(), "")
    return ""

  @functools.lru_cache(maxsize=2**14)  # noqa: B019
  def is_common(self, word: str) -> bool:
    """Returns whether the first sense of a word as a noun is no instance."""
    return any(not s.instance_hypernyms() for s in self._synsets(word)[:1])

  def _synsets(self, name: str) -> list[Any]:
    synsets = self._reader.synsets(name.lower(), "n")
    wordnet.close_wordnet(self._reader)  # until the next name
    return synsets


def guess_entities(
  words: Sequence[str], tags: Sequence[str], kinds: NameKinds
) -> list[str]:
  """Returns the entity of each token of a sentence: "" if it is none."""
  entities = [_single(word, tag) for word, tag in zip(words, tags, strict=True)]
  start = 0
  while start < len(words):
    end = start
    while end < len(words) and tags[end] in ("NNP", "NNPS"):
      end += 1
    if end > start and not entities[start]:
      before = words[start - 1].lower() if start else ""
      kind = _kind(words[start:end], tags[end - 1], before, kinds)
      entities[start:end] = [kind] * (end - start)
    start = max(end, start + 1)
  return entities


def _single(word: str, tag: str) -> str:
  if tag in ("NNP", "NNPS") and word.lower() in CALENDAR:
    return "DATE"
  if tag == "CD":
    is_year = re.fullmatch("1[0-9]{3}s?|20[0-9]{2}s?", word)
    return "DATE" if is_year else "CARDINAL"
  return "NORP" if tag == "JJ" and word[0].isupper() else ""


def _kind(
  name: Sequence[str], last_tag: str, before: str, kinds: NameKinds
) -> str:
  """Returns the kind of a run of capitalized words after the word `before`."""
  if kind := kinds.known("_".join(name)):
    return kind
  last = name[-1].lower()
  if last in LAST_WORD:
    return LAST_WORD[last]
  if last_tag == "NNPS" and len(name) > 1:  # Denver Broncos
    return ORGANIZATION
  if name[0].lower() in TITLES or before in TITLES:
    return PERSON
  if any(len(word) == 2 and word.endswith(".") for word in name):  # J. Smith
    return PERSON
  if all(word.isupper() and 1 < len(word) < 6 for word in name):
    return ORGANIZATION
  for word in (name[-1], name[0]):
    if kind := kinds.known(word):
      return kind
  if before in ("in", "from", "near", "at"):
    return LOCATION
  is_person = len(name) == 2 and before not in ("the", "a")
  return PERSON if is_person and not any(map(kinds.is_common, name)) else ""
