"""Locks a workdir so that only one run uses it at a time."""

import contextlib
import fcntl
import pathlib
import secrets
from collections.abc import Iterator
from typing import IO

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import FULL_DISK, disk_errors
from truenegs_jax.workdir import files

RUNNING, FINISHED, STOPPED = "running", "finished", "stopped"  # states


@contextlib.contextmanager
def lock(workdir: pathlib.Path) -> Iterator[None]:
  """Creates the workdir and locks it while the context is open.

  The first process of a run takes the lock for all processes and writes a
  random token to the lock file, which all of them must be able to read. The
  kernel releases the lock when the process ends, even if it is killed.

  Raises:
    InputError: another run uses the workdir, it is not writable, or the
      processes of this run do not share it.
  """
  with contextlib.ExitStack() as stack:
    with distributed.raise_everywhere("lock"):
      if distributed.is_first_process():
        file = stack.enter_context(_acquire(workdir))
        with disk_errors(workdir / files.LOCK):
          file.truncate(0)  # only once this process has the lock
          file.write(secrets.token_hex(4).encode())
    # Otherwise each process would wait forever for files of the others.
    try:
      token = (workdir / files.LOCK).read_text()
    except OSError:
      token = "none"
    distributed.check_same("workdir, a folder that all of them share", token)
    yield


def is_locked(path: pathlib.Path, *, or_shared: bool = False) -> bool:
  """Returns whether a process holds the lock of a file, also a shared one."""
  try:
    with path.open("rb") as file:
      kind = fcntl.LOCK_EX if or_shared else fcntl.LOCK_SH
      fcntl.flock(file, kind | fcntl.LOCK_NB)
  except FileNotFoundError:
    return False
  except BlockingIOError:
    return True
  return False


def read_state(workdir: pathlib.Path, *, ends: bool = False) -> str:
  """Returns whether a run is RUNNING, FINISHED or STOPPED.

  `ends` tells that the run itself asks, which does not run much longer.
  """
  if is_locked(workdir / files.LOCK) and not ends:
    return RUNNING
  return FINISHED if (workdir / files.RESULTS).exists() else STOPPED


def _acquire(workdir: pathlib.Path) -> IO[bytes]:
  """Returns the locked file; closing it releases the lock."""
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    # Without a buffer, which closing the file would try to write again.
    file = (workdir / files.LOCK).open("ab", buffering=0)
  except OSError as e:
    with disk_errors(workdir):
      if e.errno in FULL_DISK:
        raise
    raise InputError(
      f"'{workdir}' cannot be written ({e.strerror}). Choose another folder"
      " with --workdir=FOLDER."
    ) from e
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as e:
    file.close()
    raise InputError(
      f"Another run is using '{workdir}'. Wait for it, stop it, or choose"
      " another folder with --workdir=FOLDER."
    ) from e
  return file
