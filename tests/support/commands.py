"""Types commands in this process, which ends with none of them."""

import contextlib
import io
import os
import pathlib
import re
import shlex
import sys
from unittest import mock

import pytest
from absl import app, flags
from click.testing import CliRunner

from support import hub_stand_in
from truenegs_jax import __main__ as command
from truenegs_jax import main
from truenegs_jax.config import flags as flags_lib
from truenegs_jax.runtime import distributed, errors


def type_line(line: str) -> tuple[int, str]:
  """Runs a command line of `truenegs` or `hf`; returns exit code and output."""
  if line.startswith("hf "):
    from huggingface_hub.cli import hf  # slow to import

    result = CliRunner().invoke(hf.app, shlex.split(line)[1:])
    return result.exit_code, result.output
  _, words = re.split(r"truenegs(?:_jax)? ", line, maxsplit=1)
  known = {*flags.FLAGS}
  out = io.StringIO()
  code = 0
  with contextlib.ExitStack() as stack:
    stack.enter_context(contextlib.redirect_stdout(out))
    stack.enter_context(contextlib.redirect_stderr(out))
    stack.enter_context(mock.patch.dict(os.environ))
    _keep_process(stack.enter_context(pytest.MonkeyPatch.context()))
    sys.argv = ["truenegs", *_split(words)]
    try:
      command.main()
    except SystemExit as e:
      code = e.code or 0
    finally:
      for name in {*flags.FLAGS} - known:
        delattr(flags.FLAGS, name)
      flags.FLAGS.unparse_flags()
  return code, out.getvalue()


def _split(line: str) -> list[str]:
  """Splits a command line as a shell does: parentheses are words, too."""
  lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
  lexer.whitespace_split = True
  return list(lexer)


def type_with_hub(line: str, name: str, folder: str) -> tuple[int, str]:
  """Types a command while a hub has a model with the files of a folder."""
  files = {x.name: x.read_bytes() for x in pathlib.Path(folder).iterdir()}
  with (
    hub_stand_in.HubServer() as server,
    pytest.MonkeyPatch.context() as patch,
  ):
    server.hub.models = {name: {"main": files}}
    with hub_stand_in.connect(server, patch):
      return type_line(line)


def change_flags(line: str, flags: str) -> str:
  """Adds flags to a command line, in place of those of the same names."""
  words = shlex.split(line)
  for flag in shlex.split(flags):
    name = flag.partition("=")[0]
    words = [word for word in words if word.partition("=")[0] != name]
    words.append(flag)
  return shlex.join(words)


def _keep_process(patch: pytest.MonkeyPatch) -> None:
  """Leaves out what a command changes in its process, such as signals."""
  patch.setattr(sys, "argv", [])
  patch.setattr(
    app, "run", lambda run, flags_parser: run(flags_parser(sys.argv))
  )
  patch.setattr(flags_lib, "logging", mock.Mock())
  patch.setattr(errors, "start_command", lambda: None)
  patch.setattr(main.cpu, "configure", lambda: None)
  patch.setattr(distributed, "start_watchdog", lambda secs: None)
