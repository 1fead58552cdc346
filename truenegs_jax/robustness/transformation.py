"""Transformations of questions, such as the swap of words for synonyms.

A transformation changes the context of a question and keeps its answers. It
draws from a generator of the question's own, so that a set depends neither on
the order of its questions nor on the process.

The swap is TextFlint's SwapSynWordNet. A tenth of the tokens is swapped, at
most ten, of those that are no function words and in no answer. A synonym stands
in for a token as it is: neither inflection nor capital is restored. TextFlint
takes the first synonym of a Python set; here it is drawn.
"""

import collections
import dataclasses
import functools
import importlib.resources
import json
import random
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from truenegs_jax.robustness.annotate import Annotator, Token, find_tag
from truenegs_jax.robustness.eval_set import EvalSet
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.wordnet import WordNetReader
from truenegs_jax.tasks.task import Question

Span = tuple[int, int]  # first character or token, and after the last
# Synonyms of a token with a tag of the Penn Treebank, without the token.
Synonyms = Callable[[str, str], Sequence[str]]

BLANK = "the text is blank"
SAME = "nothing was changed"
ILLEGAL = "an answer is not its tokens"
NO_SYNONYM = "no token has a synonym"
# TextFlint's lists of words and of fake answers.
_WORDS = importlib.resources.files(__package__) / "textflint.json"
WORDS: Mapping[str, Any] = json.loads(_WORDS.read_text(encoding="utf-8"))
NEVER_SWAPPED = frozenset(WORDS["never_swapped"])  # case counts
PARTS_OF_SPEECH = {"JJ": "a", "VB": "v", "NN": "n", "RB": "r"}
# Applied in order to the tokens, joined by spaces. All but the quotes only
# remove spaces; plain quotes keep theirs on both sides.
DETOKENIZING = (
  (r"(?:^| )''(?!\S)", '"'),
  (r"(?<!\S)``(?: |(?=\"|$))", '"'),
  (r"(?<!\S)\( ", "("),
  (r" \)(?!\S)", ")"),
  (r" ([.,:;?!%]+)(?=[ '\"`]|$)", r"\1"),
  (r" (?=')", ""),
  (r" (?=n't)", ""),
  (r"can not", "cannot"),
  (r" - ", "-"),
)


class Refused(Exception):
  """A question cannot be transformed; the message is the cause, for counts."""


@dataclasses.dataclass(frozen=True)
class Transformation:
  """A change of the contexts of questions that keeps their answers."""

  name: str  # in configs, "swap_synonyms"
  title: str  # in tables, "SwapSynWordNet"
  # Returns a question of the same key; raises Refused.
  apply: Callable[[Question, random.Random], Question]
  # Names of what it uses, {"synonyms": "WordNet"}; for results.
  resources: Mapping[str, str] = dataclasses.field(default_factory=dict)


def transform_all(
  questions: Sequence[Question],
  transformation: Transformation,
  *,
  seed: int,
  advance: Callable[[], None] = lambda: None,
) -> EvalSet:
  """Transforms questions, and counts those that are refused by cause.

  Blank texts and unchanged ones are refused. `advance` is called after each.
  """
  original = []
  transformed = []
  refused: collections.Counter[str] = collections.Counter()
  for question in questions:
    try:
      if not all(text.strip() for text in question.texts):
        raise Refused(BLANK)
      rng = random.Random(f"{seed}/{transformation.name}/{question.key}")
      changed = transformation.apply(question, rng)
      if changed.texts == question.texts:
        raise Refused(SAME)
    except Refused as error:
      refused[str(error)] += 1
    else:
      original.append(question)
      transformed.append(changed)
    advance()
  about = {
    "seed": seed,
    "resources": dict(transformation.resources),
    "tried": len(questions),
    "changed": len(original),
    "refused": dict(refused.most_common()),
  }
  return EvalSet(
    transformation.name, transformation.title, original, transformed, about
  )


def detokenize(tokens: Sequence[str]) -> tuple[str, list[Span]]:
  """Returns the text of tokens without spaces, and the place of each token."""
  text = " ".join(tokens)
  for pattern, replacement in DETOKENIZING:
    text = re.sub(pattern, replacement, text)
  characters = [i for i, character in enumerate(text) if character != " "]
  spans = []
  end = 0
  for token in tokens:
    start = end
    end += 1 if token in ("``", "''") else len(token)
    spans.append((characters[start], characters[end - 1] + 1))
  return text, spans


def find_answers(question: Question, tokens: Sequence[Token]) -> list[Span]:
  """Returns each answer's first token and the one after its last."""
  places = []
  for text, start in question.answers:
    end = start + len(text)
    overlap = [
      i for i, x in enumerate(tokens) if x.idx < end and start < x.idx + len(x)
    ]
    if not overlap:
      raise Refused(ILLEGAL)
    places.append((overlap[0], overlap[-1] + 1))
  return places


def replace_context(
  question: Question, tokens: Sequence[str], answers: Sequence[Span]
) -> Question:
  """Returns the question on a context of other tokens.

  `answers` are the tokens of each answer, first and after last. It is refused
  if an answer is not its tokens, but for case, articles and spaces.
  """
  context, spans = detokenize(tokens)
  new_answers = []
  for (text, _), (first, last) in zip(question.answers, answers, strict=True):
    start = spans[first][0]
    end = spans[last - 1][1]
    if _normalize(context[start:end]) != _normalize(text):
      raise Refused(ILLEGAL)
    new_answers.append((context[start:end], start))
  return dataclasses.replace(
    question, context=context, answers=tuple(new_answers)
  )


def _normalize(text: str) -> str:
  return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower()).split())


def make_swap(annotator: Annotator, reader: WordNetReader) -> Transformation:
  """Makes the transformation, with synonyms of WordNet."""
  source = f"WordNet {reader.get_version() or '(unknown version)'}"
  apply = SwapSynonyms(annotator, textflint_synonyms(reader))
  resources = {"annotations": annotator.name, "synonyms": source}
  return Transformation("swap_synonyms", "SwapSynWordNet", apply, resources)


@dataclasses.dataclass(frozen=True)
class SwapSynonyms:
  """The transformation of contexts."""

  annotator: Annotator
  synonyms: Synonyms

  def __call__(self, question: Question, rng: random.Random) -> Question:
    """Swaps words; refused are questions without a word that has a synonym."""
    tokens = self.annotator.list_tokens(question.context)
    answers = find_answers(question, tokens)
    protected = {i for answer in answers for i in range(*answer)}
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
    return replace_context(question, words, answers)


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
