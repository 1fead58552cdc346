"""Describes the keys of a config: values, choices, ranges and meanings.

The meanings are the comments beside and above the keys in the config files.
"""

import ast
import functools
import inspect
import io
import tokenize
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from truenegs_jax.configs import (
  common,
  common_finetune,
  common_keys,
  corrections,
  finetune_own,
  finetune_squad,
)
from truenegs_jax.runtime.config_files import flatten

# The files that define the keys of each task. Later comments replace earlier.
MODULES = {
  "pretrain": (common,),
  "corrections": (common, corrections),
  "finetune": (common, common_finetune, finetune_own, finetune_squad),
}


class Key(NamedTuple):
  """A key of a config.

  Attributes:
    name: with dots: "optim.lr".
    type: of its values: "bool", "float", "int", "str" or "tuple".
    value: the config's value.
    choices: all values, or empty if they cannot be listed.
    range: the numbers allowed, in words, or "".
    meaning: the comment of the key, or "".
    may_change: whether a resumed run may have another value; None for
      `corrections`, which does not resume.
  """

  name: str
  type: str
  value: Any
  choices: tuple[str, ...]
  range: str
  meaning: str
  may_change: bool | None


def describe_keys(config: ConfigDict) -> list[Key]:
  """Describes all keys of a config, in the order of the config files.

  Keys that the package's configs do not have are last and have no meaning.
  """
  task = config.get("task", "pretrain")
  meanings = read_meanings(task)
  rules = common_keys.rules(task)
  values = flatten(config.to_dict())
  return [
    Key(
      name,
      type(values[name]).__name__,
      values[name],
      rule.choices,
      rule.range_in_words(),
      meanings.get(name, ""),
      None if task == "corrections" else rule.may_change,
    )
    for name in sorted(values, key=[*meanings, *values].index)
    for rule in [rules.get(name, common_keys.KeyRule())]
  ]


@functools.cache
def read_meanings(task: str) -> Mapping[str, str]:
  """Returns the comment of each key of a task."""
  meanings: dict[str, str] = {}
  for module in MODULES.get(task, ()):
    meanings |= _read_comments(module)
  return meanings


def _read_comments(module: ModuleType) -> dict[str, str]:
  """Returns the comments of the assignments `c.KEY = VALUE` of get_config."""
  source = inspect.getsource(module.get_config)
  comments = {  # line -> (is alone in it, text)
    token.start[0]: (token.line.lstrip().startswith("#"), token.string[2:])
    for token in tokenize.generate_tokens(io.StringIO(source).readline)
    if token.type == tokenize.COMMENT
  }
  prefixes, meanings = {"c": ""}, dict[str, str]()
  for statement in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
    if not isinstance(statement, ast.Assign):
      continue
    words = [ast.unparse(x) for x in (*statement.targets, statement.value)]
    if words[0].isidentifier() and words[1].startswith("c."):  # f = c.finetune
      prefixes[words[0]] = f"{words[1][2:]}."
    root, _, name = words[0].partition(".")
    if len(words) > 2 or root not in prefixes or not name:
      continue
    line = statement.lineno - 1
    lines = [comments.get(statement.end_lineno or 0, (False, ""))[1]]
    while comments.get(line, (False, ""))[0]:
      lines.insert(0, comments[line][1])
      line -= 1
    if meaning := " ".join(filter(None, lines)):
      meanings.setdefault(prefixes[root] + name, meaning)
  return meanings
