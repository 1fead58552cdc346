"""Loads a config file and changes its values.

load_config("electra_demo:hc")          # of the package
load_config("own.py")                   # has a function get_config
set_value(config, "optim.lr", "1e-4")   # as on a command line
"""

import ast
import difflib
import importlib.machinery
import importlib.util
import pathlib
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.configs.common_keys import KEYS
from truenegs_jax.runtime.errors import InputError

PACKAGED = pathlib.Path(__file__).parents[1] / "configs"
BOOLS = {"true": True, "t": True, "1": True}
BOOLS |= {"false": False, "f": False, "0": False}


def load_config(text: str) -> ConfigDict:
  """Loads the config of FILE.py[:ARG,...] or NAME[:ARG,...].

  Raises:
    InputError: there is no such config, or its file fails.
  """
  path, colon, arg = text.partition(":")
  return _execute(_find(path), [arg] if colon else [])


def packaged_names() -> list[str]:
  """Lists the names of the package's configs."""
  stems = sorted(file.stem for file in PACKAGED.glob("[a-z]*.py"))
  return [stem for stem in stems if not stem.startswith("common")]


def default_workdir(text: str) -> pathlib.Path:
  """Returns the workdir of a value of --config without --workdir.

  It is runs/NAME[-ARG-...], or the folder of a saved config.
  """
  if text.endswith(".json"):
    return pathlib.Path(text).parent
  path, _, args = text.partition(":")
  words = [pathlib.Path(path).stem, *filter(None, args.split(","))]
  return pathlib.Path("runs", "-".join(words))


def _find(path: str) -> pathlib.Path:
  """Returns an existing file, or that of the packaged config of this name."""
  if pathlib.Path(path).is_file():
    return pathlib.Path(path)
  name, names = pathlib.Path(path).stem, packaged_names()
  if name in names:
    return PACKAGED / f"{name}.py"
  hint = did_you_mean(name, names, "--config=")
  if path in KEYS:
    hint = f" Did you mean --config.{path}=VALUE?"
  if pathlib.Path(path, "config.json").is_file():
    hint = f" Did you mean --config={pathlib.Path(path, 'config.json')}?"
  raise InputError(
    f"--config={path!r} is no file and no packaged config.{hint} Choose a file"
    f" or {', '.join(names)}."
  )


def _execute(path: pathlib.Path, args: Sequence[str]) -> ConfigDict:
  """Runs get_config of a Python file."""
  loader = importlib.machinery.SourceFileLoader("config_file", str(path))
  spec = importlib.util.spec_from_loader("config_file", loader)
  assert spec is not None  # as the loader is given
  module = importlib.util.module_from_spec(spec)
  try:
    loader.exec_module(module)
    config = module.get_config(*args)
    if not isinstance(config, ConfigDict):
      raise TypeError(f"get_config() returns {config!r}")
  except Exception as e:
    if isinstance(e, ValueError) and str(e).startswith("Config argument "):
      raise InputError(str(e)) from e
    lines = [
      frame.lineno
      for frame in traceback.extract_tb(e.__traceback__)
      if frame.filename == str(path)
    ]
    place = f"{path}:{lines[-1]}" if lines else path
    raise InputError(
      f"{place}: {type(e).__name__}: {e}. A config is Python code with a"
      " function get_config(arg='') that returns a ConfigDict."
    ) from e
  return config


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Flattens nested mappings; joins their keys with dots."""
  leaves: dict[str, Any] = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      leaves |= flatten(value, f"{prefix}{name}.")
    else:
      leaves[f"{prefix}{name}"] = value
  return leaves


def set_value(config: ConfigDict, key: str, text: str | None) -> None:
  """Sets a key to the value of a flag; None if the flag has no value.

  Raises:
    InputError: there is no such key, or the value is not of its type.
  """
  values = flatten(config.to_dict())
  if key not in values:
    raise InputError(_unknown_key(key, values))
  current = values[key]
  if text is None:
    if not isinstance(current, bool):
      raise InputError(f"--config.{key} needs a value: --config.{key}=VALUE.")
    text = "true"
  *sections, last = key.split(".")
  for name in sections:
    config = config[name]
  config[last] = parse_value(key, text, current)


def parse_value(key: str, text: str, current: Any) -> Any:
  """Parses a value that has the type of the key's current one.

  Raises:
    InputError: the text has another type.
  """
  try:
    if isinstance(current, bool):
      return BOOLS[text.lower()]
    if isinstance(current, tuple):
      return _parse_tuple(text, type(current[0]) if current else str)
    if isinstance(current, int):
      return int(text, 16 if text[:2] == "0x" else 10)
    return type(current)(text)
  except (KeyError, SyntaxError, TypeError, ValueError) as e:
    expected = _expected(key, text, current)
    raise InputError(f"{key}={text!r} must be {expected}") from e


def _parse_tuple(text: str, kind: Callable[[Any], Any]) -> tuple:
  """Parses a Python literal, or one string without a comma."""
  try:
    value = ast.literal_eval(text)
  except (SyntaxError, ValueError):
    if "," in text:
      raise
    value = text
  return tuple(map(kind, value if isinstance(value, tuple | list) else [value]))


def _expected(key: str, text: str, current: Any) -> str:
  """Describes what a key accepts instead of a text."""
  flag = f"--config.{key}"
  if isinstance(current, bool):
    return f"True or False. Pass {flag}=True or {flag}=False."
  if isinstance(current, tuple):
    kind = "numbers" if current and not isinstance(current[0], str) else "text"
    example = current or tuple(word.strip(" ()[]") for word in text.split(","))
    return f'a list of {kind}. Pass {flag}="{example}", for example.'
  if not isinstance(current, int):
    return f"a number. Pass {flag}={current}, for example."
  try:
    number = int(float(text))
  except (OverflowError, ValueError):
    number = current
  return f"a whole number. Pass {flag}={number}, for example."


def _unknown_key(key: str, values: Iterable[str]) -> str:
  members = [name for name in values if name.startswith(f"{key}.")]
  if members:
    return (
      f"{key} is a group of keys. Set one of them, such as"
      f" --config.{members[0]}=VALUE. It has"
      f" {', '.join(name.removeprefix(f'{key}.') for name in members)}."
    )
  hint = did_you_mean(key, values, "--config.")
  return (
    f"This config has no key {key!r}.{hint} To list all keys, add --help to the"
    " command."
  )


def did_you_mean(word: str, names: Iterable[str], prefix: str) -> str:
  """Returns " Did you mean ...?" with the names that are near, or ""."""
  names, last = list(names), word.rpartition(".")[2]
  near = [name for name in names if name.rpartition(".")[2] == last]
  near = near or difflib.get_close_matches(word, names, n=1, cutoff=0.7)
  if not near:  # `warmup_step` of another section
    ends = {name.rpartition(".")[2]: name for name in names}
    matches = difflib.get_close_matches(last, ends, n=1, cutoff=0.7)
    near = [ends[match] for match in matches]
  listed = " or ".join(f"{prefix}{name}" for name in near)
  return f" Did you mean {listed}?" if near else ""
