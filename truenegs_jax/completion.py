"""Completes commands in shells: verbs, flags, configs and their keys.

A script of this module asks `truenegs complete LINE` for the words that may be
at the end of a line. It never imports jax, and ml_collections only for keys.
"""

import pathlib
import re
from collections.abc import Iterable

PACKAGE = pathlib.Path(__file__).parent
# Where a verb's file defines a flag; reading it is faster than importing it.
FLAG = re.compile(r'(?:DEFINE_\w+|string_flag|switch)\(\s*"(\w+)"')
# Bash completes only the end of a word, after the last "=" or ":".
BASH = """\
_truenegs() {
  local IFS=$'\\n' line=${COMP_LINE:0:COMP_POINT} word
  word=${line##* }
  COMPREPLY=($(truenegs complete "$line" 2>/dev/null))
  COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[=:]}"}"}")
  [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _truenegs truenegs
"""
ZSH = """\
#compdef truenegs
_truenegs() {
  local -a candidates
  local line="${(j: :)words[1,CURRENT]}"
  candidates=(${(f)"$(truenegs complete "$line" 2>/dev/null)"})
  if (( $#candidates )); then
    compadd -S '' -- ${(M)candidates:#*=}
    compadd -- ${candidates:#*=}
  else
    compset -P '*='
    _files
  fi
}
compdef _truenegs truenegs
"""
FISH = """\
complete -c truenegs -a '(truenegs complete (commandline -cp) 2>/dev/null)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def complete(line: str, verbs: Iterable[str]) -> list[str]:
  """Returns the words that the last word of a command line can become.

  An empty list stands for files. `verbs` are those of `truenegs`.
  """
  *words, last = re.split(r"\s+", line.lstrip())[1:] or [""]
  candidates: Iterable[str] = []
  if not words:
    candidates = [*verbs, "--help", "--version"]
  elif words[0] == "configs":
    candidates = _config_names(last)
  elif words[0] == "completion":
    candidates = SCRIPTS
  elif last.startswith("--config="):
    names = _config_names(last.removeprefix("--config="))
    candidates = [f"--config={name}" for name in names]
  elif last.startswith("--config."):
    candidates = [f"--config.{key}=" for key in _config_keys(words)]
  elif last.startswith("-") and words[0] in verbs:
    candidates = [*(f"--{name}=" for name in list_flags(words[0])), "--help"]
  return [word for word in candidates if word.startswith(last)]


def list_flags(verb: str) -> list[str]:
  """Lists the flags of a verb, without those of config keys."""
  file = PACKAGE / verb / "__main__.py"
  source = (file if file.exists() else PACKAGE / f"{verb}.py").read_text()
  config = ["config"] if "define_config()" in source else []
  return config + FLAG.findall(source)


def _config_names(start: str) -> list[str]:
  """Lists packaged configs or, after a colon, one with each of its words."""
  from truenegs_jax.runtime import config_files

  name, colon, arg = start.partition(":")
  names = config_files.packaged_names()
  if not colon or name not in names:
    return names
  before = start[: len(start) - len(arg.rpartition(",")[2])]
  words = config_files.list_words(str(config_files.PACKAGED / f"{name}.py"))
  return [f"{before}{word}" for word in words]


def _config_keys(words: Iterable[str]) -> list[str]:
  """Lists the keys of the packaged config on a command line, if it has one.

  Other configs are not executed before they are asked for.
  """
  from truenegs_jax.runtime import config_files

  for word in words:
    name = word.removeprefix("--config=").partition(":")[0]
    if name in config_files.packaged_names():
      config = config_files.load_config(f"{config_files.PACKAGED / name}.py")
      return [*config_files.flatten(config.to_dict())]
  return []
