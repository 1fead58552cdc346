"""Writes files and folders that appear under their names once complete.

  with atomic_file(workdir / "result.json") as file:
    file.write(json.dumps(result).encode())

A reader, or a run that is restarted after it was killed, finds the old content
or the new one, never a part of it.
"""

import contextlib
import errno
import hashlib
import os
import pathlib
import re
import secrets
import shutil
from collections.abc import Iterator
from typing import BinaryIO

from truenegs_jax.runtime.errors import DiskError, InputError

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of an OSError


def check_local(name: str, path: str | os.PathLike[str]) -> None:
  """Raises InputError if the value `path` of a flag or key is a URL.

  As a path it would be a local folder such as `gs:`.
  """
  if re.match(r"[a-z][a-z\d+.-]+:/", str(path), re.IGNORECASE):
    raise InputError(
      f"{name}='{path}' is a URL, but only local files can be written. Use a"
      " local folder, or mount the storage (gs:// with gcsfuse, for example)"
      " and use the folder of the mount."
    )


@contextlib.contextmanager
def disk_errors(path: pathlib.Path, *more: type[Exception]) -> Iterator[None]:
  """Turns OSErrors of the body into DiskErrors that name `path`.

  `more` are other exceptions by which a library reports that it cannot write.
  """
  caught: tuple[type[Exception], ...] = (OSError, *more)
  try:
    yield
  except caught as error:
    reason, fix = str(error), "Fix this, or choose another folder"
    if isinstance(error, OSError):
      reason = error.strerror or reason
      if error.errno in FULL_DISK:
        fix = "Free some space"
    raise DiskError(
      f"'{path}' could not be written: {reason}. All that was saved before is"
      f" intact. {fix}, and run the same command again."
    ) from error


@contextlib.contextmanager
def atomic_file(
  path: pathlib.Path, *, several_writers: bool = False
) -> Iterator[BinaryIO]:
  """Opens a temporary file for writing and renames it to `path` at the end.

  After any exception, `path` is as it was before. The content is on the disk
  (fsync) before the rename.

  Args:
    path: the final name.
    several_writers: whether other processes may write the same file at the same
      time; the last one wins. Otherwise the temporary file is `<name>.tmp`,
      which a killed process may leave behind and the next one overwrites.

  Raises:
    DiskError: it cannot be written, or the body raised an OSError.
  """
  temporary = path.with_name(f"{path.name}.tmp")
  if several_writers:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
  try:
    with disk_errors(path):
      with temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
      temporary.replace(path)
  finally:
    with contextlib.suppress(OSError):  # already renamed unless it failed
      temporary.unlink()


@contextlib.contextmanager
def atomic_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary folder to fill and renames it to `path` at the end.

  After any exception, `path` is as it was before. The body must call fsync on
  its files itself.

  Raises:
    DiskError: the folder cannot be created or renamed.
  """
  partial = path.with_name(f".{path.name}.partial")
  shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
  try:
    with disk_errors(path):
      partial.mkdir(parents=True)
    yield partial
    with disk_errors(path):
      _replace_folder(path, partial)
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def sync(path: pathlib.Path) -> None:
  """Makes a file, or the names in a folder, survive a power failure."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def short_sha256(*parts: bytes | str) -> str:
  """Returns 16 hex digits of the SHA-256 of the parts, strings as UTF-8."""
  digest = hashlib.sha256()
  for part in parts:
    digest.update(part.encode() if isinstance(part, str) else part)
  return digest.hexdigest()[:16]


def _replace_folder(path: pathlib.Path, new: pathlib.Path) -> None:
  old = path.with_name(f".{path.name}.old")
  shutil.rmtree(old, ignore_errors=True)
  if path.exists():
    path.rename(old)  # a rename cannot replace a folder that is not empty
  try:
    new.rename(path)
  except OSError:
    if old.exists():
      old.rename(path)
    raise
  shutil.rmtree(old, ignore_errors=True)
