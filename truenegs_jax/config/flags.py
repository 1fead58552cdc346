"""The command line of all entry points: flags, --config and --help.

  --config=FILE.py[:ARG,...] or --config=NAME[:ARG,...] of a packaged config
  --config=WORKDIR/config.json, which a run has saved
  --config.KEY=VALUE to change one value of it

`ml_collections.config_flags` makes a flag of every key. A mistake prints one
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from truenegs_jax.config import load, tables
from truenegs_jax.config.keys import did_you_mean, flatten
from truenegs_jax.runtime.errors import ESCAPES, InputError, explain, printable

CONFIG = "config"  # flags
WORKDIR = "workdir"
HELP = {"-h", "-help", "--help", "--helpshort", "--helpfull"}
CONFIG_HELP = """
A config has all settings of a run. --config=NAME --help lists its keys; a flag
--config.KEY=VALUE changes one. Configs of the package:"""


def define_config(values: flags.FlagValues = flags.FLAGS) -> flags.FlagHolder:
  """Defines --config; its `.value` is a locked ConfigDict."""
  text = (
    "FILE.py[:ARG,...], the NAME[:ARG,...] of a packaged config, or the"
    " WORKDIR/config.json of a run."
  )
  return flags.DEFINE_string(CONFIG, None, text, flag_values=values)


def run(main: Callable[[list[str]], None]) -> None:
  """Runs `app.run` with packaged configs and errors of one line.

  The help of the program begins with the docstring of the module of `main`.
  Exit codes are those of runtime.errors.
  """
  text = sys.modules[main.__module__].__doc__
  app.run(
    exit_on_errors()(main),
    flags_parser=lambda argv: parse(argv, flags.FLAGS, text),
  )


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
  """
  words = [word for word in argv if word not in HELP]
  with exit_on_errors():
    rest, source = parse_flags(words, values, needs_config=words == argv)
  if words != argv:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # for `--help | head`
    print(_help(values, text, source).translate(ESCAPES))
    sys.exit()
  if "verbosity" in values and not values["verbosity"].present:
    logging.set_verbosity(logging.WARNING)  # hides the log of jax
    # Some hundred lines for a failed save of Orbax, which is also raised.
    logging.get_absl_logger().disabled = True
  return rest


def parse_flags(
  argv: Sequence[str], values: flags.FlagValues, *, needs_config: bool = True
) -> tuple[list[str], str]:
  """Parses the flags of a program; sets --config and the default --workdir.

  Returns the words that are no flags, and what --config names. Raises
  InputError for a mistake.
  """
  values.set_gnu_getopt()  # finds flags behind words that are none
  if CONFIG not in values:
    with _refuse_mistakes(values):
      return values(argv), ""
  with _refuse_mistakes(values):
    rest = values(argv, known_only=True)
  text: str = values[CONFIG].value or ""
  if needs_config and not text and all("--config." in x for x in rest[1:]):
    raise InputError("--config is missing. Try --config=demo.")
  config = load.load_config(text) if text else None
  keys = tables.TABLES[config.task] if config else {}
  with _refuse_mistakes(values, keys):
    if config:
      _define_keys(config, rest, values)
    rest = values(rest)
  if words := rest[1:]:
    raise InputError(_explain_words(words, values, keys))
  if config:
    tables.check_values(values[CONFIG].value)
    if WORKDIR in values and not values[WORKDIR].value:
      values[WORKDIR].value = str(load.default_workdir(text))
  return rest, text


@contextlib.contextmanager
def _refuse_mistakes(
  values: flags.FlagValues, keys: Iterable[str] = ()
) -> Iterator[None]:
  """Turns absl's errors into InputErrors, with flags that may be meant."""
  try:
    yield
  except flags.UnrecognizedFlagError as e:
    hint = _near_flags(e.flagname, values, keys)
    raise InputError(
      f"There is no flag --{e.flagname}.{hint} To list all flags, pass --help."
    ) from e
  except flags.Error as e:
    raise InputError(re.sub(r"(?<=[^.?])\Z", ".", str(e))) from e


def _define_keys(
  config: ConfigDict, argv: Sequence[str], values: flags.FlagValues
) -> None:
  """Replaces --config by a flag of the ConfigDict, and flags of its keys."""
  for word in argv[1:]:
    match = re.match(rf"--?(?:no)?{CONFIG}\.([^=]*)", word)
    if match and match[1] == "task":
      source = values[CONFIG].value
      raise flags.Error(f"{word} is no flag: --config={source} has its task.")
    if match and match[1] not in tables.TABLES[config.task]:
      raise flags.UnrecognizedFlagError(f"{CONFIG}.{match[1]}")
    if match and match[1] in tables.DICTS:
      raise flags.Error(
        f"--{CONFIG}.{match[1]} is a dict. Set it in a config file in Python,"
        " as docs/how_to/study.md shows."
      )
  delattr(values, CONFIG)
  config_flags.DEFINE_config_dict(
    CONFIG, config, flag_values=values, sys_argv=[*argv]
  )


def _explain_words(
  words: list[str], values: flags.FlagValues, keys: Iterable[str]
) -> str:
  """Says what may be meant by words that are no flags."""
  name, equals, _ = words[0].partition("=")
  hint = _near_flags(name, values, keys) if equals else ""
  if pathlib.Path(name.partition(":")[0]).stem in load.packaged_names():
    hint = f" Did you mean --config={words[0]}?"
  hint = hint or " Use --config.KEY=VALUE. Put a value with spaces in quotes."
  return f"Not understood: {', '.join(map(repr, words))}.{hint}"


def _near_flags(
  name: str, values: flags.FlagValues, keys: Iterable[str]
) -> str:
  """Returns " Did you mean --FLAG?", also for keys without --config., or ""."""
  names = [flag.name for flag in _flags(values)]
  names += [f"{CONFIG}.{key}" for key in keys]
  return did_you_mean(name, names, "--")


def _flags(values: flags.FlagValues) -> list[flags.Flag]:
  """Lists the flags that the program defines, without those of absl."""
  return [
    flag
    for module, group in values.flags_by_module_dict().items()
    if not module.startswith("absl.")
    for flag in group
  ]


def _help(values: flags.FlagValues, text: str | None, source: str) -> str:
  """Returns the help of a program or, with --config, of that config."""
  lines = [(text or "").strip(), "", "Flags:"]
  if source:
    lines = [*_describe_config(source, values[CONFIG].value)]
  else:
    for flag in _flags(values):
      lines += _render_flag(flag.name, flag.value, flag.help or "")
    if CONFIG in values:
      lines += [CONFIG_HELP, *_list_configs()]
  lines += ["", "Documentation: docs/index.md in the repository."]
  return "\n".join(lines)


def _list_configs() -> Iterator[str]:
  """Yields the packaged configs: name, first line of docstring, and words."""
  for name in load.packaged_names():
    yield f"  {name}"
    yield from _wrap(_read_docstring(name).partition("\n")[0])
    if words := load.list_words(name):
      yield from _wrap(" ".join(f":{word}" for word in words))


def _describe_config(source: str, config: ConfigDict) -> Iterator[str]:
  """Yields a config's docstring, words, and keys with values and meanings."""
  path = source.partition(":")[0]
  if not source.endswith(".json"):
    yield _read_docstring(path)
    yield "\nWords after its name, separated by commas:\n"
    for word, meaning in load.list_words(path).items():
      yield f"  :{word}"
      yield from _wrap(meaning)
  yield "\nKeys, as flags with their values:\n"
  current = flatten(config.to_dict(), kept=tables.DICTS)
  for name, key in tables.TABLES[config.task].items():
    yield from _render_flag(f"{CONFIG}.{name}", current[name], key.describe())


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
