"""Compares the error messages that the documentation quotes with the code."""

import ast
import functools
import re

import pytest

from support.doc_pages import ROOT
from truenegs_jax.runtime import errors

MESSAGES = ROOT / "docs/reference/errors.md"


@functools.cache
def read_templates():
  """Lists (text, exit code or None) of the package's strings with a space.

  Values are replaced by a NUL. The code is that of the exception that the
  string is passed to.
  """
  exit_codes = {
    name: value.exit_code
    for name, value in vars(errors).items()
    if name.endswith("Error")
  }
  templates = []
  for path in (ROOT / "truenegs_jax").rglob("*.py"):
    nodes = list(ast.walk(ast.parse(path.read_text())))
    codes = {
      id(argument): exit_codes[call.func.id]
      for call in nodes
      if isinstance(call, ast.Call)
      and getattr(call.func, "id", "") in exit_codes
      for argument in call.args
    }
    for node in nodes:
      parts = node.values if isinstance(node, ast.JoinedStr) else [node]
      values = [getattr(part, "value", "") for part in parts]
      text = "".join(x if isinstance(x, str) else "\0" for x in values)
      if " " in text:
        templates.append((text, codes.get(id(node))))
  return templates


def read_messages():
  """Lists (message, exit code of its section) of the page."""
  code, messages = None, []
  for line in MESSAGES.read_text().splitlines():
    if heading := re.match(r"## Exit code (\d)", line):
      code = int(heading[1])
    elif row := re.match(r"\| `(.+?)` \|", line):
      messages.append((row[1], code))
  return messages


@pytest.mark.parametrize("message, code", read_messages())
def test_quoted_message_is_in_the_code(message, code):
  fixed = message.split("...")
  assert sum(map(len, fixed)) >= 10, "too short to be recognized"
  parts = [re.escape(part) for part in fixed if part]
  pattern = re.compile(".*".join(parts), re.DOTALL)
  templates = read_templates()
  codes = {each for text, each in templates if pattern.search(text)}
  assert codes, "no such message"
  assert codes & {None, code}, f"exit code {codes}"
