"""Small changes of characters: typos, case, punctuation and contractions.

Each is a function `fn(text, protected, rng)` that returns edits outside the
protected ranges, the answers; none if the text has no place for one.
"""

import dataclasses
import random
import re
from collections.abc import Callable, Mapping, Sequence

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
from truenegs_jax.tasks.squad import Question
from truenegs_jax.tasks.task import Example

FindEdits = Callable[[str, Sequence[Span], random.Random], list[Edit]]

NO_PLACE = "no place for a change"
IN_QUESTION = "_question"  # ends the names of changes of the question
WORD = r"[^\W_]+(?:['’][^\W_]+)*"
KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
MARKS = ".,;:!?"
# Between words in lower case, or a mark after one: no name, number or
# abbreviation is cut, as in "New, York", "4.5; million" or "U.S? Navy".
PLACE_OF_MARK = (
  r"(?<=[a-z][a-z ])(?:[,;:!?](?=\s|$)|\.(?=\s+[A-Z]|\s*$)|(?=\s+[a-z]))"
)
SAFE_OMISSION = 8  # letters; "health" without one would be "heath"

NEGATED = {
  f"{verb} not": f"{verb}n't"
  for verb in (
    *("is", "are", "was", "were", "do", "does", "did", "has", "have", "had"),
    *("could", "would", "should"),
  )
} | {"will not": "won't", "can not": "can't", "cannot": "can't"}
JOINED = {
  f"{subject} {verb}": f"{subject}'{ending}"
  for verb, ending, subjects in (
    ("am", "m", ("i",)),
    ("are", "re", ("you", "we", "they")),
    ("is", "s", ("he", "she", "it", "that", "there", "what", "who", "where")),
    ("will", "ll", ("i", "you", "he", "she", "it", "we", "they", "there")),
  )
  for subject in subjects
}
LONG_FORMS = {short: long for long, short in (NEGATED | JOINED).items()}
_CONTRACTIONS = (
  # Not at the end of a clause, "what it is"; "it is not" becomes "it isn't".
  (JOINED, r"(?=\s+(?!not\b|n't)[a-z])"),
  (NEGATED, r"\b"),
  # Not before a subject, "why didn't he"; not "it's been" and "it's called".
  (NEGATED.values(), r"(?=\s+(?!(?:the|an?|he|she|it|they|we|you)\b)[a-z])"),
  (JOINED.values(), r"(?=\s+(?!(?:been|got|had|become|\w+e[dn])\b)[a-z])"),
)
CONTRACTION = "|".join(
  rf"\b(?i:{'|'.join(forms)}){context}".replace("'", "['’]")
  for forms, context in _CONTRACTIONS
)


def typos(
  text: str, protected: Sequence[Span], rng: random.Random
) -> list[Edit]:
  """Mistypes a letter, not the first, in a tenth of the words, at most ten.

  A letter is swapped with the next one, hit together with a neighbour on a
  QWERTY keyboard, or instead of it, or left out. Names, numbers, short words
  and omissions that often make another word ("form", "heath") are spared.
  """
  words = _free(r"\b[a-z]{5,}\b", text, protected)
  words = [match for match in words if match[0] not in NUMBERS]
  edits = []
  for match in _sample(words, text, rng):
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


def case(
  text: str, protected: Sequence[Span], rng: random.Random
) -> list[Edit]:
  """Writes all words in lower case, in upper case, or with a capital.

  Models without case read the same text: their scores must not change. Lengths
  stay: "Gauß" is not written in upper case.
  """
  words = _free(WORD, text, protected)
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


def punctuation(
  text: str, protected: Sequence[Span], rng: random.Random
) -> list[Edit]:
  """Adds, removes or replaces marks after a tenth of the words, at most ten."""
  places = _free(PLACE_OF_MARK, text, protected)
  edits = []
  for match in _sample(places, text, rng):
    marks = ["", *MARKS]
    marks.remove(match[0])
    edits.append((*match.span(), rng.choice(marks)))
  return edits


def contractions(
  text: str, protected: Sequence[Span], rng: random.Random
) -> list[Edit]:
  """Contracts "it is" and "did not" and expands "it's" and "didn't".

  At least one of them, drawn; not those that would be wrong, see _CONTRACTIONS.
  """
  places = _free(CONTRACTION, text, protected)
  count = rng.randint(1, max(1, len(places)))
  edits = []
  for match in sorted(rng.sample(places, min(count, len(places))), key=_start):
    form = match[0].lower().replace("’", "'")
    new = LONG_FORMS.get(form) or (NEGATED | JOINED)[form]
    edits.append((*match.span(), match[0][0] + new[1:]))
  return edits


PERTURBATIONS: Mapping[str, tuple[str, FindEdits]] = {
  "typos": ("Typos", typos),
  "case": ("Case", case),
  "punctuation": ("Punctuation", punctuation),
  "contractions": ("Contractions", contractions),
}
NAMES = (*PERTURBATIONS, *(f"{name}{IN_QUESTION}" for name in PERTURBATIONS))


def make_perturbation(name: str) -> Transformation:
  """Makes the transformation of a name of NAMES.

  It changes both texts of an `Example`, or of a `Question` the context; or,
  with a name that ends with IN_QUESTION, the question itself.
  """
  title, find_edits = PERTURBATIONS[name.removesuffix(IN_QUESTION)]
  in_question = name.endswith(IN_QUESTION)

  def apply(
    example: Question | Example, rng: random.Random
  ) -> Question | Example:
    def change(
      text: str, protected: Sequence[Span] = ()
    ) -> tuple[str, list[Span]]:
      edits = find_edits(text, protected, rng)
      if not edits:
        raise Refused(NO_PLACE)
      return edit_text(text, edits, protected)

    if isinstance(example, Example):
      return change_texts(example, lambda text: change(text)[0])
    if in_question:
      return dataclasses.replace(example, text=change(example.text)[0])
    spans = answer_spans(example)
    if find_edits is case:  # answers, too: they must not stand out
      context, _ = change(example.context)
    else:
      context, spans = change(example.context, spans)
    answers = tuple((context[a:b], a) for a, b in spans)
    return dataclasses.replace(example, context=context, answers=answers)

  return Transformation(
    name,
    f"{title} (question)" if in_question else title,
    apply,
    questions_only=in_question,
  )


def _free(
  pattern: str, text: str, protected: Sequence[Span]
) -> list[re.Match[str]]:
  """Returns the matches that do not overlap a protected range."""
  return [
    match
    for match in re.finditer(pattern, text)
    if not any(match.start() < b and match.end() > a for a, b in protected)
  ]


def _sample(
  matches: Sequence[re.Match[str]], text: str, rng: random.Random
) -> list[re.Match[str]]:
  """Draws as many as `num_changes` of the words of the text, in order."""
  count = num_changes(len(text.split()), len(matches))
  return sorted(rng.sample(matches, count), key=_start)


def _start(match: re.Match[str]) -> int:
  return match.start()


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
