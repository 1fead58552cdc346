"""Transformations of examples, and the sets that they make of a data set.

A transformation changes the texts of an example and keeps its label or answers.
It draws from a generator of the example's own, so that a set depends neither on
the order of its examples nor on the process.
"""

import collections
import dataclasses
import importlib.resources
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from truenegs_jax.robustness.eval_set import EvalSet
from truenegs_jax.tasks.task import Example, Question

if TYPE_CHECKING:
  from spacy.tokens import Token

Text = TypeVar("Text", Question, Example)
Span = tuple[int, int]  # first character or token, and after the last

BLANK = "the text is blank"
SAME = "nothing was changed"
ILLEGAL = "an answer is not its tokens"
# TextFlint's lists of words and of fake answers.
_WORDS = importlib.resources.files(__package__) / "textflint.json"
WORDS: Mapping[str, Any] = json.loads(_WORDS.read_text(encoding="utf-8"))
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
  """An example cannot be transformed; the message is the cause, for counts."""


@dataclasses.dataclass(frozen=True)
class Transformation:
  """A change of the texts of an example that keeps its label or answers."""

  name: str  # in configs, "swap_synonyms"
  title: str  # in tables, "SwapSynWordNet"
  # Returns an example of the same key and type; raises Refused.
  apply: Callable[[Any, random.Random], Any]
  # Names of what it uses, {"synonyms": "WordNet"}; for results.
  resources: Mapping[str, str] = dataclasses.field(default_factory=dict)


def transform_all(
  examples: Sequence[Text],
  transformation: Transformation,
  *,
  seed: int,
  advance: Callable[[], None] = lambda: None,
) -> EvalSet:
  """Transforms examples, and counts those that are refused by cause.

  Blank texts and unchanged ones are refused. `advance` is called after each.
  """
  original = []
  transformed = []
  refused: collections.Counter[str] = collections.Counter()
  for example in examples:
    try:
      if not all(text.strip() for text in example.texts):
        raise Refused(BLANK)
      rng = random.Random(f"{seed}/{transformation.name}/{example.key}")
      changed = transformation.apply(example, rng)
      if changed.texts == example.texts:
        raise Refused(SAME)
    except Refused as error:
      refused[str(error)] += 1
    else:
      original.append(example)
      transformed.append(changed)
    advance()
  about = {
    "seed": seed,
    "resources": dict(transformation.resources),
    "tried": len(examples),
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


def find_answers(question: Question, tokens: "Sequence[Token]") -> list[Span]:
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
