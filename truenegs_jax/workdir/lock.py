"""Locks a workdir so that only one run uses it at a time.

with lock(workdir) as lease:
  checkpoints = Checkpoints(workdir / files.CHECKPOINTS, lease=lease)

WORKDIR/lock has a random token of the run, which is compared around each save,
so that a second writer is noticed wherever the file is. In a local folder, the
system locks the file. In a bucket, the object is replaced only if nobody else
has done so, and a run renews it; a newcomer that sees no renewal for
TAKEOVER_SECS, by its own clock, takes over.
"""

import contextlib
import functools
import json
import os
import pathlib
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

from truenegs_jax.runtime import distributed, files
from truenegs_jax.runtime.errors import DiskError, InputError
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.workdir.files import LOCK, parse_lock

# Environment variable: seconds without a renewal after which a run is dead. A
# newcomer waits at least for those that its predecessor was given.
TAKEOVER_VARIABLE = "TRUENEGS_TAKEOVER_SECS"
TAKEOVER_SECS = 90  # its default
RENEW_SECS = 20  # with this default


class Lease:
  """The right to write to a workdir in a local folder, whose file is locked.

  Only the first process of a run takes it, and can lose it.
  """

  path: Any = None  # of the file, once it is taken
  error: DiskError | None = None  # why the right was lost

  def __init__(self) -> None:
    self.token = secrets.token_hex(4)  # differs from those of all other runs

  def check(self) -> None:
    """Raises DiskError if the right is lost, or the file out of reach."""
    if self.error is None and self.path is not None:
      saved = self._read()
      if saved.get("token") != self.token:
        self.error = _lost(self.path.parent, saved)
    if self.error is not None:
      raise self.error

  def _make_content(self, **more: Any) -> bytes:
    names = {"host": socket.gethostname(), "pid": os.getpid()}
    return json.dumps({"token": self.token, **names, **more}).encode()

  def acquire(self, path: pathlib.Path) -> None:
    """Takes the file until `close`; InputError if another run has it."""
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
        raise _in_use(path.parent)
      with files.disk_errors(path):
        file.truncate(0)  # only once this process has the lock
        file.write(self._make_content())
      self.path = path
      self._file: IO[bytes] = file
      self._stack = stack.pop_all()

  def close(self) -> None:
    """Lets another run begin at once."""
    self._stack.close()

  def _read(self) -> dict[str, Any]:
    """Returns the content of the file that was taken, if it is still there."""
    with files.disk_errors(self.path), contextlib.suppress(FileNotFoundError):
      if os.path.samestat(self.path.stat(), os.fstat(self._file.fileno())):
        return parse_lock(self.path.read_bytes())
    return {}


class BucketLease(Lease):
  """That of a workdir in a bucket, whose object a thread renews."""

  def acquire(self, path: pathlib.Path) -> None:
    """Takes the object until `close`; InputError if this process may not."""
    from truenegs_jax.runtime import buckets

    self.path = path
    self._explain = functools.partial(buckets.explain_errors, str(path))
    self._object = buckets.open_object(buckets.BucketPath(path))
    self._ended = threading.Event()
    self._takeover_secs = distributed.read_secs(
      TAKEOVER_VARIABLE, default=TAKEOVER_SECS
    )
    self._pause = RENEW_SECS * self._takeover_secs / TAKEOVER_SECS
    self._wait_for_previous()
    try:
      self._write()
      self._write()  # some rights allow to create objects, not to replace them
    except DiskError as e:
      if self.error is None:
        raise
      if not self._read():
        raise buckets.explain(str(path), FileNotFoundError("no bucket")) from e
      raise _in_use(path.parent) from e
    self._thread = threading.Thread(target=self._keep, daemon=True)
    self._thread.start()

  def close(self) -> None:
    """Lets another run begin at once, if the bucket can be reached."""
    self._ended.set()
    self._thread.join()  # it would take the lease again
    if not self.error:
      with contextlib.suppress(Exception):
        self._write(held=False)

  def _keep(self) -> None:
    """Renews the lease until it is closed or lost."""
    while not self.error and not self._ended.wait(self._pause):
      with contextlib.suppress(Exception):  # the bucket may be out of reach
        self._write()

  def _wait_for_previous(self) -> None:
    """Waits until no owner lives; InputError if one does."""
    other = self._read()
    first = self._generation
    secs = max(self._takeover_secs, other.get("takeover_secs", 0))
    end = time.monotonic() + secs
    if other.get("held"):
      text = f"Waiting {secs} s for a sign of life ({TAKEOVER_VARIABLE})."
      where = f"'{self.path.parent}' was not released by {_name(other)}."
      print(where, text, file=sys.stderr)
    while other.get("held") and time.monotonic() < end:
      time.sleep(self._pause / 4)
      other = self._read()
      if other.get("held") and self._generation != first:
        raise _in_use(self.path.parent)

  def _read(self) -> dict[str, Any]:
    with self._explain():
      read = self._object.read("").result()
    self._generation = read.stamp.generation
    return parse_lock(read.value)

  def _write(self, *, held: bool = True) -> None:
    """Replaces the object; DiskError if it has another owner."""
    limits = {"renewed": time.time(), "takeover_secs": self._takeover_secs}
    data = self._make_content(held=held, **limits)
    generation = None
    while not generation:
      with self._explain():
        write = self._object.write("", data, if_equal=self._generation)
        generation = write.result().generation
      if not generation:  # the answer to an earlier try may have been lost
        self.check()
    self._generation = generation


@contextlib.contextmanager
def lock(workdir: pathlib.Path) -> Iterator[Lease]:
  """Creates the workdir and locks it while the context is open.

  The first process of a run takes the lock for all, which must be able to read
  it. Raises InputError if another run uses the workdir, it is not writable, or
  the processes do not share it; DiskError if it is lost at the end.
  """
  path = workdir / LOCK
  lease = BucketLease() if is_bucket(path) else Lease()
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


def _in_use(workdir: pathlib.Path) -> InputError:
  return InputError(
    f"Another run is using '{workdir}'. Wait for it, stop it, or choose another"
    " folder with --workdir=FOLDER."
  )


def _lost(workdir: pathlib.Path, saved: dict[str, Any]) -> DiskError:
  if not saved:
    return DiskError(
      f"'{workdir}' was moved, replaced or removed while the run used it, so it"
      " lacks files. Put back what was moved, and run the same command again."
    )
  return DiskError(
    f"'{workdir}' was lost, because this run was paused or cut off for long, or"
    f" locks are not shared there. Another run uses it now: {_name(saved)}."
    " Stop it, and run the same command again, or let it go on."
  )


def _name(saved: dict[str, Any]) -> str:
  return f"process {saved.get('pid')} of {saved.get('host')}"
