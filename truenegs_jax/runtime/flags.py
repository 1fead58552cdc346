"""`--config=FILE.py[:ARG,...]` or the name of a packaged config, for the verbs.

A flag or config that cannot be is one line and exit code 2, not a traceback.
"""

import pathlib
import shlex
import sys
from collections.abc import Callable

from absl import app, flags, logging
from ml_collections import config_flags

from truenegs_jax.runtime.errors import InputError, printable

PACKAGED = pathlib.Path(__file__).parents[1] / "configs"


def define_config() -> flags.FlagHolder:
  """Defines --config; `.value` is the locked ConfigDict."""
  return config_flags.DEFINE_config_file(
    "config",
    None,
    "FILE.py[:ARG,...], or the name of a packaged config.",
    lock_config=True,
  )


def run(main: Callable[[list[str]], object]) -> None:
  """`app.run` with packaged configs found and bad flags told in one line."""
  app.run(main, flags_parser=_parse)


def resolve_config(value: str) -> str:
  """Resolves `electra_demo:ARGS` to the packaged file; paths stay as given.

  Raises:
    InputError: neither a file nor the name of a packaged config.
  """
  path, colon, args = value.partition(":")
  if pathlib.Path(path).is_file():
    return value
  packaged = PACKAGED / f"{pathlib.Path(path).stem}.py"
  files = PACKAGED.glob("[a-z]*.py")
  names = sorted(p.stem for p in files if not p.stem.startswith("common"))
  if packaged.stem in names:
    return f"{packaged}{colon}{args}"
  raise InputError(
    f"--config={value}: no such file, and no packaged config of that name;"
    f" packaged are {', '.join(names)}."
  )


def config_filename() -> str:
  """The config's file and arguments, as resolved."""
  return config_flags.get_config_filename(flags.FLAGS["config"])


def _parse(argv: list[str]) -> list[str]:
  try:
    rest = flags.FLAGS(_resolved(argv))
    if len(rest) > 1:
      raise InputError(f"arguments not understood: {' '.join(rest[1:])}")
    if flags.FLAGS["config"].value is None:
      raise InputError("--config=FILE is missing; try --config=electra_demo.")
  # ml_collections: the first two for an unknown key, ValueError from a file.
  except (
    AttributeError,
    KeyError,
    flags.Error,
    ValueError,
    TypeError,
  ) as e:
    # ml_collections puts a traceback around what a config's own words raise.
    last = str(e).rstrip().rpartition("\nValueError: ")[2]
    told = last if last.startswith("config argument ") else printable(e)
    if isinstance(e, (AttributeError, KeyError)):
      told = " ".join(str(e.args[0]).split())
      told = f"no such key: {told}; configs/common.py, or the config, has all"
    print(f"error: {told}", file=sys.stderr)
    sys.exit(InputError.exit_code)
  if not flags.FLAGS["verbosity"].present:
    logging.set_verbosity(logging.WARNING)  # jax and orbax tell a lot
  return rest


def _resolved(argv: list[str]) -> list[str]:
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
  """The command line that runs this again."""
  name = pathlib.Path(sys.argv[0]).stem
  words = [f"python -m truenegs_jax.{name}", *map(shlex.quote, sys.argv[1:])]
  return " ".join(words)
