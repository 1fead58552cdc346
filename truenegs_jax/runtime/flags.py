"""The --config flag and the command line of all entry points.

  --config=FILE.py[:ARG,...] or --config=NAME[:ARG,...] of a packaged config
  --config=WORKDIR/config.json, which a run has saved
  --config.KEY=VALUE to change one value of it

A bad flag or config prints one line and exits with code 2, without a traceback.
"""

import os
import pathlib
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from absl import app, flags, logging
from ml_collections import ConfigDict

from truenegs_jax.configs.common_keys import KEYS
from truenegs_jax.runtime import config_files, help_text
from truenegs_jax.runtime.errors import InputError, printable
from truenegs_jax.runtime.saved_configs import load_saved_config

CONFIG, WORKDIR = "config", "workdir"  # flags
HELP = {"-h", "-help", "--help", "--helpshort", "--helpfull"}


class Words(NamedTuple):
  """The words of a command line."""

  config: str | None  # value of --config
  overrides: list[tuple[str, str | None]]  # --config.KEY and its value, if any
  others: list[str]


def define_config() -> flags.FlagHolder:
  """Defines --config; its `.value` is a locked ConfigDict."""
  text = (
    "FILE.py[:ARG,...], the NAME[:ARG,...] of a packaged config, or the"
    " WORKDIR/config.json of a run."
  )
  return flags.DEFINE_string(CONFIG, None, text)


def run(main: Callable[[list[str]], object]) -> None:
  """Runs `app.run` with packaged configs and one-line flag errors."""
  app.run(main, flags_parser=parse)


def parse_config(argv: Sequence[str]) -> ConfigDict:
  """Returns the locked config of flags that are --config and --config.KEY.

  Raises:
    InputError: as `config_files.load_config` and `config_files.set_value`.
  """
  words = split_words(argv)
  if words.config is None:
    raise InputError("--config is missing. Try --config=electra_demo.")
  return make_config(words.config, words.overrides)


def make_config(
  text: str, overrides: Sequence[tuple[str, str | None]]
) -> ConfigDict:
  """Loads a config, changes values and locks it; errors as `parse_config`."""
  path, colon, _ = text.partition(":")
  if path.endswith(".json"):
    if colon:
      raise InputError(
        f"--config={text!r}: a saved config takes no words after a colon."
        " Change its values with --config.KEY=VALUE."
      )
    config = load_saved_config(pathlib.Path(path))
  else:
    config = config_files.load_config(text)
  for key, value in overrides:
    config_files.set_value(config, key, value)
  return config.lock()


def split_words(argv: Sequence[str]) -> Words:
  """Splits the words after the program's name.

  Raises:
    InputError: --config has no value.
  """
  config: str | None = None
  overrides: list[tuple[str, str | None]] = []
  others: list[str] = []
  rest = list(argv)
  while rest:
    word = rest.pop(0)
    match = re.fullmatch(r"--?(no)?config(\.[^=]*)?(=.*)?", word, re.DOTALL)
    if not match or word in ("--noconfig", "-noconfig"):
      others.append(word)
      continue
    negated, key, value = match.groups()
    if value is not None:
      value = value[1:]
    elif negated:
      value = "false"
    elif rest and not re.match(r"--?[a-zA-Z]", rest[0]):  # "-1" is a value
      value = rest.pop(0)
    if key:
      overrides.append((key[1:], value))
    elif value:
      config = value
    else:
      raise InputError("--config needs a value. Try --config=electra_demo.")
  return Words(config, overrides, others)


def parse(
  argv: list[str], values: flags.FlagValues = flags.FLAGS, *, doc: str = ""
) -> list[str]:
  """Parses the flags of a program; prints its help and exits for --help.

  A mistake prints one line and exits with code 2. `doc` begins the help, by
  default the docstring of the program.
  """
  try:
    if HELP.intersection(argv):
      _print(_help(argv, values, doc or sys.modules["__main__"].__doc__ or ""))
      sys.exit()
    rest = parse_flags(argv, values)
  except (flags.Error, InputError) as e:
    print(f"error: {printable(e)}", file=sys.stderr)
    sys.exit(InputError.exit_code)
  if "verbosity" in values and not values["verbosity"].present:
    logging.set_verbosity(logging.WARNING)  # hides the log of jax and orbax
  return rest


def parse_flags(argv: list[str], values: flags.FlagValues) -> list[str]:
  """Parses the flags of a program; sets --config and the default --workdir.

  Raises:
    InputError: a flag is unknown, has a wrong value, or --config is missing.
    flags.Error: another mistake, such as a flag without its value.
  """
  words = Words(None, [], argv[1:])
  if CONFIG in values:
    words = split_words(values.read_flags_from_files(argv[1:]))
  try:
    rest = values([argv[0], *words.others])
  except flags.UnrecognizedFlagError as e:
    hint = _near_flags(e.flagname, values)
    raise InputError(
      f"There is no flag --{e.flagname}.{hint} To list all flags, pass --help."
    ) from e
  except flags.IllegalFlagValueError as e:
    raise InputError(_bad_value(str(e), values)) from e
  if len(rest) > 1:
    raise InputError(_unknown_words(rest[1:], values))
  if CONFIG not in values:
    return rest
  if words.config is None:
    raise InputError("--config is missing. Try --config=electra_demo.")
  values[CONFIG].value = make_config(words.config, words.overrides)
  if WORKDIR in values and not values[WORKDIR].value:
    values[WORKDIR].value = str(config_files.default_workdir(words.config))
  return rest


def _print(text: str) -> None:
  """Prints a help text; a pipe may be closed before its end, as by `head`."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help(argv: Sequence[str], values: flags.FlagValues, doc: str) -> str:
  """Returns the help of a verb or, with --config, of that config."""
  words = split_words([word for word in argv[1:] if word not in HELP])
  if CONFIG in values and words.config is not None:
    config = make_config(words.config, words.overrides)
    return help_text.config_help(words.config, config)
  return help_text.verb_help(doc, _own_flags(values))


def _own_flags(values: flags.FlagValues) -> list[flags.Flag]:
  """Returns the flags that the program defines, without those of absl."""
  modules = values.flags_by_module_dict().items()
  return [
    flag
    for module, group in modules
    if not module.startswith("absl.")
    for flag in group
  ]


def _near_flags(name: str, values: flags.FlagValues) -> str:
  """Returns " Did you mean --FLAG?", also for keys without --config., or ""."""
  names = [flag.name for flag in _own_flags(values)]
  if CONFIG in names:
    names += [f"{CONFIG}.{key}" for key in KEYS]
  return config_files.did_you_mean(name, names, "--")


def _bad_value(message: str, values: flags.FlagValues) -> str:
  """Rewrites absl's "flag --NAME=VALUE: REASON"."""
  match = re.match(r"flag --([^=]+)=(.*?): ", message, re.DOTALL)
  if not match:
    return message
  name, text = match.groups()
  parser = values[name].parser
  expected = parser.syntactic_help or "True or False"
  if isinstance(parser, flags.EnumParser):
    expected = f"one of {', '.join(parser.enum_values)}"
  return f"--{name}={text!r} must be {expected}."


def _unknown_words(words: Sequence[str], values: flags.FlagValues) -> str:
  listed = ", ".join(map(repr, words))
  name, equals, _ = words[0].partition("=")
  stem = pathlib.Path(name.partition(":")[0]).stem
  if equals:
    hint = _near_flags(name, values)
  elif CONFIG in values and stem in config_files.packaged_names():
    hint = f" Did you mean --config={words[0]}?"
  else:
    hint = " Put a value with spaces in quotes."
  return f"Not understood: {listed}.{hint} To list all flags, pass --help."


def rerun_command() -> str:
  """Returns the command line that runs this process again."""
  name = pathlib.Path(sys.argv[0]).stem
  words = [f"python -m truenegs_jax.{name}", *map(shlex.quote, sys.argv[1:])]
  return " ".join(words)
