"""Transformations of examples, and the sets that they make of a data set.

A transformation changes the texts of an example and keeps its label or answers.
It draws from a generator of the example's own, so that a set depends neither on
the order of its examples nor on the process.

  result = transform_all(questions, transformation, seed=0)
  result.about["refused"]
"""

import collections
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from truenegs_jax.finetune.results import fingerprint
from truenegs_jax.robustness.eval_set import EvalSet
from truenegs_jax.tasks import task
from truenegs_jax.tasks.squad import Question

Example = TypeVar("Example", Question, task.Example)
Span = tuple[int, int]  # first character, and after the last
Edit = tuple[int, int, str]  # a span and the text that replaces it

BLANK, SAME = "the text is blank", "nothing was changed"


class Refused(Exception):
  """An example cannot be transformed; the message is the cause, for counts."""


@dataclasses.dataclass(frozen=True)
class Transformation:
  """A change of the texts of an example that keeps its label or answers.

  Attributes:
    name: name in configs, "swap_synonyms".
    title: name in tables, "SwapSynWordNet".
    apply: returns an example with the same key; raises Refused. May be called
      with a `Question` or, unless `questions_only`, a `task.Example`.
    resources: names of what it uses, {"synonyms": "WordNet"}; for results.
    questions_only: whether it does not apply to labeled texts.
  """

  name: str
  title: str
  apply: Callable[[Any, random.Random], Any]
  resources: Mapping[str, str] = dataclasses.field(default_factory=dict)
  questions_only: bool = False


def example_rng(seed: int, name: str, key: str) -> random.Random:
  """Returns the generator of an example, the same in every process."""
  return random.Random(f"{seed}/{name}/{key}")


def transform_all(
  examples: Sequence[Example],
  transformation: Transformation,
  *,
  seed: int,
  advance: Callable[[], None] = lambda: None,
) -> EvalSet:
  """Transforms examples, and counts those that are refused by cause.

  An example with a blank text is refused, and so is one that would stay as it
  is. `advance` is called after each.
  """
  original, transformed = [], []
  refused: collections.Counter[str] = collections.Counter()
  for example in examples:
    try:
      if not all(text.strip() for text in texts(example)):
        raise Refused(BLANK)
      rng = example_rng(seed, transformation.name, example.key)
      changed = transformation.apply(example, rng)
      if texts(changed) == texts(example):
        raise Refused(SAME)
    except Refused as error:
      refused[str(error)] += 1
    else:
      original.append(example)
      transformed.append(changed)
    advance()
  about = {
    **describe_origin(examples, transformation, seed),
    "changed": len(original),
    "refused": dict(refused.most_common()),
  }
  name, title = transformation.name, transformation.title
  return EvalSet(name, title, original, transformed, about)


def describe_origin(
  examples: Sequence[Example], transformation: Transformation, seed: int
) -> dict[str, Any]:
  """Returns all that a transformed set depends on, in JSON's types."""
  rows = (dataclasses.replace(x, location="") for x in examples)
  return {
    "seed": seed,
    "resources": dict(transformation.resources),
    "tried": len(examples),
    "fingerprint": fingerprint(repr(row).encode() for row in rows),
  }


def texts(example: Question | task.Example) -> tuple[str, ...]:
  """Returns context and question, or the one or two labeled texts."""
  if isinstance(example, Question):
    return example.context, example.text
  if example.second is None:
    return (example.first,)
  return example.first, example.second


def change_texts(
  example: task.Example, change: Callable[[str], str]
) -> task.Example:
  """Changes both texts; one that `change` refuses stays, if the other does not.

  Raises:
    Refused: both are refused.
  """
  changed: list[str] = []
  errors: list[Refused] = []
  for text in texts(example):
    try:
      changed.append(change(text))
    except Refused as error:
      changed.append(text)
      errors.append(error)
  if len(errors) == len(changed):
    raise errors[0]
  second = None if example.second is None else changed[1]
  return dataclasses.replace(example, first=changed[0], second=second)


def num_changes(num_tokens: int, num_eligible: int) -> int:
  """Returns TextFlint's count: a tenth of a text's tokens, from 1 to 10."""
  return min(max(num_tokens // 10, 1), 10, num_eligible)


def answer_spans(question: Question) -> list[Span]:
  """Returns the characters of each answer in the context."""
  return [(start, start + len(text)) for text, start in question.answers]


def edit_text(
  text: str, edits: Sequence[Edit], spans: Sequence[Span]
) -> tuple[str, list[Span]]:
  """Replaces ranges of a text.

  Args:
    text: the text.
    edits: ranges that do not overlap, in order, and the text of each instead;
      an empty range inserts.
    spans: ranges that must not be edited; they may overlap.

  Returns:
    The new text, and the new places of `spans`. A text inserted at the first
    character of a span is before the span.

  Raises:
    ValueError: an edit overlaps another one or a span.
  """
  pieces, end = [], 0
  for first, last, new in edits:
    if not end <= first <= last <= len(text):
      raise ValueError(f"edit {first}:{last} after {end} of {len(text)}")
    if any(first < b and last > a for a, b in spans):
      raise ValueError(f"edit {first}:{last} is in a protected span")
    pieces += [text[end:first], new]
    end = last
  moved = []
  for a, b in spans:
    shift = sum(len(new) - (last - i) for i, last, new in edits if last <= a)
    moved.append((a + shift, b + shift))
  return "".join([*pieces, text[end:]]), moved
