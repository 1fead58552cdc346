"""Commands without streams, room or a folder end with a sentence at most."""

import errno
import pathlib
import subprocess
import sys

import pytest

from support import runs
from truenegs_jax.runtime import errors

OPEN = """
import os, sys
from truenegs_jax.runtime import errors
errors.start_command()
print("out")
print("err", file=sys.stderr)
sys.exit(os.open("file", os.O_CREAT | os.O_RDWR))
"""
PRINT = """
from truenegs_jax.config import flags
with flags.exit_on_errors():
  print("out")
"""


def run_in_shell(folder, program, redirect):
  return subprocess.run(
    ["sh", "-c", f'"$@" {redirect}', "sh", sys.executable, "-c", program],
    env=runs.make_environment(folder),
    cwd=folder,
    stderr=subprocess.PIPE,
    text=True,
  )


@pytest.mark.parametrize("redirect", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path, redirect):
  assert run_in_shell(tmp_path, OPEN, redirect).returncode > 2
  assert (tmp_path / "file").read_text() == ""


def test_results_on_a_full_disk_are_an_error_of_the_disk(tmp_path):
  ended = run_in_shell(tmp_path, PRINT, ">/dev/full")
  assert ended.returncode == errors.DiskError.exit_code
  assert ended.stderr.startswith("error: The disk of the output is full.")
  assert ended.stderr.count("\n") == 1


def test_a_file_system_that_fails_is_no_bug(tmp_path):
  error = errors.explain(OSError(errno.EIO, "Input/output error", "x/lock"))
  assert isinstance(error, errors.DiskError)
  assert str(error).startswith("'x/lock' cannot be used: Input/output error.")
  error = errors.explain(PermissionError(errno.EACCES, "No permission", "x"))
  assert "Change its permissions, and run the same command" in str(error)
  assert errors.explain(FileNotFoundError(errno.ENOENT, "", "x")) is None


def test_a_current_folder_that_was_deleted_is_named(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  tmp_path.rmdir()
  with pytest.raises(FileNotFoundError) as raised:
    pathlib.Path("rows").resolve()
  error = errors.explain(raised.value)
  assert isinstance(error, errors.InputError)
  assert "current folder was deleted" in str(error)
