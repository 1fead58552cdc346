"""Makes tokens of spaCy without a model."""

import re
from collections.abc import Sequence

import spacy
from spacy.tokens import Doc, Token

VOCAB = spacy.blank("en").vocab


def make_tokens(
  text: str,
  words: Sequence[str],
  tags: Sequence[str],
  entities: Sequence[str] = (),
) -> tuple[Token, ...]:
  """Returns the tokens of a text, which has the words in order.

  `entities` are the kind of each word's entity, or "".
  """
  kinds = dict(enumerate(entities))
  end = 0
  columns: dict[str, list] = {
    x: [] for x in ("words", "spaces", "tags", "ents")
  }
  for number, (word, tag) in enumerate(zip(words, tags, strict=True)):
    start = text.index(word, end)
    gap = text[end:start]
    if gap and end:
      columns["spaces"][-1] = True
      gap = gap[1:]
    entity = kinds.get(number)
    rows = (
      [(gap, "_SP", ""), (word, tag, entity)] if gap else [(word, tag, entity)]
    )
    for row in rows:
      columns["words"].append(row[0])
      columns["spaces"].append(False)
      columns["tags"].append(row[1])
      columns["ents"].append(f"B-{row[2]}" if row[2] else "O")
    end = start + len(word)
  doc = Doc(VOCAB, **columns)
  return tuple(token for token in doc if not token.is_space)


def tag_words(text: str, pattern: str, tag: str) -> tuple[Token, ...]:
  """Returns the matches of a pattern as tokens with the same tag."""
  words = re.findall(pattern, text)
  return make_tokens(text, words, [tag] * len(words))
