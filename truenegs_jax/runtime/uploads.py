"""Files that grow during a run, also in a bucket, where nothing is appended.

There they are written to a temporary folder, and to the bucket as whole objects
in a thread, at most every so many seconds. While the bucket is out of reach,
the run goes on.
"""

import contextlib
import pathlib
import time
from collections.abc import Callable
from concurrent import futures

from truenegs_jax.runtime import errors
from truenegs_jax.runtime.paths import is_bucket

UPLOAD_SECS = 60.0


class GrowingFolder:
  """A folder of files to write in `local`, temporary for one in a bucket."""

  def __init__(
    self, folder: pathlib.Path, check: Callable[[], object] = lambda: None
  ):
    """Opens a folder; `check` is called before objects are written."""
    self.local = folder
    self._remote = folder
    self._check = check
    self._due = time.monotonic() + UPLOAD_SECS
    self._written: dict[pathlib.Path, tuple[int, int]] = {}
    self._task: futures.Future[None] | None = None
    self._warned = False
    self._stack = contextlib.ExitStack()
    if is_bucket(folder):
      own = errors.temporary_folder(f"{folder.name}.")
      self.local = self._stack.enter_context(own) / folder.name
      self.local.mkdir()
      self._pool = self._stack.enter_context(futures.ThreadPoolExecutor(1))

  def update(self) -> None:
    """Begins to write changed files to the bucket, if UPLOAD_SECS are over.

    Prints a warning if writing failed; then it is tried again.
    """
    if self.local is self._remote or time.monotonic() < self._due:
      return
    if self._task and not self._task.done():
      return
    error = self._task.exception() if self._task else None
    if error and not self._warned:
      reason = " ".join(str(error.__cause__ or error).split())[:300].rstrip(".")
      print(
        f"warning: '{self._remote}' could not be written: {reason}. The run"
        " goes on, keeps the content on this machine and tries again."
      )
    self._warned = error is not None
    self._due = time.monotonic() + UPLOAD_SECS
    self._task = self._pool.submit(self._write_changed)

  def flush(self) -> None:
    """Writes changed files to the bucket now; raises DiskError if it fails."""
    if self.local is self._remote:
      return
    futures.wait([self._task] if self._task else [])
    self._task = None
    try:
      self._write_changed()
    except errors.InputError as e:  # the right to write was taken away
      raise errors.DiskError(str(e)) from e

  def close(self) -> None:
    """Flushes, also after a failure; nothing is written after that."""
    with self._stack:
      self.flush()

  def _write_changed(self) -> None:
    for file in sorted(self.local.rglob("*")):
      if file.is_file() and not file.is_symlink():
        status = file.stat()
        state = status.st_mtime_ns, status.st_size
        if self._written.get(file) != state:
          path = self._remote / file.relative_to(self.local).as_posix()
          self._check()
          path.write_bytes(file.read_bytes())
          self._written[file] = state
