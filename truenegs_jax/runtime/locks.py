"""Locks of files, which the system releases however a process ends.

Machines that share a file system share its locks, also on NFS.
"""

import contextlib
import fcntl
import pathlib
from collections.abc import Iterator
from typing import IO

from truenegs_jax.runtime.errors import DiskError


@contextlib.contextmanager
def lock_file(
  path: pathlib.Path, *, shared: bool = False, wait: bool = False
) -> Iterator[IO[bytes] | None]:
  """Creates and locks a file; yields None if another process has the lock.

  Args:
    path: the file, in an existing folder.
    shared: whether several processes may have the lock at once.
    wait: until other processes release it.

  Raises:
    DiskError: the file cannot be opened.
  """
  kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
  # A shared lock on NFS needs a readable file. Without a buffer, closing it on
  # a full disk does not fail.
  try:
    opened = path.open("a+b", buffering=0)
  except OSError as e:
    raise DiskError(
      f"'{path}' could not be opened: {e.strerror}. Free some space, fix this"
      " or choose another folder, and run the same command again."
    ) from e
  with opened as file:
    try:
      fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
      locked: IO[bytes] | None = file
    except BlockingIOError:
      locked = None
    yield locked


def is_locked(path: pathlib.Path, *, or_shared: bool = False) -> bool:
  """Returns whether a process has the lock of a file, also a shared one."""
  if not path.exists():
    return False
  with lock_file(path, shared=not or_shared) as locked:
    return locked is None
