"""Trees of phrases, from brackets."""

import re


def read_tree(text):
  """Reads `(S (NP (PRP I)) ...)` as (label, children) and (tag, word)."""
  stack = [[]]
  for token in re.findall(r"[()]|[^\s()]+", text):
    if token == "(":
      stack.append([])
    elif token == ")":
      label, *content = stack.pop()
      is_word = isinstance(content[0], str)
      stack[-1].append((label, content[0] if is_word else tuple(content)))
    else:
      stack[-1].append(token)
  return stack[0][0]
