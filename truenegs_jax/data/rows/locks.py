"""Locks between processes that prepare the same rows folder.

The system releases them however a process ends. They work on a file system that
several machines share, if it has locks (NFS has).
"""

import contextlib
import pathlib
import sys
from collections.abc import Iterator

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import disk_errors


@contextlib.contextmanager
def folder_lock(
  folder: pathlib.Path, name: str = "lock", *, shared: bool = False
) -> Iterator[None]:
  """Holds a lock of `folder`, after waiting for other processes to release it.

  With `shared`, several processes may hold it at once.
  """
  path = folder.with_name(f".{folder.name}.{name}")
  with disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
  with try_lock(path, shared=shared) as is_held:
    if is_held:
      yield
      return
  print(f"Waiting for another process at '{folder}'.", file=sys.stderr)
  with try_lock(path, shared=shared, wait=True):
    yield


@contextlib.contextmanager
def try_lock(
  path: pathlib.Path, *, shared: bool = False, wait: bool = False
) -> Iterator[bool]:
  """Locks a file, which it creates; yields False if another process holds it.

  Args:
    wait: until the other process releases it.
  """
  try:
    import fcntl
  except ImportError as error:
    raise InputError(
      "Rows cannot be prepared on Windows, which has no file locks. Prepare"
      " them on Linux, macOS or WSL and set --config.data.rows=FOLDER."
    ) from error
  kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
  with disk_errors(path):
    file = open(path, "a+")  # a shared lock on NFS needs a readable file
  with file:
    is_held = True
    with disk_errors(path):
      try:
        fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
      except BlockingIOError:
        is_held = False
    yield is_held
