"""Renders configs, their words and their keys as text for a terminal."""

import ast
import shlex
import textwrap
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.runtime import config_files
from truenegs_jax.runtime.config_keys import Key, describe_keys

INDENT = " " * 6


def render_list() -> Iterator[str]:
  """Yields the packaged configs: name, first line of docstring, and words."""
  for name in config_files.packaged_names():
    yield f"  {name}"
    yield from _wrap(_read_docstring(name).partition("\n")[0])
    if words := config_files.list_words(name):
      yield from _wrap(" ".join(f":{word}" for word in words))


def render_config(text: str) -> Iterator[str]:
  """Yields the docstring, words and keys of a value of --config.

  Raises:
    InputError: as `config_files.load_config`.
  """
  config = config_files.load_config(text)
  path = text.partition(":")[0]
  if not path.endswith(".json"):
    yield _read_docstring(path)
    if words := config_files.list_words(path):
      yield "\nWords after its name, separated by commas:\n"
    for word, meaning in words.items():
      yield f"  :{word}"
      yield from _wrap(meaning)
  yield "\nKeys, as flags of main with their values:\n"
  yield from render_keys(config)


def render_keys(config: ConfigDict) -> Iterator[str]:
  """Yields each key as a flag with its value, meaning and allowed values."""
  for key in describe_keys(config):
    yield from render_flag(f"config.{key.name}", key.value, describe_key(key))


def describe_key(key: Key) -> str:
  """Returns the meaning of a key with its type and allowed values."""
  return f"{key.meaning} [{key.allowed()}]".lstrip()


def render_flag(name: str, value: Any, text: str) -> list[str]:
  """Returns lines with a flag, its value or default, and its meaning."""
  usage = "VALUE" if value in (None, []) else shlex.quote(str(value))
  return [f"--{name}={usage}", *_wrap(text)]


def _read_docstring(path: str) -> str:
  source = config_files.find_config(path).read_text(encoding="utf-8")
  return ast.get_docstring(ast.parse(source)) or ""


def _wrap(text: str) -> list[str]:
  return textwrap.wrap(
    text, 80, initial_indent=INDENT, subsequent_indent=INDENT
  )
