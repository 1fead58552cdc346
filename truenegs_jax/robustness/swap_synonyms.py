"""Swaps words for synonyms: TextFlint's SwapSynWordNet, or any table of ours.

The rules are TextFlint's: a tenth of the tokens, at most ten, of those that are
no function words and in no answer. A synonym stands in for a token as it is:
neither inflection nor capital is restored. TextFlint takes the first synonym of
a Python set; here it is drawn.
"""

import dataclasses
import functools
import random
import string
from collections.abc import Callable, Collection, Iterable, Sequence

from truenegs_jax.data.corpus.readers import WordNetReader
from truenegs_jax.robustness.annotate import Annotator, Token
from truenegs_jax.robustness.transformation import (
  Refused,
  Transformation,
  answer_spans,
  change_texts,
  detokenize,
  find_tokens,
  num_changes,
  replace_context,
)
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import sources, wordnet
from truenegs_jax.synonyms.vocabulary import (
  NUMBERS,
  STOP_WORDS,
  Vocabulary,
)
from truenegs_jax.tasks.squad import Question
from truenegs_jax.tasks.task import Example

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


def make_swap(
  annotator: Annotator,
  *,
  synonyms: str = "",
  wordnet_dir: str = "",
  vocabulary: Vocabulary,
) -> Transformation:
  """Makes the transformation for a value of `robustness.synonyms`.

  Args:
    annotator: splits and tags the texts.
    synonyms: "" for TextFlint's, or an expression of sources.
    wordnet_dir: folder of WordNet; "" searches for it.
    vocabulary: tokens of the model, for an expression. Stop words and numbers
      have no neighbours by vectors.

  Raises:
    InputError, DataError: a source is unknown, missing or damaged.
  """
  if not synonyms:
    reader = wordnet.open_wordnet(wordnet_dir)
    source = f"WordNet {reader.get_version() or '(unknown version)'}"
    wordnet.close_wordnet(reader)
    find = textflint_synonyms(reader)
    return swap_synonyms(annotator, find, title="SwapSynWordNet", source=source)
  expression = sources.parse_expression(
    synonyms, key="robustness.synonyms", wordnet_dir=wordnet_dir
  )
  vocabulary = dataclasses.replace(
    vocabulary, no_neighbours=STOP_WORDS | NUMBERS
  )
  if expression.model:
    raise InputError(
      f"robustness.synonyms={synonyms!r}: this source is only for pre-training,"
      " in which it changes. Choose another one."
    )
  pairs = sources.find_pairs(expression, vocabulary)
  return swap_synonyms(
    annotator,
    table_synonyms(pairs),
    title="Synonym swap",
    source=expression.identity,
  )


def swap_synonyms(
  annotator: Annotator, synonyms: Synonyms, *, title: str, source: str
) -> Transformation:
  """Makes the transformation of a lookup; `source` names it in results."""

  def apply(
    example: Question | Example, rng: random.Random
  ) -> Question | Example:
    if isinstance(example, Question):
      return _swap_in_context(example, annotator, synonyms, rng)

    def swap(text: str) -> str:
      words = _swap(_tokens(annotator, text), (), synonyms, rng)
      return detokenize(words)[0]

    return change_texts(example, swap)

  resources = {"annotations": annotator.name, "synonyms": source}
  return Transformation("swap_synonyms", title, apply, resources)


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


def table_synonyms(pairs: Iterable[tuple[str, str]]) -> Synonyms:
  """Returns the synonyms of pairs, whatever the tag, in the token's case.

  A token that is not among the words is looked up in lower case.
  """
  table: dict[str, set[str]] = {}
  for word, synonym in pairs:
    table.setdefault(word, set()).add(synonym)

  @functools.cache
  def find(token: str) -> tuple[str, ...]:
    names = table.get(token) or table.get(token.lower()) or set()
    cased = {_match_case(name, token) for name in names if "_" not in name}
    return tuple(sorted(cased - {token}))

  def find_any_tag(token: str, tag: str) -> tuple[str, ...]:
    return find(token)

  return find_any_tag


def _swap_in_context(
  question: Question,
  annotator: Annotator,
  synonyms: Synonyms,
  rng: random.Random,
) -> Question:
  tokens = _tokens(annotator, question.context)
  places = [(token.start, token.end) for token in tokens]
  answers = [find_tokens(places, span) for span in answer_spans(question)]
  protected = {i for answer in answers for i in range(*answer)}
  words = _swap(tokens, protected, synonyms, rng)
  return replace_context(question, words, answers)


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


def _tokens(annotator: Annotator, text: str) -> list[Token]:
  return [token for sentence in annotator(text) for token in sentence.tokens]


def _match_case(word: str, model: str) -> str:
  if model.isupper() and len(model) > 1:
    return word.upper()
  return word[:1].upper() + word[1:] if model[:1].isupper() else word
