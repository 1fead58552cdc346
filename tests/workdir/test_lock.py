"""One run at a time uses a workdir."""

import subprocess
import sys

import pytest

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.workdir import files, lock


def test_second_run_is_refused_until_first_ends(tmp_path):
  workdir = tmp_path / "runs" / "a"
  with lock.lock(workdir):
    with pytest.raises(InputError, match="Another run is using"):
      with lock.lock(workdir):
        pass
    with pytest.raises(InputError, match="Another run is using"):
      with lock.lock(workdir):  # the refused run did not release it
        pass
  with lock.lock(workdir):
    pass


def test_lock_ends_with_its_process(tmp_path):
  code = (
    "import os, pathlib, sys\n"
    "from truenegs_jax.runtime import files\n"
    "with files.lock_file(pathlib.Path(sys.argv[1])): os._exit(9)\n"
  )
  path = tmp_path / files.LOCK
  assert subprocess.call([sys.executable, "-c", code, str(path)]) == 9
  with lock.lock(tmp_path):
    pass


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_unwritable_workdir_is_refused(tmp_path, name):
  (tmp_path / "file").write_text("")
  with pytest.raises(InputError, match="--workdir"):
    with lock.lock(tmp_path / name):
      pass


def test_only_the_first_process_takes_the_lock(tmp_path, monkeypatch):
  monkeypatch.setattr(lock.distributed, "is_first_process", lambda: False)
  with lock.lock(tmp_path / "run"):
    assert not list(tmp_path.iterdir())
