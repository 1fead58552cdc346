"""Locks that cannot be taken are errors for users."""

import pytest

from truenegs_jax.runtime import locks
from truenegs_jax.runtime.errors import DiskError


def test_a_lock_file_that_cannot_be_opened_is_a_disk_error(tmp_path):
  (tmp_path / "file").touch()
  with pytest.raises(DiskError, match="lock' could not be opened: Not a dir"):
    with locks.lock_file(tmp_path / "file" / "lock"):
      pass
