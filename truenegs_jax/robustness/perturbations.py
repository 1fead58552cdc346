"""Small changes of characters: typos and case."""

import dataclasses
import random
import re
from collections.abc import Callable, Sequence

from truenegs_jax.robustness.transformation import (
  Edit,
  Refused,
  Span,
  Transformation,
  answer_spans,
  change_texts,
  edit_text,
  num_changes,
)
from truenegs_jax.synonyms.vocabulary import NUMBERS
from truenegs_jax.tasks.task import Example, Question

FindEdits = Callable[[str, Sequence[Span], random.Random], list[Edit]]

NO_PLACE = "no place for a change"
WORD = r"[^\W_]+(?:['’][^\W_]+)*"
KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
SAFE_OMISSION = 8  # letters; "health" without one would be "heath"


def mistype(
  text: str, protected: Sequence[Span], rng: random.Random
) -> list[Edit]:
  """Mistypes a letter, not the first, in a tenth of the words, at most ten.

  A letter is swapped with the next one, hit together with a neighbour on a
  QWERTY keyboard, or instead of it, or left out. Names, numbers, short words
  and omissions that often make another word ("form", "heath") are spared.

  Returns:
    Edits outside the protected ranges; none if the text has no place for one.
  """
  words = [
    match
    for match in re.finditer(r"\b[a-z]{5,}\b", text)
    if match[0] not in NUMBERS
    if not any(match.start() < b and match.end() > a for a, b in protected)
  ]
  count = num_changes(len(text.split()), len(words))
  edits = []
  for match in sorted(rng.sample(words, count), key=re.Match.start):
    i = match.start() + rng.randrange(1, len(match[0]) - 1)
    letter, following = text[i], text[i + 1]
    near = rng.choice(_keys_around(letter))
    choices = [(i, i + 1, new) for new in (near, near + letter)]
    if len(match[0]) >= SAFE_OMISSION:
      choices.append((i, i + 1, ""))
    if letter != following:
      choices.append((i, i + 2, following + letter))
    edits.append(rng.choice(choices))
  return edits


def change_case(
  text: str, protected: Sequence[Span], rng: random.Random
) -> list[Edit]:
  """Writes all words in lower case, in upper case, or with a capital.

  Models without case read the same text: their scores must not change. Lengths
  stay: "Gauß" is not written in upper case.
  """
  words = [
    match
    for match in re.finditer(WORD, text)
    if not any(match.start() < b and match.end() > a for a, b in protected)
  ]
  styles: list[Callable[[str], str]] = [str.lower, str.upper, _capitalize]
  for style in rng.sample(styles, len(styles)):
    edits = [
      (*match.span(), new)
      for match in words
      if len(new := style(match[0])) == len(match[0])
    ]
    if any(text[a:b] != new for a, b, new in edits):
      return edits
  return []


PERTURBATIONS: dict[str, tuple[str, FindEdits]] = {
  "typos": ("Typos", mistype),
  "case": ("Case", change_case),
}


def make_perturbation(name: str) -> Transformation:
  """Makes the transformation of a name in PERTURBATIONS.

  It changes both texts of an `Example`, or the context of a `Question`.
  """
  title, find_edits = PERTURBATIONS[name]

  def change(
    text: str, protected: Sequence[Span], rng: random.Random
  ) -> tuple[str, list[Span]]:
    edits = find_edits(text, protected, rng)
    if not edits:
      raise Refused(NO_PLACE)
    return edit_text(text, edits, protected)

  def apply(
    example: Question | Example, rng: random.Random
  ) -> Question | Example:
    if isinstance(example, Example):
      return change_texts(example, lambda text: change(text, (), rng)[0])
    spans = answer_spans(example)
    if find_edits is change_case:  # answers, too: they must not stand out
      context, _ = change(example.context, (), rng)
    else:
      context, spans = change(example.context, spans, rng)
    answers = tuple((context[a:b], a) for a, b in spans)
    return dataclasses.replace(example, context=context, answers=answers)

  return Transformation(name, title, apply)


def _keys_around(letter: str) -> str:
  """Returns the letters next to a letter on a QWERTY keyboard."""
  [(row, column)] = [
    (i, keys.index(letter)) for i, keys in enumerate(KEYBOARD) if letter in keys
  ]
  around = ((0, -1), (0, 1), (-1, 0), (-1, 1), (1, -1), (1, 0))
  return "".join(
    KEYBOARD[row + i][column + j]
    for i, j in around
    if 0 <= row + i < len(KEYBOARD)
    if 0 <= column + j < len(KEYBOARD[row + i])
  )


def _capitalize(word: str) -> str:
  return word[0].upper() + word[1:]
