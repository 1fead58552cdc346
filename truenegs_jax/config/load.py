"""Loads configs: a config file, one of the package, or one that a run saved.

load_config("demo:hc")          # of the package
load_config("own.py")                   # has a function get_config
load_config("runs/demo/config.json")    # JSON, never executed
"""

import pathlib
import runpy
import sys
import traceback
from collections.abc import Iterable, Mapping

from ml_collections import ConfigDict

from truenegs_jax.config import tables
from truenegs_jax.config.keys import did_you_mean, flatten
from truenegs_jax.runtime.errors import InputError, TrueNegsError, printable
from truenegs_jax.runtime.files import read_json
from truenegs_jax.runtime.paths import open_path

PACKAGED = pathlib.Path(__file__).parents[1] / "configs"
JSON_FIX = (
  "Pass the config.json of a workdir, such as"
  " --config=runs/demo/config.json, or a config file in Python."
)


class WordError(ValueError):
  """Words that a config does not have; `words` are those that it has."""

  def __init__(self, arg: str, problem: str, words: Mapping[str, str]):
    listed = f"Choose any of {', '.join(words)}" if words else "There are none"
    super().__init__(f"Config argument {arg!r}: {problem}. {listed}.")
    self.words = dict(words)


def parse_words(arg: str, words: Mapping[str, str]) -> list[str]:
  """Splits a config's argument at commas; WordError for an unknown word."""
  parsed = [word for word in arg.split(",") if word]
  for word in parsed:
    if word not in words:
      raise WordError(arg, f"{word!r} is unknown", words)
  return parsed


def load_config(text: str) -> ConfigDict:
  """Loads the config that a value of --config names.

  A saved config is data, perhaps a stranger's, and must not lead to a program.
  """
  path, colon, arg = text.partition(":")
  if path.endswith(".json") or text.endswith(".json"):  # a URL has a colon
    config = load_saved(open_path("--config", text))
  else:
    config = _execute(find_config(path), [arg] if colon else [])
    tables.check_keys(path, config)
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
  """Returns the default workdir: runs/NAME[-ARG-...], or a saved config's."""
  if text.endswith(".json"):
    return open_path("--config", text).parent
  path, _, args = text.partition(":")
  words = [pathlib.Path(path).stem, *filter(None, args.split(","))]
  return pathlib.Path("runs", "-".join(words))


def find_config(path: str) -> pathlib.Path:
  """Returns the file of the packaged config of this name, or an existing file.

  NAME, NAME.py and configs/NAME.py find a packaged config. No file in the
  current folder can take its NAME.
  """
  name = pathlib.Path(path).stem
  names = packaged_names()
  if path not in names and pathlib.Path(path).is_file():
    return pathlib.Path(path)
  if name in names and path in (name, f"{name}.py", f"configs/{name}.py"):
    return PACKAGED / f"{name}.py"
  hint = did_you_mean(name, names, "--config=")
  raise InputError(
    f"--config={path!r} is no file and no packaged config."
    + (hint or f" Choose a file or {', '.join(names)}.")
  )


def _execute(path: pathlib.Path, args: Iterable[str]) -> ConfigDict:
  """Runs get_config of a Python file."""
  try:
    config = runpy.run_path(str(path))["get_config"](*args)
    if not isinstance(config, ConfigDict):
      raise TypeError(f"get_config() returns {config!r}")
    return config
  except WordError as e:
    raise InputError(str(e)) from e
  except Exception as e:
    frames = traceback.extract_tb(e.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    place = f"{path}:{lines[-1]}" if lines else path
    raise InputError(
      f"{place}: {type(e).__name__}: {e}. A config is Python code with a"
      " function get_config(arg='') that returns a ConfigDict."
    ) from e


def load_saved(
  path: pathlib.Path,
  error: type[TrueNegsError] = InputError,
  fix: str = JSON_FIX,
) -> ConfigDict:
  """Returns the config.json of a run with the types of the package's config.

  Keys that it lacks are new since the version that wrote it. They take their
  defaults, and are printed. Raises `error`, with a message that ends with
  `fix`, for another file, and for unknown keys or types.
  """
  with read_json(path, error, fix) as saved:
    values = flatten(saved)
    # A study may name a file to execute, and this may be a stranger's.
    if str(values.get("task")) not in tables.TABLES.keys() - {"study"}:
      raise error(
        f"'{path}' is not the config of a run (a study is continued by the"
        f" command that started it). {fix}"
      )
    config = tables.make_config(saved["task"])
    expected = flatten(config.to_dict())
    for name in sorted(values.keys() - expected.keys()):
      hint = did_you_mean(name, expected, "")
      raise error(
        f"'{path}' sets {name}, which is no key.{hint} If another"
        " version of truenegs_jax wrote it, use that version."
      )
    if missing := sorted(expected.keys() - values.keys()):
      listed = ", ".join(f"{name}={expected[name]!r}" for name in missing)
      text = (
        f"'{path}' was written by another version of truenegs_jax, without keys"
        f" that are new. They take their defaults: {listed}."
      )
      print(printable(text), file=sys.stderr)
    try:
      config.update(saved)  # checks types, and makes tuples of lists
    except (TypeError, ValueError) as e:
      raise error(f"'{path}': {e}. {fix}") from e
    return config
