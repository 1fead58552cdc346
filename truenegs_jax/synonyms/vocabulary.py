"""The vocabulary that synonyms are looked up for."""

import dataclasses
import functools
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from truenegs_jax.synonyms.stop_words import is_word


def is_spelled(word: str, *, also: str = "") -> bool:
  """Returns whether a word has a letter, and else only letters, marks (such as
  accents) and the characters in `also`; so not `.`, `2` or `1990s`."""
  return any(map(str.isalpha, word)) and all(
    c in also or unicodedata.category(c)[0] in "LM" for c in word
  )


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """The tokens that synonyms are looked up for, and how they are written.

  Attributes:
    tokens: the vocabulary, token `i` at position `i`.
    normalize: writes a word as the tokenizer does, see `Tokenizer.normalize`.
    no_neighbours: words in lower case, such as stop words, that have no nearest
      neighbours and are none, see `may_have_neighbours`.
    report: receives warnings about the files of sources.
  """

  tokens: Sequence[str]
  normalize: Callable[[str], str] = str
  no_neighbours: Collection[str] = frozenset()
  report: Callable[[str], object] = str

  @functools.cached_property
  def words(self) -> dict[str, None]:
    """The whole words among the tokens, in the order of the tokens."""
    return dict.fromkeys(filter(is_word, self.tokens))

  def match(self, entry: str) -> set[str]:
    """Returns the words that an entry of a lexicon stands for.

    These are the entry as written, in lower case, and as the tokenizer writes
    it: `Élève` stands for `élève` or, if accents are stripped, for `eleve`.
    """
    normalized = self.normalize(entry).strip()
    return self.words.keys() & {entry, entry.lower(), normalized}

  def may_have_neighbours(self, token: str) -> bool:
    """Returns whether a token has nearest neighbours by vectors, and is one.

    Such a token is a word of letters, see `is_spelled`, and none of
    `no_neighbours`: by vectors, punctuation is nearest to function words, and
    one number to another.
    """
    is_content = is_spelled(token) and token.lower() not in self.no_neighbours
    return is_word(token) and is_content

  def are_forms(self, word: str, other: str) -> bool:
    """Returns whether two words differ at most in case, and in accents if the
    tokenizer strips them: they are no synonyms of each other."""
    return self.normalize(word).lower() == self.normalize(other).lower()

  def list_pairs(
    self, word: str, synonyms: Iterable[str]
  ) -> Iterator[tuple[str, str]]:
    """Yields (word, synonym) in alphabetical order, without forms of `word`."""
    for synonym in sorted(synonyms):
      if not self.are_forms(word, synonym):
        yield word, synonym
