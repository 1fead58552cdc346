"""Help texts: of a verb with its flags, and of a config with its keys."""

import ast
import shlex
import textwrap
from collections.abc import Iterable

from absl import flags
from ml_collections import ConfigDict

from truenegs_jax.runtime import config_files
from truenegs_jax.runtime.config_keys import Key, describe_keys

WIDTH = 80
VERBS = {
  "main": "Runs a config: pre-trains, fine-tunes or measures corrections.",
  "prepare": "Turns text into rows before training, also in several jobs.",
  "synonyms": "Builds synonym tables, shows their lists and compares them.",
  "export": "Writes a checkpoint in Hugging Face format.",
}
PACKAGE_HELP = """\
Pre-training on true negatives: ELECTRA and BERT in JAX.

  truenegs main --config=electra_demo
  truenegs export --workdir=runs/electra_demo

Verbs, each with its own --help:"""
CONFIG_HELP = """\
A config has all settings of a run. --config=NAME --help lists its keys; a flag
--config.KEY=VALUE changes one. Configs of the package:"""


def package_help() -> str:
  """Returns the help of the command `truenegs`."""
  verbs = [f"  {name:<9} {text}" for name, text in VERBS.items()]
  return "\n".join([PACKAGE_HELP, *verbs])


def verb_help(doc: str, own_flags: Iterable[flags.Flag]) -> str:
  """Returns the help of a verb: its docstring, its flags, and the configs."""
  own_flags = list(own_flags)
  lines = [doc.strip(), "", "Flags:"]
  for flag in sorted(own_flags, key=lambda x: x.name != "config"):
    usage = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}=VALUE"
    text = flag.help or ""
    if flag.default not in (None, "", False, []):
      text += f" Default: {flag.default}."
    lines += [f"  {usage}", *_indent(text)]
  if any(flag.name == "config" for flag in own_flags):
    lines += ["", CONFIG_HELP]
    for name in config_files.packaged_names():
      lines += [f"  {name}", *_indent(_summary(name))]
  lines += ["", "Documentation: docs/index.md in the repository."]
  return "\n".join(lines)


def config_help(name: str, config: ConfigDict) -> str:
  """Returns all keys of a config as flags, with value and meaning."""
  lines = [f"Keys of {name}, as flags with their values:", ""]
  for key in describe_keys(config):
    flag = f"--config.{key.name}={shlex.quote(str(key.value))}"
    lines += [flag, *_indent(_explain(key))]
  return "\n".join(lines)


def _explain(key: Key) -> str:
  """Returns the meaning of a key with its choices or range."""
  values = ", ".join(key.choices) or key.range
  return f"{key.meaning} [{values}]" if values else key.meaning


def _summary(name: str) -> str:
  """Returns the first line of a packaged config's docstring."""
  source = (config_files.PACKAGED / f"{name}.py").read_text(encoding="utf-8")
  return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _indent(text: str) -> list[str]:
  indent = " " * 6
  return textwrap.wrap(
    text, WIDTH, initial_indent=indent, subsequent_indent=indent
  )
