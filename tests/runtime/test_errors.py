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


@pytest.mark.parametrize(
  ("variables", "printed"),
  [
    ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "Übung"),
    ({"PYTHONIOENCODING": "ascii"}, r"\xdcbung"),
  ],
)
def test_a_command_finds_and_prints_any_name(variables, printed):
  result = subprocess.run(
    [sys.executable, "-c", COMMAND, "Übung"],
    env={**os.environ, **variables},
    stdout=subprocess.PIPE,
    check=True,
  )
  assert result.stdout.decode() == f"{printed}\n"


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
