"""Writes files that grow during a run to a bucket, where nothing is appended.

An object is written as a whole again, in a thread, at most every so many
seconds. While the bucket is out of reach, the newest contents wait in memory.
"""

import contextlib
import pathlib
import time
from collections.abc import Callable, Mapping
from concurrent import futures

from truenegs_jax.runtime import errors
from truenegs_jax.runtime.paths import is_bucket

FOLDER_SECS = 60.0
Contents = Mapping[pathlib.Path, bytes]


class Uploads:
  """Objects and the contents to write."""

  def __init__(self, secs: float, check: Callable[[], object] = lambda: None):
    """Makes a thread that begins to write at most every `secs`.

    It calls `check` before, whose TrueNegsError is one of the write.
    """
    self._secs, self._due = secs, time.monotonic() + secs
    self._check = check
    self._contents: dict[pathlib.Path, bytes] = {}  # not known to be written
    self._pool = futures.ThreadPoolExecutor(1)
    self._task: futures.Future[Contents] | None = None
    self._warned = False

  def is_due(self) -> bool:
    """Returns whether `put` begins to write."""
    is_idle = self._task is None or self._task.done()
    return is_idle and time.monotonic() >= self._due

  def put(self, contents: Contents) -> None:
    """Sets the contents of objects; prints a warning if writing failed."""
    self._contents |= contents
    if not self.is_due():
      return
    try:
      self._finish()
      self._warned = False
    except errors.TrueNegsError as e:
      if not self._warned:
        reason = " ".join(str(e.__cause__ or e).split())[:300]
        print(
          f"warning: '{next(iter(self._contents))}' could not be written:"
          f" {reason.rstrip('.')}. The run goes on, keeps the content in memory"
          " and tries again."
        )
      self._warned = True
    self._start()

  def flush(self) -> None:
    """Writes all contents now; raises DiskError if that fails."""
    if self._task and self._task.done() and self._task.exception():
      self._task = None  # is repeated
    try:
      self._finish()
      if self._contents:
        self._start()
        self._finish()
    except errors.InputError as e:  # the right to write was taken away
      raise errors.DiskError(str(e)) from e

  def close(self) -> None:
    """Writes all contents, also after a failure, and ends the thread."""
    with self._pool:
      futures.wait([self._task] if self._task else [])
      self.flush()

  def _start(self) -> None:
    self._due = time.monotonic() + self._secs
    self._task = self._pool.submit(self._write, dict(self._contents))

  def _write(self, contents: Contents) -> Contents:
    self._check()
    for path, content in contents.items():
      path.write_bytes(content)
    return contents

  def _finish(self) -> None:
    """Waits for the thread; forgets what it has written."""
    task, self._task = self._task, None
    for path, content in (task.result() if task else {}).items():
      if self._contents.get(path) is content:
        del self._contents[path]


class GrowingFolder:
  """A folder to which others write: `local`, temporary for one in a bucket."""

  def __init__(self, folder: pathlib.Path):
    self.local, self._remote = folder, folder
    self._written: dict[pathlib.Path, tuple[int, int]] = {}
    self._stack = contextlib.ExitStack()
    self._uploads: Uploads | None = None
    if is_bucket(folder):
      own = errors.temporary_folder(f"{folder.name}.")
      self.local = self._stack.enter_context(own) / folder.name
      self.local.mkdir()
      self._uploads = Uploads(FOLDER_SECS)
      self._stack.callback(self._uploads.close)

  def update(self) -> None:
    """Writes changed files to the bucket, at most every FOLDER_SECS."""
    if self._uploads and self._uploads.is_due():
      self._uploads.put(self._read_changed())

  def close(self) -> None:
    """Writes changed files to the bucket; the others write no more."""
    with self._stack:
      if self._uploads:
        self._uploads.put(self._read_changed())

  def _read_changed(self) -> Contents:
    contents = {}
    for file in sorted(self.local.rglob("*")):
      if file.is_file() and not file.is_symlink():
        stat = file.stat()
        state = stat.st_mtime_ns, stat.st_size
        if self._written.get(file) != state:
          self._written[file] = state
          path = self._remote / file.relative_to(self.local).as_posix()
          contents[path] = file.read_bytes()
    return contents
