"""Writes tokens as text by TextFlint's rules, and finds the answers there."""

import re
from collections.abc import Sequence

from truenegs_jax.robustness.transformation import Refused, Span
from truenegs_jax.tasks.squad import Question

ILLEGAL = "an answer is not its tokens"

# Applied in order to the tokens, joined by spaces. All but the quotes only
# remove spaces; plain quotes keep theirs on both sides.
RULES = (
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


def detokenize(tokens: Sequence[str]) -> tuple[str, list[Span]]:
  """Returns the text of tokens without spaces, and the place of each token."""
  text = " ".join(tokens)
  for pattern, replacement in RULES:
    text = re.sub(pattern, replacement, text)
  characters = [i for i, character in enumerate(text) if character != " "]
  spans, end = [], 0
  for token in tokens:
    start = end
    end += 1 if token in ("``", "''") else len(token)
    spans.append((characters[start], characters[end - 1] + 1))
  return text, spans


def find_tokens(tokens: Sequence[Span], span: Span) -> Span:
  """Returns the tokens, first and after last, that overlap a range of a text.

  Raises:
    Refused: there is none.
  """
  start, end = span
  overlap = [i for i, (a, b) in enumerate(tokens) if a < end and start < b]
  if not overlap:
    raise Refused(ILLEGAL)
  return overlap[0], overlap[-1] + 1


def replace_context(
  question: Question, tokens: Sequence[str], answers: Sequence[Span]
) -> Question:
  """Returns the question on a context of other tokens.

  Args:
    question: the question.
    tokens: tokens of the new context.
    answers: tokens of each answer of `question`, first and after last.

  Raises:
    Refused: the text of an answer's tokens differs from the answer in more than
      case, articles and white space, as where it is a part of a token.
  """
  context, spans = detokenize(tokens)
  new_answers = []
  for (text, _), (first, last) in zip(question.answers, answers, strict=True):
    start, end = spans[first][0], spans[last - 1][1]
    if _normalize(context[start:end]) != _normalize(text):
      raise Refused(ILLEGAL)
    new_answers.append((context[start:end], start))
  return Question(
    key=question.key,
    text=question.text,
    context=context,
    answers=tuple(new_answers),
    location=question.location,
  )


def _normalize(text: str) -> str:
  return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower()).split())
