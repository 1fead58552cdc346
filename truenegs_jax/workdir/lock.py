"""Locks a workdir so that only one run uses it at a time.

with lock(workdir) as lease:
  checkpoints = Checkpoints(workdir / files.CHECKPOINTS, lease=lease)

A bucket has no locks. There, the object WORKDIR/lock tells who may write. It is
replaced only on condition that nobody else has replaced it. A run renews it,
each RENEW_SECS and around each save; one that finds another owner's ends. A
newcomer that sees no renewal for TAKEOVER_SECS, by its own clock, takes over.
Owners are numbered, and a number is never used again, so that one that was only
paused writes to no file of its successor (`steps.py`).
"""

import contextlib
import json
import os
import pathlib
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from truenegs_jax.runtime import distributed, files
from truenegs_jax.runtime.errors import DiskError, InputError
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.workdir.files import LOCK

# Environment variable: seconds without a renewal after which a run is dead. A
# newcomer waits at least for those that its predecessor was given.
TAKEOVER_VARIABLE = "TRUENEGS_TAKEOVER_SECS"
TAKEOVER_SECS = 90  # its default; a lease is then renewed each RENEW_SECS
RENEW_SECS = 20


class Lease:
  """The right of this process to write to a workdir.

  Only the first process of a run can lose it, and only in a bucket.
  """

  def __init__(self, owner: int = 0):
    self.owner = owner  # number of the run in a bucket; 0 in a local folder
    self.token = secrets.token_hex(4)  # differs from those of all other runs
    self.error: DiskError | None = None  # why the right was lost
    self._path: Any = None
    self._lock, self._ended = threading.Lock(), threading.Event()

  def acquire(self, path: pathlib.Path) -> None:
    """Takes the object `path`, and renews it in a thread until `close`.

    Raises InputError if another run has it, or this user may not write there.
    """
    from truenegs_jax.runtime import buckets

    self._path, self._buckets = path, buckets
    self._takeover_secs = distributed.read_secs(
      TAKEOVER_VARIABLE, default=TAKEOVER_SECS
    )
    self._pause = RENEW_SECS * self._takeover_secs / TAKEOVER_SECS
    self._store = buckets.open_store(buckets.BucketPath(path).parent)
    previous = buckets.repeat(str(path), self._read)
    if previous.get("held"):
      previous = self._wait_for(previous)
    self.owner = previous.get("owner", 0) + 1
    try:
      self._renew()
      self._renew()  # some rights allow to create objects, not to replace them
    except DiskError as error:
      if not self.error:
        raise
      if not self._read():
        no_bucket = FileNotFoundError("there is no such bucket")
        raise buckets.explain(str(path), no_bucket) from error
      raise _in_use(path.parent) from error
    self._thread = threading.Thread(target=self._keep, daemon=True)
    self._thread.start()

  def check(self) -> None:
    """Renews the lease; DiskError if it is lost or the bucket out of reach."""
    if self._path:
      try:
        self._renew()
      except InputError as error:  # of a right that was there at the start
        raise DiskError(str(error)) from error

  def close(self) -> None:
    """Lets another run begin at once, if the bucket can be reached."""
    self._ended.set()
    with contextlib.suppress(Exception):
      if self._path and not self.error:
        self._thread.join()  # it would take the lease again
        with self._lock:
          self._write(held=False)

  def _renew(self) -> None:
    with self._lock:
      self._buckets.repeat(str(self._path), lambda: self._write(held=True))

  def _keep(self) -> None:
    """Renews the lease until it is closed or lost."""
    while not self.error and not self._ended.wait(self._pause):
      with contextlib.suppress(Exception):  # the bucket may be out of reach
        self._renew()

  def _wait_for(self, other: dict[str, Any]) -> dict[str, Any]:
    """Waits until no owner lives, InputError if one does; returns the last."""
    secs = max(self._takeover_secs, other["takeover_secs"])
    print(
      f"'{self._path.parent}' was used by process {other['pid']} of"
      f" {other['host']}, which has not released it. Waiting {secs} s"
      f" ({TAKEOVER_VARIABLE}) for a sign of life.",
      file=sys.stderr,
    )
    generation, end = self._generation, time.monotonic() + secs
    while other.get("held") and (left := end - time.monotonic()) > 0:
      time.sleep(min(left, self._pause / 4))
      other = self._buckets.repeat(str(self._path), self._read)
      if other.get("held") and self._generation != generation:
        raise _in_use(self._path.parent)
    return other

  def _read(self) -> dict[str, Any]:
    """Reads the object, also that of a copied folder; keeps its generation."""
    result = self._store.read(self._path.name).result()
    self._generation = result.stamp.generation
    with contextlib.suppress(ValueError):
      return files.parse_json(result.value)
    return {}

  def _write(self, *, held: bool) -> None:
    """Replaces the object unless it has another owner; then, DiskError."""
    if self.error:
      raise self.error
    value = {
      "owner": self.owner,
      "token": self.token,
      "host": socket.gethostname(),
      "pid": os.getpid(),
      "renewed": time.time(),
      "takeover_secs": self._takeover_secs,
      "held": held,
    }
    data = json.dumps(value).encode()
    while not (
      written := self._store.write(
        self._path.name, data, if_equal=self._generation
      ).result()
    ).generation:
      # The answer to an earlier try of this request may have been lost.
      other = self._read()
      if other.get("token") != self.token:
        self.error = DiskError(
          f"This process was paused, or could not reach '{self._path.parent}',"
          f" for longer than {self._takeover_secs} s. Another run uses it now:"
          f" process {other.get('pid')} of {other.get('host')}. Nothing was"
          " overwritten. If this run is to go on, stop the other and run the"
          " same command again."
        )
        raise self.error
    self._generation = written.generation


def lock(workdir: pathlib.Path) -> contextlib.AbstractContextManager[Lease]:
  """Creates the workdir and locks it while the context is open.

  The first process of a run takes the lock for all processes and writes a
  random token to the lock file, which all of them must be able to read. Yields
  the right to write, which a run can lose in a bucket.

  Raises InputError if another run uses the workdir, it is not writable, or the
  processes of this run do not share it; DiskError if at the end another run
  uses it, or it is another folder than at the start.
  """
  return (_lease_bucket if is_bucket(workdir) else _lock_folder)(workdir)


@contextlib.contextmanager
def _lease_bucket(workdir: pathlib.Path) -> Iterator[Lease]:
  path, lease = workdir / LOCK, Lease()
  with distributed.raise_everywhere("lock"):
    if distributed.is_first_process():
      lease.acquire(path)
  with contextlib.closing(lease):
    lease.owner = int(distributed.from_first("owner", str(lease.owner)))
    with distributed.raise_everywhere("read lock"):
      token = files.parse_json(path.read_bytes())["token"]
    distributed.check_same("workdir, a folder that all of them share", token)
    yield lease
    lease.check()


@contextlib.contextmanager
def _lock_folder(workdir: pathlib.Path) -> Iterator[Lease]:
  path, file = workdir / LOCK, None
  with contextlib.ExitStack() as stack:
    with distributed.raise_everywhere("lock"):
      if distributed.is_first_process():
        try:
          workdir.mkdir(parents=True, exist_ok=True)
        except OSError as e:
          raise InputError(
            f"'{workdir}' cannot be a folder ({e.strerror}). Choose another"
            " one with --workdir=FOLDER."
          ) from e
        file = stack.enter_context(files.lock_file(path))
        if file is None:
          raise _in_use(workdir)
        with files.disk_errors(path):
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


def _in_use(workdir: pathlib.Path) -> InputError:
  return InputError(
    f"Another run is using '{workdir}'. Wait for it, stop it, or choose another"
    " folder with --workdir=FOLDER."
  )
