"""Files and folders that bear their names only once they are complete.

  with atomic_file(workdir / "result.json") as file:
    file.write(json.dumps(result).encode())

A reader, or a run that was killed and started again, meets the old content or
the new one, never a part of it.
"""

import contextlib
import errno
import hashlib
import os
import pathlib
import secrets
import shutil
from collections.abc import Iterator
from typing import BinaryIO

from truenegs_jax.runtime.errors import DiskError


@contextlib.contextmanager
def disk_errors(path: pathlib.Path, *more: type[Exception]) -> Iterator[None]:
  """Turns an OSError into a DiskError that names the file.

  Args:
    more: other exceptions by which a library reports that it cannot write.

  Raises:
    DiskError: instead of these.
  """
  caught: tuple[type[Exception], ...] = (OSError, *more)
  try:
    yield
  except caught as error:
    number, reason = getattr(error, "errno", None), str(error)
    if isinstance(error, OSError):
      reason = error.strerror or reason
    full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    way = "free some space" if full else "fix that, or choose another folder,"
    raise DiskError(
      f"{path} could not be written: {reason}. What was saved before is intact;"
      f" {way} and give the same command again."
    ) from error


@contextlib.contextmanager
def atomic_file(
  path: pathlib.Path, *, several_writers: bool = False
) -> Iterator[BinaryIO]:
  """Opens a file for writing; it gets its name, by a rename, when all is on it.

  After an error, whatever it is, `path` is as it was before. The content is on
  the disk (fsync) before the rename.

  Args:
    several_writers: other processes may write the same file at this time; the
      last one stays. Else it is written as `<name>.tmp`, which a killed process
      may leave behind and the next one overwrites.

  Raises:
    DiskError: it cannot be written; so do OSErrors of the body.
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
    with contextlib.suppress(OSError):  # most often it has its name by now
      temporary.unlink()


@contextlib.contextmanager
def atomic_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a folder to fill, which takes the place of `path` at the end.

  After an error, whatever it is, `path` is as it was before. Whoever fills the
  folder sees to it that its files are on the disk.

  Raises:
    DiskError: the folder cannot be made, or cannot be put there.
  """
  partial = path.with_name(f".{path.name}.partial")
  shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
  try:
    with disk_errors(path):
      partial.mkdir(parents=True)
    yield partial
    with disk_errors(path):
      _replace_folder(path, partial)
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def sync(path: pathlib.Path) -> None:
  """Makes a file, or the names in a folder, survive a loss of power."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def short_sha256(*parts: bytes | str) -> str:
  """The first 16 hex digits of the SHA-256 of the parts, strings as UTF-8."""
  digest = hashlib.sha256()
  for part in parts:
    digest.update(part.encode() if isinstance(part, str) else part)
  return digest.hexdigest()[:16]


def _replace_folder(path: pathlib.Path, new: pathlib.Path) -> None:
  old = path.with_name(f".{path.name}.old")
  shutil.rmtree(old, ignore_errors=True)
  if path.exists():
    path.rename(old)  # no folder can be renamed onto one that holds files
  try:
    new.rename(path)
  except OSError:
    if old.exists():
      old.rename(path)
    raise
  shutil.rmtree(old, ignore_errors=True)
