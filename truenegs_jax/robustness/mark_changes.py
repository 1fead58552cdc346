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
      pieces += new[c:d]
      if d - c > head + tail + 1:
        pieces[-(d - c) :] = [*new[c : c + head], " ...", *new[d - tail : d]]
      continue
    before, after = "".join(old[a:b]), "".join(new[c:d])
    space = " " if (after or before)[0].isspace() else ""
    marks = {"insert": "+", "delete": "-", "replace": f"{before.strip()} -> "}
    pieces.append(f"{space}[{marks[kind]}{(after or before).strip()}]")
  return "".join(pieces)
