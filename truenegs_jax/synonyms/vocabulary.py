"""Tokens that may have synonyms: words, no stop words; how they are written.

The English stop words are listed here instead of being read from NLTK's data:
later releases of that list are longer, and a table must not change with the
version of a data package.
"""

import dataclasses
import functools
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np

from truenegs_jax.data.words import read_words
from truenegs_jax.runtime.files import short_sha256

# The 179 English words of `stopwords` in nltk_data as released from 2018 to
# 2023 (after the stop list of the Snowball project, M. Porter); 150 of them are
# tokens of the uncased BERT vocabulary.
ENGLISH = """
i me my myself we our ours ourselves you you're you've you'll you'd your
yours yourself yourselves he him his himself she she's her hers herself it
it's its itself they them their theirs themselves what which who whom this
that that'll these those am is are was were be been being have has had
having do does did doing a an the and but if or because as until while of at
by for with about against between into through during before after above
below to from up down in out on off over under again further then once here
there when where why how all any both each few more most other some such no
nor not only own same so than too very s t can will just don don't should
should've now d ll m o re ve y ain aren aren't couldn couldn't didn didn't
doesn doesn't hadn hadn't hasn hasn't haven haven't isn isn't ma mightn
mightn't mustn mustn't needn needn't shan shan't shouldn shouldn't wasn
wasn't weren weren't won won't wouldn wouldn't
"""
STOP_WORDS = frozenset(ENGLISH.split())
# By vectors, one number is nearest to another.
ENGLISH_NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen
fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty
sixty seventy eighty ninety hundred thousand million billion trillion dozen
"""
NUMBERS = frozenset(ENGLISH_NUMBERS.split())


def may_have_synonyms(
  tokens: Sequence[str], stop_words: Collection[str]
) -> np.ndarray:
  """Returns bool_V: True for words that are not stop words."""
  excluded = {"", *stop_words}
  words = read_words(tuple(tokens)).words
  return np.array([word.lower() not in excluded for word in words], bool)


def fingerprint(words: Collection[str]) -> str:
  """Returns 16 hex digits over stop words, as a table's options record them."""
  return short_sha256("\n".join(sorted(set(words))))


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """The tokens that synonyms are looked up for, and how they are written."""

  tokens: Sequence[str]  # the vocabulary, token `i` at position `i`
  normalize: Callable[[str], str] = str  # writes a word like the tokenizer
  # In lower case, such as stop words: have no nearest neighbours and are none.
  no_neighbours: Collection[str] = frozenset()

  @functools.cached_property
  def words(self) -> dict[str, None]:
    """The words among the tokens, in the order of the tokens."""
    return dict.fromkeys(read_words(tuple(self.tokens)).ids)

  def match(self, entry: str) -> set[str]:
    """Returns the words that an entry of a lexicon stands for.

    `Élève` stands for itself, `élève` and, if the tokenizer strips accents,
    `eleve`. But `sûr` does not stand for `sur`, one of `no_neighbours`.
    """
    forms = {entry, entry.lower()}
    normalized = self.normalize(entry).strip()
    if normalized not in self.no_neighbours:
      forms.add(normalized)
    return self.words.keys() & forms

  def may_have_neighbours(self, word: str) -> bool:
    """Returns whether a word has nearest neighbours by vectors, and is one.

    By vectors, punctuation is nearest to function words, and one number to
    another: only words of letters, maybe with accents, and none of
    `no_neighbours` have any.
    """
    if word.lower() in self.no_neighbours:
      return False
    kinds = {unicodedata.category(c)[0] for c in word}
    return kinds <= {"L", "M"} and any(map(str.isalpha, word))

  def are_forms(self, word: str, other: str) -> bool:
    """Returns whether two words differ at most as the tokenizer ignores it."""
    return self.normalize(word).lower() == self.normalize(other).lower()

  def list_pairs(
    self, word: str, synonyms: Iterable[str]
  ) -> Iterator[tuple[str, str]]:
    """Yields (word, synonym) in alphabetical order, without forms of `word`."""
    for synonym in sorted(synonyms):
      if not self.are_forms(word, synonym):
        yield word, synonym
