"""Reads trees of constituents as they are written in papers."""

import re
from typing import Any

from truenegs_jax.robustness.annotate import Tree


def read_tree(text: str) -> Tree:
  """Reads a tree in brackets, `(S (NP (PRP I)) ...)`."""
  stack: list[list[Any]] = [[]]
  for token in re.findall(r"[()]|[^\s()]+", text):
    if token == "(":
      stack.append([])
    elif token == ")":
      label, *content = stack.pop()
      is_word = len(content) == 1 and isinstance(content[0], str)
      stack[-1].append((label, content[0] if is_word else tuple(content)))
    else:
      stack[-1].append(token)
  return stack[0][0]
