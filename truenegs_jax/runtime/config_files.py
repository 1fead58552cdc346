"""Loads configs: a config file, one of the package, or one that a run saved.

load_config("electra_demo:hc")          # of the package
load_config("own.py")                   # has a function get_config
load_config("runs/demo/config.json")    # JSON, never executed
"""

import difflib
import pathlib
import re
import runpy
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.configs import (
  common,
  common_finetune,
  common_keys,
  common_words,
  corrections,
  finetune_own,
  finetune_squad,
  robustness,
  study,
)
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import InputError

PACKAGED = pathlib.Path(__file__).parents[1] / "configs"
JSON_FIX = (
  "Pass the config.json of a workdir, such as"
  " --config=runs/electra_demo/config.json, or a config file in Python."
)


def load_config(text: str) -> ConfigDict:
  """Loads the config that a value of --config names."""
  path, colon, arg = text.partition(":")
  if path.endswith(".json"):
    config = _load_saved(pathlib.Path(text))
  else:
    config = _execute(find_config(path), [arg] if colon else [])
  _check_keys(path, flatten(config.to_dict()))
  return config


def packaged_names() -> list[str]:
  """Lists the names of the package's configs."""
  stems = sorted(file.stem for file in PACKAGED.glob("[a-z]*.py"))
  return [stem for stem in stems if not stem.startswith("common")]


def list_words(path: str) -> dict[str, str]:
  """Returns the words that may follow a config's name, and their meanings."""
  file = find_config(path)
  try:
    _execute(file, ["?"])
  except InputError as e:
    return getattr(e.__cause__, "words", {})  # none: it takes no argument
  return {}


def default_workdir(text: str) -> pathlib.Path:
  """Returns the workdir of a value of --config without --workdir.

  It is runs/NAME[-ARG-...], or the folder of a saved config.
  """
  if text.endswith(".json"):
    return pathlib.Path(text).parent
  path, _, args = text.partition(":")
  words = [pathlib.Path(path).stem, *filter(None, args.split(","))]
  return pathlib.Path("runs", "-".join(words))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Flattens nested mappings; joins their keys with dots."""
  leaves: dict[str, Any] = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      leaves |= flatten(value, f"{prefix}{name}.")
    else:
      leaves[f"{prefix}{name}"] = value
  return leaves


def did_you_mean(
  word: str, names: Mapping[str, str] | Iterable[str], prefix: str
) -> str:
  """Returns " Did you mean ...?" with up to three names that are near, or "".

  A name is near if a part of it, or else its last part, is like the last part
  of the word, or if its meaning begins with it: the values of a mapping.
  """
  last = word.rpartition(".")[2]
  ends = {name: name.rpartition(".")[2] for name in names}
  near = [name for name in names if last in name.split(".")]
  if not near and isinstance(names, Mapping):
    start = re.compile(rf"{re.escape(last.replace('_', ' '))}\b")
    near = [name for name, meaning in names.items() if start.match(meaning)]
  if not near:
    matches = difflib.get_close_matches(last, ends.values(), n=1, cutoff=0.7)
    near = [name for name, end in ends.items() if end in matches]
  listed = " or ".join(f"{prefix}{name}" for name in near[:3])
  return f" Did you mean {listed}?" if near else ""


def find_config(path: str) -> pathlib.Path:
  """Returns an existing file, or that of the packaged config of this name."""
  if pathlib.Path(path).is_file():
    return pathlib.Path(path)
  name, names = pathlib.Path(path).stem, packaged_names()
  if name in names:
    return PACKAGED / f"{name}.py"
  hint = did_you_mean(name, names, "--config=")
  if pathlib.Path(path, "config.json").is_file():
    hint = f" Did you mean --config={pathlib.Path(path, 'config.json')}?"
  raise InputError(
    f"--config={path!r} is no file and no packaged config.{hint} Choose a file"
    f" or {', '.join(names)}."
  )


def _execute(path: pathlib.Path, args: Iterable[str]) -> ConfigDict:
  """Runs get_config of a Python file."""
  try:
    config = runpy.run_path(str(path))["get_config"](*args)
    if not isinstance(config, ConfigDict):
      raise TypeError(f"get_config() returns {config!r}")
    return config
  except Exception as e:
    if isinstance(e, common_words.WordError):
      raise InputError(str(e)) from e
    frames = traceback.extract_tb(e.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    place = f"{path}:{lines[-1]}" if lines else path
    raise InputError(
      f"{place}: {type(e).__name__}: {e}. A config is Python code with a"
      " function get_config(arg='') that returns a ConfigDict."
    ) from e


def _load_saved(path: pathlib.Path) -> ConfigDict:
  """Returns the config.json of a run with the types of the package's config."""
  with json_text.read_file(path, InputError, JSON_FIX) as saved:
    values = flatten(saved)
    if values.get("task") not in common_keys.KEYS["task"].choices:
      raise InputError(
        f"--config={str(path)!r} is not the config of a run. {JSON_FIX}"
      )
    config = _make_template(values)
    if missing := flatten(config.to_dict()).keys() - values.keys():
      raise InputError(
        f"'{path}' has no value of {min(missing)}. It is damaged or of another"
        f" version of truenegs_jax. {JSON_FIX}"
      )
    temperature = values.get("generator.temperature")
    if temperature and temperature == values.get("negatives.temperature"):
      del saved["generator"]["temperature"]  # follows the other one
    try:
      config.update(saved)  # checks types, and makes tuples of lists
    except (TypeError, ValueError) as e:
      raise InputError(f"'{path}': {e}. {JSON_FIX}") from e
    return config


def _check_keys(path: str, values: Mapping[str, Any]) -> None:
  """Raises InputError for an unknown or missing key or a value's wrong type."""
  if values.get("task") not in common_keys.KEYS["task"].choices:
    return  # refused later, with the choices
  defaults = flatten(_make_template(values).to_dict())
  for key in sorted(values.keys() - common_keys.rules(values["task"]).keys()):
    hint = did_you_mean(key, defaults.keys(), "")
    raise InputError(f"'{path}' sets {key}, which is no key.{hint}")
  for key, default in defaults.items():
    if key not in values:
      raise InputError(
        f"'{path}' has no value of {key}. Start from a packaged config of"
        f" task={values['task']!r}."
      )
    if not _has_type_of(default, values[key]):
      raise InputError(
        f"{key}={values[key]!r} in '{path}' has the wrong type. It must be as"
        f" {default!r}."
      )


def _has_type_of(default: Any, value: Any) -> bool:
  if isinstance(default, tuple):
    first = default[0] if default else ""
    return isinstance(value, tuple) and all(
      _has_type_of(first, x) for x in value
    )
  is_whole = type(default) is float and type(value) is int
  return is_whole or type(value) is type(default)


def _make_template(values: Mapping[str, Any]) -> ConfigDict:
  """Returns the package's config that has the keys of a saved one."""
  modules = {
    "corrections": corrections,
    "robustness": robustness,
    "study": study,
  }
  if values["task"] != "finetune":
    return modules.get(values["task"], common).get_config()
  if "finetune.text" in values:
    return finetune_own.get_config()
  if "finetune.stride" in values:
    return finetune_squad.get_config()
  return common_finetune.get_config()
