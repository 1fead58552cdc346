"""The lease of a workdir in a bucket, which has no locks.

The object WORKDIR/lock tells who may write. It is replaced only on condition
that nobody else has replaced it. A run renews it, each RENEW_SECS and around
each save; one that finds another owner's ends. A newcomer that sees no renewal
for TAKEOVER_SECS, by its own clock, takes over. Owners are numbered, and a
number is never used again, so that one that was only paused writes to no file
of its successor (`steps.py`).
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
from typing import Any

from truenegs_jax.runtime.distributed import read_secs
from truenegs_jax.runtime.errors import DiskError, InputError
from truenegs_jax.runtime.files import parse_json

# Environment variable: seconds without a renewal after which a run is dead. A
# newcomer waits at least for those that its predecessor was given.
TAKEOVER_VARIABLE = "TRUENEGS_TAKEOVER_SECS"
TAKEOVER_SECS = 90  # its default; a lease is then renewed each RENEW_SECS
RENEW_SECS = 20


class Lease:
  """The right of this process to write to a workdir.

  That to a local folder, or of a process that is not the first of its run,
  cannot be lost.

  Attributes:
    owner: number of the run among those in this bucket; 0 in a local folder.
    token: differs from those of all other runs.
    error: why the right was lost.
  """

  def __init__(self, owner: int = 0):
    self.owner, self.token = owner, secrets.token_hex(4)
    self.error: DiskError | None = None
    self._path: Any = None
    self._lock, self._ended = threading.Lock(), threading.Event()

  def acquire(self, path: pathlib.Path) -> None:
    """Takes the object `path`, and renews it in a thread until `close`.

    Raises:
      InputError: another run has it, or this user has no right to write there.
    """
    from truenegs_jax.runtime import buckets

    self._path, self._buckets = path, buckets
    self._takeover_secs = read_secs(TAKEOVER_VARIABLE, default=TAKEOVER_SECS)
    self._pause = RENEW_SECS * self._takeover_secs / TAKEOVER_SECS
    self._store = buckets.open_store(buckets.BucketPath(path).parent)
    previous = buckets.repeat(str(path), self._read)
    if previous.get("held") and not _is_dead_process(previous):
      previous = self._wait_for(previous)
    self.owner = previous.get("owner", 0) + 1
    try:
      self._renew()
      self._renew()  # some rights allow to create objects, not to replace them
    except DiskError as error:
      if self.error:
        raise in_use(path.parent) from error
      raise
    self._thread = threading.Thread(target=self._keep, daemon=True)
    self._thread.start()

  def check(self) -> None:
    """Renews the lease.

    Raises:
      DiskError: another run has taken over, or the bucket cannot be reached.
    """
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
        raise in_use(self._path.parent)
    return other

  def _read(self) -> dict[str, Any]:
    """Reads the object, also that of a copied folder; keeps its generation."""
    result = self._store.read(self._path.name).result()
    self._generation = result.stamp.generation
    with contextlib.suppress(ValueError):
      return parse_json(result.value)
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
      "processes": _name_processes(),
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


def in_use(workdir: pathlib.Path) -> InputError:
  """Returns the error of a run whose workdir another one uses."""
  return InputError(
    f"Another run is using '{workdir}'. Wait for it, stop it, or choose another"
    " folder with --workdir=FOLDER."
  )


def _is_dead_process(other: dict[str, Any]) -> bool:
  """Returns whether an owner ran on this machine and has ended."""
  if not other["processes"] or other["processes"] != _name_processes():
    return False
  try:
    os.kill(other["pid"], 0)
  except PermissionError:  # of another user
    return False
  except ProcessLookupError:
    return True
  return False


def _name_processes() -> str:
  """Names this boot and container, for which a pid holds; "" if unknown."""
  try:
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
  except OSError:
    return ""
