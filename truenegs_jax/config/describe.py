"""Describes configs, their words and their keys for a terminal."""

import ast
import shlex
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.config import load
from truenegs_jax.config.keys import Key, flatten
from truenegs_jax.config.tables import find_table


def list_values(config: ConfigDict) -> Iterator[tuple[str, Any, Key]]:
  """Yields each key of a config: its name with dots, its value, its table."""
  values = flatten(config.to_dict())
  for name, key in find_table(config.task).items():
    yield name, values[name], key


def render_list() -> Iterator[str]:
  """Yields the packaged configs: name, first line of docstring, and words."""
  for name in load.packaged_names():
    yield f"  {name}"
    yield from _wrap(_read_docstring(name).partition("\n")[0])
    if words := load.list_words(name):
      yield from _wrap(" ".join(f":{word}" for word in words))


def render_config(text: str) -> Iterator[str]:
  """Yields the docstring, words and keys of a value of --config."""
  config = load.load_config(text)
  path = text.partition(":")[0]
  if not path.endswith(".json"):
    yield _read_docstring(path)
    if words := load.list_words(path):
      yield "\nWords after its name, separated by commas:\n"
    for word, meaning in words.items():
      yield f"  :{word}"
      yield from _wrap(meaning)
  yield "\nKeys, as flags of main with their values:\n"
  yield from render_keys(list_values(config))


def render_keys(keys: Iterable[tuple[str, Any, Key]]) -> Iterator[str]:
  """Yields each key as a flag with its value, meaning and allowed values."""
  for name, value, key in keys:
    yield from render_flag(f"config.{name}", value, key.describe())


def render_flag(name: str, value: Any, text: str) -> list[str]:
  """Returns lines with a flag, its value or default, and its meaning."""
  usage = "VALUE" if value in (None, []) else shlex.quote(str(value))
  return [f"--{name}={usage}", *_wrap(text)]


def _read_docstring(path: str) -> str:
  source = load.find_config(path).read_text(encoding="utf-8")
  return ast.get_docstring(ast.parse(source)) or ""


def _wrap(text: str) -> list[str]:
  return textwrap.wrap(
    text, 80, initial_indent=" " * 6, subsequent_indent=" " * 6
  )
