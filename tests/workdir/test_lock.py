"""One run at a time has a workdir."""

import subprocess
import sys

import pytest

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.workdir import lock


def test_a_second_run_in_a_workdir_is_refused_until_the_first_ends(tmp_path):
  workdir = tmp_path / "runs" / "a"
  with lock.lock(workdir):
    with pytest.raises(InputError, match="another run is using"):
      with lock.lock(workdir):
        pass
    with pytest.raises(InputError, match="another run is using"):
      with lock.lock(workdir):  # the refusal did not let go of it
        pass
  with lock.lock(workdir):
    pass


def test_the_lock_ends_with_its_process_however_that_ends(tmp_path):
  code = (
    "import os, pathlib, sys\n"
    "from truenegs_jax.workdir import lock\n"
    "with lock.lock(pathlib.Path(sys.argv[1])): os._exit(9)\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", code, str(tmp_path)], check=False
  )
  assert done.returncode == 9
  with lock.lock(tmp_path):
    pass


def test_a_workdir_that_cannot_be_made_is_refused(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(InputError, match="--workdir"):
    with lock.lock(tmp_path / "file" / "run"):
      pass


def test_only_the_first_process_of_a_run_locks(tmp_path, monkeypatch):
  monkeypatch.setattr(lock.distributed, "is_first_process", lambda: False)
  with lock.lock(tmp_path / "run"):
    assert not list(tmp_path.iterdir())
