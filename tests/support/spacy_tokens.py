"""Makes tokens of spaCy without a model."""

import re
from collections.abc import Sequence

import spacy
from spacy.tokens import Doc, Token

VOCAB = spacy.blank("en").vocab
COLUMNS = "words", "spaces", "tags", "ents"


def make_tokens(
  text: str, words: Sequence[str], tags: Sequence[str]
) -> tuple[Token, ...]:
  """Returns the tokens of a text, which has the words in order.

  A tag is like "NNP", or like "NNP/PERSON" of a word that is an entity.
  """
  rows: list[list] = []
  end = 0
  for word, field in zip(words, tags, strict=True):
    start = text.index(word, end)
    gap = text[end:start]
    if gap and end:
      rows[-1][1] = True
      gap = gap[1:]
    if gap:
      rows.append([gap, False, "_SP", "O"])
    tag, _, entity = field.partition("/")
    rows.append([word, False, tag, f"B-{entity}" if entity else "O"])
    end = start + len(word)
  columns = map(list, zip(*rows, strict=True))
  doc = Doc(VOCAB, **dict(zip(COLUMNS, columns, strict=True)))
  return tuple(token for token in doc if not token.is_space)


def tag_words(text: str, pattern: str, tag: str) -> tuple[Token, ...]:
  """Returns the matches of a pattern as tokens with the same tag."""
  words = re.findall(pattern, text)
  return make_tokens(text, words, [tag] * len(words))
