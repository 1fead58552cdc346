"""Describes configs, their words and their keys, also as text for a terminal.

The meanings of keys are the comments beside and above them in config files.
"""

import ast
import inspect
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from truenegs_jax.configs import (
  common,
  common_finetune,
  common_keys,
  corrections,
  finetune_own,
  finetune_squad,
  robustness,
  study,
)
from truenegs_jax.runtime import config_files
from truenegs_jax.runtime.config_files import flatten

# The files that define the keys of each task. Later comments replace earlier.
MODULES = {
  "pretrain": (common,),
  "corrections": (common, corrections),
  "finetune": (common, common_finetune, finetune_own, finetune_squad),
  "robustness": (common, robustness),
  "study": (common, study),
}


class Key(NamedTuple):
  """A key of a config."""

  name: str  # with dots: "optim.lr"
  value: Any  # the config's value
  rule: common_keys.KeyRule
  meaning: str  # the comment of the key, or ""

  def allowed(self, show: Callable[[str], str] = str) -> str:
    """Describes the type and its allowed values: "int: at least 1"."""
    kind = type(self.value).__name__
    choices = ", ".join(map(show, self.rule.choices))
    values = choices or self.rule.range_in_words()
    return f"{kind}: {values}" if values else kind

  def describe(self) -> str:
    """Returns the meaning with the type and the allowed values."""
    return f"{self.meaning} [{self.allowed()}]".lstrip()


def describe_keys(config: ConfigDict) -> list[Key]:
  """Describes all keys of a config, in the order of the config files.

  Keys that the package's configs do not have are last and have no meaning.
  """
  task = config.get("task")
  meanings = dict[str, str]()
  for module in MODULES.get(task, ()):
    meanings |= _read_comments(inspect.getsource(module.get_config))
  values, rules = flatten(config.to_dict()), common_keys.rules(task)
  return [
    Key(
      name,
      values[name],
      rules.get(name, common_keys.KeyRule()),
      meanings.get(name, ""),
    )
    for name in meanings | values
    if name in values
  ]


def render_list() -> Iterator[str]:
  """Yields the packaged configs: name, first line of docstring, and words."""
  for name in config_files.packaged_names():
    yield f"  {name}"
    yield from _wrap(_read_docstring(name).partition("\n")[0])
    if words := config_files.list_words(name):
      yield from _wrap(" ".join(f":{word}" for word in words))


def render_config(text: str) -> Iterator[str]:
  """Yields the docstring, words and keys of a value of --config."""
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
  yield from render_keys(describe_keys(config))


def render_keys(keys: Iterable[Key]) -> Iterator[str]:
  """Yields each key as a flag with its value, meaning and allowed values."""
  for key in keys:
    yield from render_flag(f"config.{key.name}", key.value, key.describe())


def render_flag(name: str, value: Any, text: str) -> list[str]:
  """Returns lines with a flag, its value or default, and its meaning."""
  usage = "VALUE" if value in (None, []) else shlex.quote(str(value))
  return [f"--{name}={usage}", *_wrap(text)]


def _read_comments(source: str) -> dict[str, str]:
  """Returns the comments at the first assignments `c.KEY = VALUE` in code."""
  above, meanings = list[str](), dict[str, str]()
  for line in source.splitlines():
    code, _, comment = line.partition(" # ")
    key = re.match(r" *([cf])\.([\w.]+) = (?!c\.)", code)
    if key and (meaning := " ".join(filter(None, [*above, comment]))):
      section = "finetune." if key[1] == "f" else ""
      meanings.setdefault(section + key[2], meaning)
    above = [] if code.strip() or not comment else [*above, comment]
  return meanings


def _read_docstring(path: str) -> str:
  source = config_files.find_config(path).read_text(encoding="utf-8")
  return ast.get_docstring(ast.parse(source)) or ""


def _wrap(text: str) -> list[str]:
  return textwrap.wrap(
    text, 80, initial_indent=" " * 6, subsequent_indent=" " * 6
  )
