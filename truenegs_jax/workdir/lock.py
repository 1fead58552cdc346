"""Locks a workdir so that only one run uses it at a time.

with lock(workdir) as lease:
  checkpoints = Checkpoints(workdir / files.CHECKPOINTS, lease=lease)
"""

import contextlib
import os
import pathlib
import secrets
from collections.abc import Iterator

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import DiskError, InputError
from truenegs_jax.runtime.files import disk_errors, lock_file, parse_json
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.workdir import files
from truenegs_jax.workdir.lease import Lease, in_use


def lock(workdir: pathlib.Path) -> contextlib.AbstractContextManager[Lease]:
  """Creates the workdir and locks it while the context is open.

  The first process of a run takes the lock for all processes and writes a
  random token to the lock file, which all of them must be able to read. Yields
  the right to write, which a run can lose in a bucket.

  Raises:
    InputError: another run uses the workdir, it is not writable, or the
      processes of this run do not share it.
    DiskError: at the end another run uses the workdir, or it is another folder
      than at the start.
  """
  lock_workdir = _lease_bucket if is_bucket(workdir) else _lock_folder
  return lock_workdir(workdir)


@contextlib.contextmanager
def _lease_bucket(workdir: pathlib.Path) -> Iterator[Lease]:
  path, lease = workdir / files.LOCK, Lease()
  with distributed.raise_everywhere("lock"):
    if distributed.is_first_process():
      lease.acquire(path)
  with contextlib.closing(lease):
    lease.owner = int(distributed.from_first("owner", str(lease.owner)))
    with distributed.raise_everywhere("read lock"):
      token = parse_json(path.read_bytes())["token"]
    distributed.check_same("workdir, a folder that all of them share", token)
    yield lease
    lease.check()


@contextlib.contextmanager
def _lock_folder(workdir: pathlib.Path) -> Iterator[Lease]:
  path, file = workdir / files.LOCK, None
  with contextlib.ExitStack() as stack:
    with distributed.raise_everywhere("lock"):
      if distributed.is_first_process():
        try:
          workdir.mkdir(parents=True, exist_ok=True)
        except OSError as e:
          raise InputError(
            f"'{workdir}' cannot be written ({e.strerror}). Choose another"
            " folder with --workdir=FOLDER."
          ) from e
        file = stack.enter_context(lock_file(path))
        if file is None:
          raise in_use(workdir)
        with disk_errors(path):
          file.truncate(0)  # only once this process has the lock
          file.write(secrets.token_hex(4).encode())
    # Otherwise each process would wait forever for files of the others.
    try:
      token = path.read_text()
    except OSError:
      token = "none"
    distributed.check_same("workdir, a folder that all of them share", token)
    yield Lease()
    # A moved workdir lets a run go on, and save in a new one.
    if file and not (
      path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))
    ):
      raise DiskError(
        f"'{workdir}' was moved, replaced or removed while the run used it, so"
        " it lacks files. Put back what was moved, and run the same command"
        " again."
      )
