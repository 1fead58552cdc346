"""Commands find and print paths of any characters, in any locale."""

import os
import subprocess
import sys

import pytest

from truenegs_jax.runtime import paths
from truenegs_jax.runtime.errors import InputError, program
from truenegs_jax.workdir.checkpoints import Checkpoints

COMMAND = """
import os, sys
from truenegs_jax.runtime import errors
errors.start_command()
print(sys.argv[1])
sys.exit(sys.argv[1].encode() != os.fsencode(sys.argv[1]))
"""


OTHER_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run_command(variables):
  return subprocess.run(
    [sys.executable, "-c", COMMAND, "Übung"],
    env={**os.environ, **variables},
    capture_output=True,
  )


@pytest.mark.parametrize(
  ("variables", "printed"),
  [
    (OTHER_LOCALE | {"PYTHONUTF8": "1"}, "Übung"),
    ({"PYTHONIOENCODING": "ascii"}, r"\xdcbung"),
  ],
)
def test_a_command_finds_and_prints_any_name(variables, printed):
  result = run_command(variables)
  assert result.returncode == 0
  assert result.stdout.decode() == f"{printed}\n"


def test_a_locale_that_is_not_utf_8_is_refused():
  result = run_command(OTHER_LOCALE)
  assert result.returncode == InputError.exit_code and not result.stdout
  message = result.stderr.decode()
  assert message.startswith("error: The names of files are read as ascii")
  assert "Run export PYTHONUTF8=1 and the same" in message


HOMELESS = """
import os, pwd
os.environ.pop("HOME", None)
pwd.getpwuid = {}.__getitem__
from truenegs_jax.runtime import cache, errors
errors.start_command()
import nltk  # fails without a home folder
print(cache.folder(), os.path.expanduser("~"))
"""


@pytest.mark.parametrize("folder", ["", "/a"])
def test_a_user_without_a_home_has_the_cache_folder(folder):
  done = subprocess.run(
    [sys.executable, "-c", HOMELESS],
    env=os.environ | {"TRUENEGS_CACHE": folder},
    capture_output=True,
    text=True,
  )
  if folder:
    assert (done.returncode, done.stdout) == (0, f"{folder} {folder}\n")
  else:
    assert done.returncode == InputError.exit_code
    assert "Run export TRUENEGS_CACHE=FOLDER" in done.stderr


def test_only_a_command_sets_up_its_process():
  code = """
import logging, os, resource, sys
from truenegs_jax.runtime import errors
os.environ["HF_HUB_VERBOSITY"] = "info"
errors.start_command()
assert os.environ["EPATH_USE_TF"] == "0"
assert os.environ["HF_HUB_VERBOSITY"] == "info"
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
assert soft == min(hard, errors.MAX_FILES) or hard < 0
logging.getLogger("asyncio").error("Task exception was never retrieved")
logging.getLogger("gcsfs").error("again")
class Closes:
  def __del__(self):
    raise RuntimeError(errors.CLOSED)
Closes()
logging.getLogger("jax").warning("shown")
"""
  ended = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True
  )
  assert ended.returncode == 0, ended.stderr
  assert ended.stderr.count("\n") == 1 and "shown" in ended.stderr


@pytest.mark.parametrize("is_link", [False, True])
def test_steps_in_a_folder_that_libraries_cannot_open_are_not_damaged(
  tmp_path, is_link
):
  name = os.fsdecode(b"\xdcbung")  # in Latin-1
  path = tmp_path / name
  if is_link:
    path = tmp_path / "run"
    path.symlink_to(name)
  with pytest.raises(InputError, match="is not named in UTF-8"):
    Checkpoints(path, read_only=True)
  paths.check_utf8(tmp_path)


def test_a_printed_command_is_that_of_this_environment(tmp_path, monkeypatch):
  own, other = tmp_path / ".venv" / "bin", tmp_path / "other"
  monkeypatch.setattr(sys, "executable", str(own / "python"))
  monkeypatch.setenv("PATH", str(other))
  monkeypatch.chdir(tmp_path)
  assert program() == f"{own}/python -m truenegs_jax"
  for folder in (own, other):
    folder.mkdir(parents=True)
    (folder / "truenegs").touch(mode=0o755)
  assert program() == ".venv/bin/truenegs"
  monkeypatch.setenv("PATH", f"{own}:{other}")
  assert program() == "truenegs"
