"""The --config flag and the command line of all entry points.

  --config=FILE.py[:ARG,...] or --config=NAME[:ARG,...] of a packaged config

A bad flag or config prints one line and exits with code 2, without a traceback.
"""

import ast
import contextlib
import pathlib
import shlex
import sys
from collections.abc import Callable

from absl import app, flags, logging
from ml_collections import config_flags

from truenegs_jax.runtime.errors import InputError, printable

PACKAGED = pathlib.Path(__file__).parents[1] / "configs"


def define_config() -> flags.FlagHolder:
  """Defines --config; its `.value` is a locked ConfigDict."""
  text = "FILE.py[:ARG,...], or the name of a packaged config."
  return config_flags.DEFINE_config_file("config", None, text, lock_config=True)


def run(main: Callable[[list[str]], object]) -> None:
  """Runs `app.run` with packaged configs and one-line flag errors."""
  app.run(main, flags_parser=_parse)


def resolve_config(value: str) -> str:
  """Resolves `electra_demo:ARGS` to the packaged file; keeps existing paths.

  Raises:
    InputError: neither a file nor the name of a packaged config.
  """
  path, colon, args = value.partition(":")
  if pathlib.Path(path).is_file():
    return value
  stems = sorted(file.stem for file in PACKAGED.glob("[a-z]*.py"))
  names = [stem for stem in stems if not stem.startswith("common")]
  name = pathlib.Path(path).stem
  if name in names:
    return f"{PACKAGED / name}.py{colon}{args}"
  raise InputError(
    f"--config={value!r} is no file and no packaged config. Choose a file or"
    f" {', '.join(names)}."
  )


def _parse(argv: list[str]) -> list[str]:
  try:
    rest = flags.FLAGS(_resolve_configs(argv))
    if len(rest) > 1:
      raise InputError(f"Arguments not understood: {' '.join(rest[1:])}.")
    if "config" in flags.FLAGS and flags.FLAGS["config"].value is None:
      raise InputError("--config is missing. Try --config=electra_demo.")
  # ml_collections raises the first two for unknown keys, config files the last.
  except (AttributeError, KeyError, flags.Error, TypeError, ValueError) as e:
    message = printable(e)
    if isinstance(e, (AttributeError, KeyError)):
      reason = str(e.args[0])
      with contextlib.suppress(SyntaxError, ValueError):
        reason = ast.literal_eval(reason)  # a KeyError quotes its message
      key, _, hint = reason.partition("\n")
      hint += " See configs/common.py for all keys."
      message = f"No such key: {key}. {hint.strip()}"
    # ml_collections puts a traceback before the message of a config file.
    last = str(e).rstrip().rpartition("\nValueError: ")[2]
    if last.startswith("Config argument "):
      message = last
    print(f"error: {message}", file=sys.stderr)
    sys.exit(InputError.exit_code)
  if not flags.FLAGS["verbosity"].present:
    logging.set_verbosity(logging.WARNING)  # hides the log of jax and orbax
  return rest


def _resolve_configs(argv: list[str]) -> list[str]:
  resolved = list(argv)
  for i, word in enumerate(argv):
    flag, equals, value = word.partition("=")
    if flag not in ("--config", "-config"):
      continue
    if equals:
      resolved[i] = f"{flag}={resolve_config(value)}"
    elif i + 1 < len(argv):
      resolved[i + 1] = resolve_config(argv[i + 1])
  return resolved


def rerun_command() -> str:
  """Returns the command line that runs this process again."""
  name = pathlib.Path(sys.argv[0]).stem
  words = [f"python -m truenegs_jax.{name}", *map(shlex.quote, sys.argv[1:])]
  return " ".join(words)
