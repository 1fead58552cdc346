"""Loads the config.json of a run as a config.

The file is JSON and never executed. Values get the types of the package's
configs, and keys that were added later their `old_default`.
"""

import json
import pathlib
from typing import Any

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
from truenegs_jax.runtime.errors import InputError

FIX = (
  "Pass the config.json of a workdir, such as"
  " --config=runs/electra_demo/config.json, or a config file in Python."
)


def load_saved_config(path: pathlib.Path) -> ConfigDict:
  """Loads a config that a run saved.

  Raises:
    InputError: the file is no such config, or this version cannot run it.
  """
  try:
    tree = json.loads(path.read_text(encoding="utf-8"))
    saved = flatten(tree)
  except (AttributeError, OSError, ValueError) as e:
    reason = "not a JSON object"
    if isinstance(e, OSError):
      reason = e.strerror or reason
    raise InputError(
      f"--config={str(path)!r} cannot be read as a config ({reason}). {FIX}"
    ) from e
  if saved.get("task") not in common_keys.KEYS["task"].choices:
    raise InputError(
      f"--config={str(path)!r} is not the config of a run. {FIX}"
    )
  config = _template(saved)
  known = flatten(config.to_dict())
  values = {key: _get_value(path, saved, key, x) for key, x in known.items()}
  for key, removed in common_keys.REMOVED.items():
    if saved.pop(key, removed.value) != removed.value:
      raise InputError(
        f"'{path}' has a value of {key} that this version does not support. Use"
        f" truenegs_jax {removed.last_version}."
      )
  values |= {
    key: tuple(x) if isinstance(x, list) else x
    for key, x in saved.items()
    if key not in known
  }
  # Samples follow this temperature unless the run set their own.
  if values.get("generator.temperature") == values.get("negatives.temperature"):
    values.pop("generator.temperature", None)
  for key, value in values.items():
    *sections, last = key.split(".")
    section = config
    for name in sections:
      if name not in section:
        section[name] = ConfigDict()
      section = section[name]
    section[last] = value
  return config


def _template(saved: dict[str, Any]) -> ConfigDict:
  """Returns the package's config that has the keys of a saved one."""
  if saved["task"] == "corrections":
    return corrections.get_config()
  if saved["task"] == "pretrain":
    return common.get_config()
  if "finetune.text" in saved:
    return finetune_own.get_config()
  if "finetune.stride" in saved:
    return finetune_squad.get_config()
  return common_finetune.get_config()


def _get_value(
  path: pathlib.Path, saved: dict[str, Any], key: str, like: Any
) -> Any:
  """Returns a saved value with the type of `like`."""
  rule = common_keys.rules(saved["task"]).get(key)
  value = saved.get(key, rule.old_default if rule else None)
  if value is None:
    raise InputError(
      f"'{path}' has no value of {key}. It is damaged or of another version of"
      f" truenegs_jax. {FIX}"
    )
  if isinstance(like, tuple) and isinstance(value, list):
    return tuple(value)
  if isinstance(like, float) and type(value) is int:
    return float(value)
  if type(value) is not type(like):
    raise InputError(
      f"'{path}': {key}={value!r} must be of type {type(like).__name__}. {FIX}"
    )
  return value
