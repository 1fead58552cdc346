"""The command line of all entry points: flags, --config and --help.

  --config=FILE.py[:ARG,...] or --config=NAME[:ARG,...] of a packaged config
  --config=WORKDIR/config.json, which a run has saved
  --config.KEY=VALUE to change one value of it

Every key of the config becomes a flag of absl. A bad flag or value prints one
line and exits with code 2, without a traceback.
"""

import ast
import contextlib
import pathlib
import re
import shlex
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import app, flags, logging
from ml_collections import ConfigDict

from truenegs_jax.config import load, tables
from truenegs_jax.config.keys import Key, did_you_mean, flatten
from truenegs_jax.runtime.errors import (
  ESCAPES,
  InputError,
  explain,
  printable,
  program,
)

CONFIG = "config"  # flags
WORKDIR = "workdir"
HELP = {"-h", "-help", "--help", "--helpshort", "--helpfull"}
CONFIG_HELP = """
A config has all settings of a run. --config=NAME --help lists its keys; a flag
--config.KEY=VALUE changes one. Configs of the package:"""


class _TupleParser(flags.ArgumentParser):
  """Parses a Python literal, or one string without a comma."""

  syntactic_help = """a list, such as "('a', 'b')" or "(1, 2)\""""

  def __init__(self, kind: Callable[[Any], Any]) -> None:
    self._kind = kind

  def parse(self, argument: str) -> tuple:
    """Returns a tuple of values of one type; ValueError for another text."""
    value: Any = argument
    try:
      value = ast.literal_eval(argument)
    except (SyntaxError, ValueError) as e:
      if "," in argument:
        raise ValueError from e
    values = value if isinstance(value, tuple | list) else [value]
    return tuple(map(self._kind, values))


class _DictParser(flags.ArgumentParser):
  """Refuses every text: a dict is set in a config file."""

  syntactic_help = (
    "set in a config file in Python, as docs/how_to/study.md shows, and not by"
    " a flag"
  )

  def parse(self, argument: str) -> Any:
    """Raises ValueError."""
    raise ValueError(argument)


def define_config(values: flags.FlagValues = flags.FLAGS) -> flags.FlagHolder:
  """Defines --config; its `.value` is a locked ConfigDict."""
  text = (
    "FILE.py[:ARG,...], the NAME[:ARG,...] of a packaged config, or the"
    " WORKDIR/config.json of a run."
  )
  return flags.DEFINE_string(CONFIG, None, text, flag_values=values)


def run(main: Callable[[list[str]], object]) -> None:
  """Runs `app.run` with packaged configs and one-line flag errors.

  The help of the program begins with the docstring of the module of `main`.
  """
  text = sys.modules[main.__module__].__doc__
  app.run(main, flags_parser=lambda argv: parse(argv, flags.FLAGS, text))


@contextlib.contextmanager
def exit_on_errors() -> Iterator[None]:
  """Prints an error and exits with its code."""
  try:
    yield
    sys.stdout.flush()
  except Exception as e:
    if not (error := explain(e)):
      raise
    if isinstance(e, OSError):
      sys.stdout = None  # or Python writes the rest, and exits with 120
    print(f"error: {printable(error)}", file=sys.stderr)
    sys.exit(error.exit_code)


def parse_config(argv: Sequence[str]) -> ConfigDict:
  """Returns the locked config of flags that are --config and --config.KEY."""
  values = flags.FlagValues()
  define_config(values)
  parse_flags(["program", *argv], values)
  return values[CONFIG].value


def parse(
  argv: list[str], values: flags.FlagValues, text: str | None
) -> list[str]:
  """Parses the flags of a program; prints its help and exits for --help.

  The help begins with `text` and lists the flags.

  A mistake prints one line and exits with code 2.
  """
  words = [word for word in argv if word not in HELP]
  with exit_on_errors():
    rest = parse_flags(words, values, needs_config=words == argv)
  if words != argv:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # for `--help | head`
    print(_help(values, text).translate(ESCAPES))
    sys.exit()
  if "verbosity" in values and not values["verbosity"].present:
    logging.set_verbosity(logging.WARNING)  # hides the log of jax
    # Some hundred lines for a failed save of Orbax, which is also raised.
    logging.get_absl_logger().disabled = True
  return rest


def parse_flags(
  argv: Sequence[str], values: flags.FlagValues, *, needs_config: bool = True
) -> list[str]:
  """Parses the flags of a program; sets --config and the default --workdir."""
  values.set_gnu_getopt()  # finds flags behind words that are none
  text = ""
  config = None
  try:
    if CONFIG in values:
      values(argv, known_only=True)
      text = values[CONFIG].value or ""
    if text:
      config = load.load_config(text, with_base_check=False)
      for name, key in tables.TABLES[config.task].items():
        _define_key(name, key, values)
    rest = values(argv)
  except (flags.Error, ValueError) as e:
    raise InputError(_explain(e, values)) from e
  if CONFIG in values and (words := rest[1:]):
    name, equals, _ = words[0].partition("=")
    hint = _near_flags(name, values) if equals else ""
    stem = pathlib.Path(name.partition(":")[0]).stem
    if stem in load.packaged_names():
      hint = f" Did you mean --config={words[0]}?"
    hint = hint or " Use --config.KEY=VALUE. Put a value with spaces in quotes."
    raise InputError(f"Not understood: {', '.join(map(repr, words))}.{hint}")
  if config:
    task = config.task
    given = {flag.name: flag.value for flag in _flags(values) if flag.present}
    config.update_from_flattened_dict(given, f"{CONFIG}.")
    if config.task != task:
      raise InputError(
        f"--config.task={config.task} does not fit --config={text}, a config of"
        f" {task}. Pass one of that task; {program()} configs lists them."
      )
    if text.endswith(".json") and f"{CONFIG}.{load.BASE}" not in given:
      load.check_base(text, config)
    tables.check_values(config)
    values[CONFIG].value = config.lock()
    if WORKDIR in values and not values[WORKDIR].value:
      values[WORKDIR].value = str(load.default_workdir(text))
  elif CONFIG in values and needs_config:
    raise InputError("--config is missing. Try --config=electra_demo.")
  return rest


def _flags(values: flags.FlagValues) -> list[flags.Flag]:
  """Lists the flags that the program defines, without those of absl."""
  return [
    flag
    for module, group in values.flags_by_module_dict().items()
    if not module.startswith("absl.")
    for flag in group
  ]


def _define_key(name: str, key: Key, values: flags.FlagValues) -> None:
  """Defines --config.KEY with the type of the key's default."""
  kind = type(key.default)
  parsers: dict[type, flags.ArgumentParser] = {
    bool: flags.BooleanParser(),
    int: flags.IntegerParser(),
    float: flags.FloatParser(),
    str: flags.ArgumentParser(),
    dict: _DictParser(),
  }
  parser = parsers.get(kind) or _TupleParser(key.kind)
  flag = flags.Flag[Any](
    parser, None, f"{CONFIG}.{name}", None, key.describe(), boolean=kind is bool
  )
  flags.DEFINE_flag(flag, values)


def _help(values: flags.FlagValues, text: str | None) -> str:
  """Returns the help of a program or, with --config, of that config."""
  if CONFIG in values and (config := values[CONFIG].value):
    lines = ["Keys of the config, as flags with their values:", ""]
    lines += _render_keys(config)
  else:
    lines = [(text or "").strip()]
    if _flags(values):
      lines += ["", "Flags:"]
    for flag in _flags(values):
      lines += _render_flag(flag.name, flag.value, flag.help or "")
    if CONFIG in values:
      lines += [CONFIG_HELP, *render_configs()]
  lines += ["", "Documentation: docs/index.md in the repository."]
  return "\n".join(lines)


def _near_flags(name: str, values: flags.FlagValues) -> str:
  """Returns " Did you mean --FLAG?", also for keys without --config., or ""."""
  return did_you_mean(name, [flag.name for flag in _flags(values)], "--")


def _explain(error: Exception, values: flags.FlagValues) -> str:
  """Rewrites a message of absl."""
  if isinstance(error, flags.UnrecognizedFlagError):
    name = error.flagname
    hint = _near_flags(name, values)
    if name == WORKDIR:
      hint = " Pass the folder alone, without --workdir=."
    return f"There is no flag --{name}.{hint} To list all flags, pass --help."
  match = re.match(r"flag --([^=]+)=(.*?): ", str(error), re.DOTALL)
  if not match:
    return re.sub(r"(?<=[^.?])\Z", ".", str(error))
  name, text = match.groups()
  parser = values[name].parser
  expected = parser.syntactic_help or "True or False"
  if isinstance(parser, flags.EnumParser):
    expected = f"one of {', '.join(parser.enum_values)}"
  return f"--{name}={text!r} must be {expected}."


def render_configs() -> Iterator[str]:
  """Yields the packaged configs: name, first line of docstring, and words."""
  for name in load.packaged_names():
    yield f"  {name}"
    yield from _wrap(_read_docstring(name).partition("\n")[0])
    if words := load.list_words(name):
      yield from _wrap(" ".join(f":{word}" for word in words))


def render_config(text: str) -> Iterator[str]:
  """Yields the docstring, words and keys of a value of --config."""
  config = load.load_config(text, with_base_check=False)  # it is only shown
  path = text.partition(":")[0]
  if not text.endswith(".json"):
    yield _read_docstring(path)
    if words := load.list_words(path):
      yield "\nWords after its name, separated by commas:\n"
    for word, meaning in words.items():
      yield f"  :{word}"
      yield from _wrap(meaning)
  yield "\nKeys, as flags of main with their values:\n"
  yield from _render_keys(config)


def _render_keys(config: ConfigDict) -> Iterator[str]:
  """Yields each key as a flag with its value, meaning and allowed values."""
  values = flatten(config.to_dict(), kept=tables.DICTS)
  for name, key in tables.TABLES[config.task].items():
    yield from _render_flag(f"{CONFIG}.{name}", values[name], key.describe())


def _render_flag(name: str, value: Any, text: str) -> list[str]:
  """Returns lines with a flag, its value or default, and its meaning."""
  usage = "VALUE" if value in (None, []) else shlex.quote(str(value))
  return [f"--{name}={usage}", *_wrap(text)]


def _read_docstring(path: str) -> str:
  source = load.find_config(path).read_text(encoding="utf-8")
  return ast.get_docstring(ast.parse(source)) or ""


def _wrap(text: str) -> list[str]:
  indent = " " * 6
  return textwrap.wrap(
    text, 80, initial_indent=indent, subsequent_indent=indent
  )
