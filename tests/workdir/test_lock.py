"""One run at a time uses a workdir."""

import contextlib
import fcntl

import numpy as np
import pytest

from truenegs_jax.runtime.errors import DiskError, InputError
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir import files, lock
from truenegs_jax.workdir.checkpoints import Checkpoints


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


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_workdir_that_was_moved_meanwhile_is_no_success(
  tmp_path, is_replaced
):
  workdir = tmp_path / "run"
  with pytest.raises(DiskError, match="run"):
    with lock.lock(workdir):
      workdir.rename(tmp_path / "moved")
      if is_replaced:  # as a save does
        (workdir / "checkpoints").mkdir(parents=True)
        (workdir / files.LOCK).touch()


def test_a_second_writer_is_noticed_where_locks_are_not_shared(
  tmp_path, monkeypatch
):
  """As on an NFS whose locks are those of each machine."""
  monkeypatch.setattr(fcntl, "flock", lambda *_: None)
  with pytest.raises(DiskError, match="Another run uses it now: process"):
    with lock.lock(tmp_path) as first:
      first.check()
      with lock.lock(tmp_path) as second:
        checkpoints = Checkpoints(tmp_path / files.CHECKPOINTS, lease=first)
        with contextlib.closing(checkpoints):
          with pytest.raises(DiskError, match="was lost") as error:
            checkpoints.save(1, {"x": np.zeros(2)}, {})
        assert first.error is error.value
        second.check()
  assert files.list_steps(tmp_path / files.CHECKPOINTS) == []


def test_a_second_writer_is_noticed_while_a_step_is_written(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(fcntl, "flock", lambda *_: None)
  with contextlib.suppress(DiskError), lock.lock(tmp_path) as first:
    checkpoints = Checkpoints(tmp_path / files.CHECKPOINTS, lease=first)
    checkpoints.save(1, {"x": np.zeros(2)}, {}, wait=True)
    compute = checkpoints_lib.compute_checksums

    def begin(tree):  # between the check before a save and that after it
      other = lock.Lease()
      other.acquire(tmp_path / files.LOCK)
      other.close()
      return compute(tree)

    monkeypatch.setattr(checkpoints_lib, "compute_checksums", begin)
    with pytest.raises(DiskError, match="Another run uses it now"):
      checkpoints.save(2, {"x": np.zeros(2)}, {}, wait=True)
    checkpoints.close()
  assert files.list_steps(tmp_path / files.CHECKPOINTS) == [1]


def test_unwritable_workdir_is_refused(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(InputError, match="--workdir"):
    with lock.lock(tmp_path / "file"):
      pass


def test_only_the_first_process_takes_the_lock(tmp_path, monkeypatch):
  monkeypatch.setattr(lock.distributed, "is_first_process", lambda: False)
  with lock.lock(tmp_path / "run"):
    assert not list(tmp_path.iterdir())
