"""Guesses which names are persons, places and organizations, by rules.

WordNet knows famous names; of others, words such as `University` or `River`,
titles, capitals and the preposition before tell something.
"""

import functools
from collections.abc import Sequence
from typing import Any

from truenegs_jax.data.corpus.sources import WordNetReader
from truenegs_jax.synonyms import wordnet

# Kinds of names by the group of their synset, or by their last word.
_GROUPS = {
  "noun.person": "PERSON",
  "noun.location": "LOCATION",
  "noun.object": "LOCATION",  # rivers, mountains
  "noun.group": "ORGANIZATION",
}
_LAST_WORDS = {
  "ORGANIZATION": "university college school academy institute church company"
  " corporation inc. ltd. association council committee commission agency"
  " department ministry court parliament congress senate party army navy union"
  " league club society bank museum orchestra foundation group network studios"
  " records",
  "LOCATION": "river lake mount mountains street avenue road county city island"
  " islands sea ocean valley park bay gulf coast desert forest square province"
  " district kingdom republic stadium airport",
}
_TITLES = """
mr. mrs. ms. dr. sir lord lady king queen prince princess president pope saint
emperor chancellor duke
"""
TITLES = frozenset(_TITLES.split())


class NameKinds:
  """Kinds of names, by WordNet."""

  def __init__(self, reader: WordNetReader) -> None:
    self._reader = reader

  @functools.lru_cache(maxsize=2**14)  # noqa: B019
  def known(self, name: str) -> str:
    """Returns the kind of a name's first sense that is an instance, or ""."""
    for synset in self._synsets(name)[:2]:
      if synset.instance_hypernyms():
        return _GROUPS.get(synset.lexname(), "")
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
  entities: list[str] = []
  is_name = [tag in ("NNP", "NNPS") for tag in tags]
  while (start := len(entities)) < len(words):
    end = (is_name + [False]).index(False, start)
    if end == start:
      entities.append("")
      continue
    before = words[start - 1].lower() if start else ""
    kind = _kind(words[start:end], tags[end - 1], before, kinds)
    entities += [kind] * (end - start)
  return entities


def _kind(
  name: Sequence[str], last_tag: str, before: str, kinds: NameKinds
) -> str:
  """Returns the kind of a run of capitalized words after the word `before`."""
  if kind := kinds.known("_".join(name)):
    return kind
  for kind, words in _LAST_WORDS.items():
    if name[-1].lower() in words.split():
      return kind
  if last_tag == "NNPS" and len(name) > 1:  # Denver Broncos
    return "ORGANIZATION"
  if name[0].lower() in TITLES or before in TITLES:
    return "PERSON"
  if any(len(word) == 2 and word.endswith(".") for word in name):  # J. Smith
    return "PERSON"
  if all(word.isupper() and 1 < len(word) < 6 for word in name):
    return "ORGANIZATION"
  if kind := kinds.known(name[-1]) or kinds.known(name[0]):
    return kind
  if before in ("in", "from", "near", "at"):
    return "LOCATION"
  is_person = len(name) == 2 and before not in ("the", "a")
  return "PERSON" if is_person and not any(map(kinds.is_common, name)) else ""
