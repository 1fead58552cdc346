"""Describes the keys of a config: values, rules and meanings.

The meanings are the comments beside and above the keys in the config files.
"""

import inspect
import re
from collections.abc import Callable
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
