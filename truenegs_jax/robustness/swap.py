"""Swaps words for synonyms: TextFlint's SwapSynWordNet.

A tenth of the tokens is swapped, at most ten, of those that are no function
words and in no answer. A synonym stands in for a token as it is: neither
inflection nor capital is restored. TextFlint takes the first synonym of a
Python set; here it is drawn.
"""

import dataclasses
import functools
import random
import string
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from truenegs_jax.robustness import transformation
from truenegs_jax.robustness.annotate import Annotator, find_tag
from truenegs_jax.robustness.transformation import Refused, Transformation
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.wordnet import WordNetReader
from truenegs_jax.tasks.task import Example, Question

if TYPE_CHECKING:
  from spacy.tokens import Token

NO_SYNONYM = "no token has a synonym"
NEVER_SWAPPED = frozenset(transformation.WORDS["never_swapped"])  # case counts
PARTS_OF_SPEECH = {"JJ": "a", "VB": "v", "NN": "n", "RB": "r"}

# Synonyms of a token with a tag of the Penn Treebank, without the token.
Synonyms = Callable[[str, str], Sequence[str]]


def make_swap(annotator: Annotator, reader: WordNetReader) -> Transformation:
  """Makes the transformation, with synonyms of WordNet."""
  source = f"WordNet {reader.get_version() or '(unknown version)'}"
  apply = SwapSynonyms(annotator, textflint_synonyms(reader))
  resources = {"annotations": annotator.name, "synonyms": source}
  return Transformation("swap_synonyms", "SwapSynWordNet", apply, resources)


@dataclasses.dataclass(frozen=True)
class SwapSynonyms:
  """The transformation of questions' contexts and of labeled texts."""

  annotator: Annotator
  synonyms: Synonyms

  def __call__(
    self, example: Question | Example, rng: random.Random
  ) -> Question | Example:
    """Swaps words; refused are examples without a word that has a synonym."""
    if isinstance(example, Question):
      tokens = self.annotator.list_tokens(example.context)
      answers = transformation.find_answers(example, tokens)
      protected = {i for answer in answers for i in range(*answer)}
      words = self._swap(tokens, protected, rng)
      return transformation.replace_context(example, words, answers)
    # One text of a pair may stay.
    fields = {}
    for name, text in zip(("first", "second"), example.texts, strict=False):
      tokens = self.annotator.list_tokens(text)
      try:
        words = self._swap(tokens, (), rng)
      except Refused:
        continue
      fields[name], _ = transformation.detokenize(words)
    if not fields:
      raise Refused(NO_SYNONYM)
    return dataclasses.replace(example, **fields)

  def _swap(
    self,
    tokens: "Sequence[Token]",
    protected: Collection[int],
    rng: random.Random,
  ) -> list[str]:
    """Returns the tokens with some swapped; Refused if none has a synonym."""
    words = [token.text for token in tokens]
    choices = {
      i: names
      for i, word in enumerate(words)
      if i not in protected
      if word not in NEVER_SWAPPED and word not in string.punctuation
      if (names := self.synonyms(word, find_tag(tokens[i])))
    }
    if not choices:
      raise Refused(NO_SYNONYM)
    count = min(max(len(words) // 10, 1), 10, len(choices))
    for i in sorted(rng.sample(list(choices), count)):
      words[i] = rng.choice(choices[i])
    return words


def textflint_synonyms(reader: WordNetReader) -> Synonyms:
  """Returns TextFlint's synonyms: lemmas of a token's synsets, single words.

  Only synsets of the tag's part of speech count, where it is one of WordNet's;
  for adjectives, satellites do not.
  """

  @functools.cache
  def find(token: str, tag: str) -> tuple[str, ...]:
    pos = PARTS_OF_SPEECH.get(tag[:2], "")
    names = wordnet.find_lemma_names(
      token, reader, pos=pos or wordnet.PARTS_OF_SPEECH, satellites=not pos
    )
    return tuple(name for name in names if name != token and "_" not in name)

  return find
