"""Writes files as a whole, locks them, and reads JSON that may be damaged.

  with atomic_file(workdir / "result.json") as file:
    file.write(json.dumps(result).encode())

A reader, or a run that is restarted after it was killed, finds the old content
or the new one, never a part of it. The system releases locks however a process
ends; machines that share a file system share its locks, also on NFS.

  with read_json(path, CheckpointError, "Restore the file.") as saved:
    steps = saved["steps"]
"""

import contextlib
import errno
import fcntl
import functools
import glob
import hashlib
import io
import json
import os
import pathlib
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from typing import IO, Any, BinaryIO

from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import FAILING, DiskError, TrueNegsError

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of an OSError
READ_ERRORS = (
  ArithmeticError,
  AttributeError,
  LookupError,
  OSError,
  TypeError,
  ValueError,
)
# Of a file that is read as a whole, each of 16 bytes on average. Parsed, one
# takes up to 200 bytes. LaBSE's vocabulary, the largest known, has 501,153.
MAX_VALUES = 800_000
# Locked while its folder, the temporary one of `atomic_folder`, is in use.
FOLDER_LOCK = "lock"
RETRY_SECS = 0.1  # before a lock is refused
CHECKSUMS = "SHA256SUMS"  # of the other files of a folder, by sha256sum


@contextlib.contextmanager
def disk_errors(path: pathlib.Path, *more: type[Exception]) -> Iterator[None]:
  """Turns OSErrors, and `more` of a library, into DiskErrors with `path`."""
  caught: tuple[type[Exception], ...] = (OSError, *more)
  try:
    yield
  except caught as error:
    reason = str(error)
    fix = "Fix this, or choose another folder"
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

  After any exception, `path` is unchanged. The content is on the disk (fsync)
  before the rename. An OSError of the body becomes a DiskError. The temporary
  file is `<name>.tmp`, so that a process replaces that of a killed one; with
  `several_writers`, each has its own, and the last one wins. In a bucket, the
  content is written at the end.
  """
  if not isinstance(path, pathlib.Path):  # in a bucket
    buffer = io.BytesIO()
    yield buffer
    path.write_bytes(buffer.getvalue())
    return
  temporary = path.with_name(f"{path.name}.tmp")
  if several_writers:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
  try:
    with disk_errors(path):
      temporary.unlink(missing_ok=True)  # it may be a link
      with temporary.open("xb") as file:
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
  its files itself. Of several writers at the same time, the last one wins.
  Between two renames there is no folder; the next call restores the old one if
  a kill comes then. In a bucket, the files are written one by one, CHECKSUMS
  first, so that readers who compare them refuse a part of a folder. Files of an
  earlier folder that have no successor are kept there.
  """
  if not isinstance(path, pathlib.Path):  # in a bucket
    with errors.temporary_folder(f"{path.name}.") as own:
      yield own
      written = [x for x in own.rglob("*") if x.is_file()]
      for file in sorted(written, key=lambda x: (x.name != CHECKSUMS, x)):
        target = path / file.relative_to(own).as_posix()
        target.write_bytes(file.read_bytes())
    return
  with contextlib.ExitStack() as stack:
    with disk_errors(path):
      path.parent.mkdir(parents=True, exist_ok=True)
      _remove_abandoned(path)
      folder = errors.temporary_folder(f".{path.name}.", path.parent)
      own = stack.enter_context(folder)
      new = own / "new"
      stack.enter_context(lock_file(own / "unlocked"))
      (own / "unlocked").rename(own / FOLDER_LOCK)
      new.mkdir()
    yield new
    with disk_errors(path):
      _replace_folder(path, new)


def _remove_abandoned(path: pathlib.Path) -> None:
  """Removes what killed processes left of `atomic_folder`; restores `path`."""
  name = glob.escape(f".{path.name}.")
  for lock in path.parent.glob(f"{name}*/{FOLDER_LOCK}"):
    with contextlib.suppress(OSError, DiskError), lock_file(lock) as locked:
      if locked:
        shutil.rmtree(lock.parent, ignore_errors=True)
  for old in path.parent.glob(f"{name}{'?' * 8}.old"):  # a name of mkdtemp
    if not old.with_suffix("").exists():  # else its process still runs
      with contextlib.suppress(OSError):
        old.rename(path)  # fails if there is a newer one
      shutil.rmtree(old, ignore_errors=True)


def _replace_folder(path: pathlib.Path, new: pathlib.Path) -> None:
  """Renames `new` to `path`, also if other writers do the same."""
  old = path.with_name(f"{new.parent.name}.old")
  while True:
    with contextlib.suppress(FileNotFoundError):
      path.rename(old)  # a rename cannot replace a folder that is not empty
    try:
      new.rename(path)
      return
    except OSError as error:
      with contextlib.suppress(OSError):
        old.rename(path)
      if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
        raise
    finally:
      shutil.rmtree(old, ignore_errors=True)


def remove_folder(path: pathlib.Path) -> None:
  """Removes a folder, if it exists, with all that it holds."""
  if not isinstance(path, pathlib.Path):  # in a bucket
    path.rmtree(missing_ok=True)
  else:
    shutil.rmtree(path, ignore_errors=True)


def open_append(path: pathlib.Path) -> IO[bytes]:
  """Opens a file for appending; OSError for a link, which may lead anywhere."""
  if path.is_symlink() or (path.exists() and not path.is_file()):
    raise OSError(errno.EINVAL, "it is a link or no file")
  # Without a buffer, closing it on a full disk does not fail.
  flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
  return open(os.open(path, flags, 0o666), "ab", buffering=0)


@contextlib.contextmanager
def lock_file(
  path: pathlib.Path, *, wait: bool = False
) -> Iterator[IO[bytes] | None]:
  """Creates and locks a file; yields None if another process has the lock.

  With `wait`, waits until it is released; else tries once more after
  RETRY_SECS, as `is_locked` has the lock for an instant. Raises DiskError for a
  file that cannot be opened.
  """
  with disk_errors(path):
    opened = open_append(path)
  locked: IO[bytes] | None = None
  try:
    with disk_errors(path), contextlib.suppress(BlockingIOError):
      mode = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
      try:
        fcntl.flock(opened, mode)
      except BlockingIOError:
        time.sleep(RETRY_SECS)
        fcntl.flock(opened, mode)
      locked = opened
    yield locked
  finally:
    with contextlib.suppress(OSError):  # a lost file system; the body told it
      opened.close()


def is_locked(path: pathlib.Path) -> bool:
  """Returns whether a process has the lock of a file.

  The file is only read; OSError if this user may not.
  """
  if not path.exists():
    return False
  with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)) as file:
    try:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
      return True
  return False


@contextlib.contextmanager
def lock_folder(folder: pathlib.Path) -> Iterator[None]:
  """Locks a file beside a folder, once other processes have released it."""
  path = folder.with_name(f".{folder.name}.lock")
  with contextlib.ExitStack() as stack:
    with disk_errors(path):
      path.parent.mkdir(parents=True, exist_ok=True)
      if not stack.enter_context(lock_file(path)):
        print(f"Waiting for another process at '{folder}'.", file=sys.stderr)
        stack.enter_context(lock_file(path, wait=True))
    yield


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


@contextlib.contextmanager
def read_json(
  path: pathlib.Path,
  error: type[TrueNegsError],
  fix: str,
  max_values: int = MAX_VALUES,
) -> Iterator[dict[str, Any]]:
  """Yields the JSON object of a file to a body that takes values from it.

  Raises `error`, with a message that ends with `fix`, if the file cannot be
  read, or the body misses a value or finds one of another type.
  """
  try:
    yield parse_json(read_file(path, max_values))
  except TrueNegsError:
    raise
  except READ_ERRORS as e:
    if isinstance(e, OSError) and e.errno in FAILING:
      raise
    message = f"'{path}' cannot be read ({describe_error(e)}). {fix}"
    raise error(errors.printable(message)) from e


# Results hold the answers to all examples.
read_results = functools.partial(read_json, max_values=2**24)


def read_file(path: pathlib.Path, max_values: int = MAX_VALUES) -> bytes:
  """Reads JSON or lines; ValueError for a pipe, or more than `max_values`."""
  if not isinstance(path, pathlib.Path):  # in a bucket
    data = path.read_bytes()
  else:  # without O_NONBLOCK, a pipe would be waited for
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
      if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise ValueError("it is not a file")
      data = file.read(16 * max_values + 1)
  values = max(data.count(b"\n"), sum(map(data.count, (b",", b"[", b"{"))))
  if values > max_values or len(data) > 16 * max_values:
    raise ValueError(f"more than {max_values:,} values of 16 bytes")
  return data


def parse_json(text: bytes | str, *, strict: bool = True) -> Any:
  """Parses a JSON object that may be damaged, or written to do harm.

  `strict` is for JSON of a program, a value that can be written again; other
  JSON is text to learn from, whose values are checked on use. Raises ValueError
  for text that is not UTF-8, no JSON object or nested too deep; if `strict`,
  also for half of a surrogate pair or a number that is not finite.
  """
  try:
    if isinstance(text, bytes):
      text = text.decode("utf-8-sig")
    value = json.loads(text)
  except json.JSONDecodeError as e:
    raise ValueError(f"not JSON: {e}") from e
  except RecursionError as e:
    raise ValueError("nested too deep") from e
  if not isinstance(value, dict):
    raise ValueError(f"{type(value).__name__}, not a JSON object")
  if strict:
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
  return value


def describe_error(error: Exception) -> str:
  """Returns the reason of one of READ_ERRORS in words for users."""
  if isinstance(error, OSError):
    return error.strerror or str(error)
  if isinstance(error, UnicodeDecodeError):
    return f"byte {error.start:,} is not UTF-8"
  if isinstance(error, KeyError):
    return f"it has no {str(error)[:100]}"
  if isinstance(error, TypeError | AttributeError | IndexError):
    return "a value is of another type"
  return str(error)[:300].rstrip(".")
