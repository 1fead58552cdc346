"""Swaps words for synonyms: TextFlint's SwapSynWordNet.

The rules are TextFlint's: a tenth of the tokens, at most ten, of those that are
no function words and in no answer. A synonym stands in for a token as it is:
neither inflection nor capital is restored. TextFlint takes the first synonym of
a Python set; here it is drawn.
"""

import functools
import random
import string
from collections.abc import Callable, Collection, Sequence

from truenegs_jax.data.corpus.readers import WordNetReader
from truenegs_jax.robustness.annotate import Annotator, Token
from truenegs_jax.robustness.transformation import (
  Refused,
  Transformation,
  change_texts,
  detokenize,
  find_answers,
  num_changes,
  replace_context,
)
from truenegs_jax.synonyms import wordnet
from truenegs_jax.tasks.task import Example, Question

NO_SYNONYM = "no token has a synonym"
# Never swapped, in this case; TextFlint's list.
_NEVER = """
I my My mine you You your Your he He him Him his His she She her Her it It they
They their Their am are Are is Is and And or nor a A an An the The have Have has
Has in In by By on On of Of at At from From
"""
NEVER_SWAPPED = frozenset(_NEVER.split())
PARTS_OF_SPEECH = {"JJ": "a", "VB": "v", "NN": "n", "RB": "r"}

# Synonyms of a token with a tag of the Penn Treebank, without the token.
Synonyms = Callable[[str, str], Sequence[str]]


def make_swap(annotator: Annotator, wordnet_dir: str = "") -> Transformation:
  """Makes the transformation; "" searches for the folder of WordNet.

  Raises:
    InputError, DataError: WordNet is missing or damaged.
  """
  reader = wordnet.open_wordnet(wordnet_dir)
  source = f"WordNet {reader.get_version() or '(unknown version)'}"
  wordnet.close_wordnet(reader)
  return swap_synonyms(annotator, textflint_synonyms(reader), source)


def swap_synonyms(
  annotator: Annotator, synonyms: Synonyms, source: str
) -> Transformation:
  """Makes the transformation of a lookup; `source` names it in results."""

  def apply(
    example: Question | Example, rng: random.Random
  ) -> Question | Example:
    if isinstance(example, Question):
      tokens = annotator.list_tokens(example.context)
      answers = find_answers(example, tokens)
      protected = {i for answer in answers for i in range(*answer)}
      words = _swap(tokens, protected, synonyms, rng)
      return replace_context(example, words, answers)

    def swap(text: str) -> str:
      words = _swap(annotator.list_tokens(text), (), synonyms, rng)
      return detokenize(words)[0]

    return change_texts(example, swap)

  resources = {"annotations": annotator.name, "synonyms": source}
  return Transformation("swap_synonyms", "SwapSynWordNet", apply, resources)


def textflint_synonyms(reader: WordNetReader) -> Synonyms:
  """Returns TextFlint's synonyms: lemmas of a token's synsets, single words.

  Only synsets of the tag's part of speech count, where it is one of WordNet's;
  for adjectives, satellites do not.
  """

  @functools.cache
  def find(token: str, pos: str) -> tuple[str, ...]:
    names = wordnet.find_lemma_names(
      token,
      reader,
      pos=pos or wordnet.PARTS_OF_SPEECH,
      satellites=not pos,
    )
    wordnet.close_wordnet(reader)  # until the next token
    return tuple(name for name in names if name != token and "_" not in name)

  def find_by_tag(token: str, tag: str) -> tuple[str, ...]:
    return find(token, PARTS_OF_SPEECH.get(tag[:2], ""))

  return find_by_tag


def _swap(
  tokens: Sequence[Token],
  protected: Collection[int],
  synonyms: Synonyms,
  rng: random.Random,
) -> list[str]:
  """Returns the tokens with some swapped; Refused if none has a synonym."""
  words = [token.text for token in tokens]
  eligible = (
    i
    for i, word in enumerate(words)
    if i not in protected
    and word not in NEVER_SWAPPED
    and word not in string.punctuation
  )
  choices = {i: synonyms(words[i], tokens[i].tag) for i in eligible}
  choices = {i: names for i, names in choices.items() if names}
  if not choices:
    raise Refused(NO_SYNONYM)
  count = num_changes(len(words), len(choices))
  for i in sorted(rng.sample(list(choices), count)):
    words[i] = rng.choice(choices[i])
  return words
