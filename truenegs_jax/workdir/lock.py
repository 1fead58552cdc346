"""Locks a workdir so that only one run uses it at a time.

with lock(workdir) as lease:
  checkpoints = Checkpoints(workdir / files.CHECKPOINTS, lease=lease)

WORKDIR/lock has a random token of the run, which is compared around each save,
so that a second writer is noticed wherever the file is. In a local folder, the
system locks the file, and a second run is refused. In a bucket, where nothing
shows whether a run was killed, the last one that starts has the right to write.
"""

import contextlib
import json
import os
import pathlib
import secrets
import socket
from collections.abc import Iterator
from typing import Any

from truenegs_jax.runtime import distributed, files
from truenegs_jax.runtime.errors import DiskError, InputError
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.workdir.files import LOCK, parse_lock


class Lease:
  """The right to write to a workdir.

  Only the first process of a run takes it, and can lose it.
  """

  path: Any = None  # of the file, once it is taken
  error: DiskError | None = None  # why the right was lost

  def __init__(self) -> None:
    self.token = secrets.token_hex(4)  # differs from those of all other runs
    self._stack = contextlib.ExitStack()

  def check(self) -> None:
    """Raises DiskError if the right is lost, or the file out of reach."""
    if self.error is None and self.path is not None:
      saved: dict[str, Any] = {}
      with files.disk_errors(self.path), contextlib.suppress(FileNotFoundError):
        saved = parse_lock(self.path.read_bytes())
      if saved.get("token") != self.token:
        self.error = _lost(self.path.parent, saved)
    if self.error is not None:
      raise self.error

  def acquire(self, path: pathlib.Path) -> None:
    """Takes the file until `close`; InputError if this process may not."""
    if is_bucket(path):
      path.write_bytes(self._make_content(held=True))
      # Some rights allow to create objects, but not to replace them.
      path.write_bytes(self._make_content(held=True))
      self._stack.callback(self._release)
    else:
      self._lock(path)
    self.path = path

  def close(self) -> None:
    """Lets another run begin at once."""
    self._stack.close()

  def _lock(self, path: pathlib.Path) -> None:
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
      raise InputError(
        f"'{path.parent}' cannot be a folder ({e.strerror}). Choose another one"
        " with --workdir=FOLDER."
      ) from e
    with contextlib.ExitStack() as stack:
      file = stack.enter_context(files.lock_file(path))
      if file is None:
        raise InputError(
          f"Another run is using '{path.parent}'. Wait for it, stop it, or"
          " choose another folder with --workdir=FOLDER."
        )
      with files.disk_errors(path):
        file.truncate(0)  # only once this process has the lock
        file.write(self._make_content())
      self._stack = stack.pop_all()

  def _release(self) -> None:
    with contextlib.suppress(Exception):  # the bucket may be out of reach
      self.check()
      self.path.write_bytes(self._make_content(held=False))

  def _make_content(self, **more: bool) -> bytes:
    names = {"host": socket.gethostname(), "pid": os.getpid()}
    return json.dumps({"token": self.token, **names, **more}).encode()


@contextlib.contextmanager
def lock(workdir: pathlib.Path) -> Iterator[Lease]:
  """Creates the workdir and locks it while the context is open.

  The first process of a run takes the lock for all, which must be able to read
  it. Raises InputError if another run uses the workdir, it is not writable, or
  the processes do not share it; DiskError if it is lost at the end.
  """
  path = workdir / LOCK
  lease = Lease()
  with contextlib.ExitStack() as stack:
    with distributed.raise_everywhere("lock"):
      if distributed.is_first_process():
        lease.acquire(path)
        stack.callback(lease.close)
    # Otherwise each process would wait forever for files of the others.
    token = "none"
    with distributed.raise_everywhere("read lock"):
      with contextlib.suppress(OSError):
        token = parse_lock(path.read_bytes()).get("token", token)
    distributed.check_same("workdir, a folder that all of them share", token)
    yield lease
    lease.check()


def _lost(workdir: pathlib.Path, saved: dict[str, Any]) -> DiskError:
  if not saved:
    return DiskError(
      f"'{workdir}' was moved, replaced or removed while the run used it, so it"
      " lacks files. Put back what was moved, and run the same command again."
    )
  name = f"process {saved.get('pid')} of {saved.get('host')}"
  return DiskError(
    f"'{workdir}' was lost. Another run uses it now: {name}. Stop that one, and"
    " run the same command again, or let it go on."
  )
