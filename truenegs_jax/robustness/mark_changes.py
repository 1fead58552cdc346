"""Marks the changes of a text for reports."""

import difflib
import re

CONTEXT_TOKENS = 8  # of an unchanged range, before and after a change


def mark_changes(original: str, transformed: str) -> str:
  """Returns the new text with its changes: [old -> new], [+new] or [-old].

  White space is not compared. Long unchanged ranges are shortened to "...".
  """
  old, new = (
    re.findall(r"\s*(?:\w+(?:['’]\w+)*|[^\w\s])", text)
    for text in (original, transformed)
  )
  matcher = difflib.SequenceMatcher(
    None, [x.strip() for x in old], [x.strip() for x in new], autojunk=False
  )
  pieces = []
  for kind, a, b, c, d in matcher.get_opcodes():
    if kind == "equal":
      head = CONTEXT_TOKENS if c else 0
      tail = CONTEXT_TOKENS if d < len(new) else 0
      pieces += _shorten(new[c:d], head, tail)
    else:
      before, after = "".join(old[a:b]), "".join(new[c:d])
      text = after or before
      space = text[: len(text) - len(text.lstrip())]
      pieces.append(f"{space}[{_format(before.strip(), after.strip())}]")
  return "".join(pieces)


def _shorten(tokens: list[str], head: int, tail: int) -> list[str]:
  if len(tokens) <= head + tail + 1:
    return tokens
  return [*tokens[:head], " ...", *tokens[len(tokens) - tail :]]


def _format(before: str, after: str) -> str:
  if before and after:
    return f"{before} -> {after}"
  return f"+{after}" if after else f"-{before}"
