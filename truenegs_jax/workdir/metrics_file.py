"""Writes and reads metrics.jsonl, the records of a run.

A record is a flat dict of metrics, with `step` and `split`: "train", "held_out"
or "dev".
"""

import contextlib
import io
import json
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from truenegs_jax.runtime import errors, files
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.workdir.files import METRICS, finite_or_null

# Of a record: rises with another name, unit or meaning, not with a new field.
VERSION = 1
COMMON = ("version", "step", "time", "split")  # fields that are no metrics
SPLITS = ("train", "held_out", "dev")
UPLOAD_SECS = 60.0
Record = Mapping[str, Any]
Lines = Iterator[tuple[bytes, dict[str, Any] | None]]  # with their records


class GrowingFolder:
  """A folder of files to write in `local`, temporary for one in a bucket.

  Nothing is appended in a bucket: files are written there as whole objects, at
  most every UPLOAD_SECS. While it is out of reach, the run goes on.
  """

  def __init__(
    self, folder: pathlib.Path, check: Callable[[], object] = lambda: None
  ):
    """Opens a folder; `check` is called before objects are written."""
    self.local = folder
    self._remote = folder
    self._check = check
    self._due = time.monotonic() + UPLOAD_SECS
    self._written: dict[pathlib.Path, tuple[int, int]] = {}
    self._warned = False
    self._stack = contextlib.ExitStack()
    if is_bucket(folder):
      own = errors.temporary_folder(f"{folder.name}.")
      self.local = self._stack.enter_context(own) / folder.name
      self.local.mkdir()

  def update(self) -> None:
    """Writes changed files to the bucket, if UPLOAD_SECS are over.

    Prints a warning if that failed; then it is tried again.
    """
    if self.local is self._remote or time.monotonic() < self._due:
      return
    try:
      self.flush()
      self._warned = False
    except errors.DiskError as error:
      if not self._warned:
        print(
          f"warning: {error} The run goes on, keeps the content on this machine"
          " and tries again."
        )
      self._warned = True
    self._due = time.monotonic() + UPLOAD_SECS

  def flush(self) -> None:
    """Writes changed files to the bucket now; raises DiskError if it fails."""
    if self.local is self._remote:
      return
    for file in sorted(self.local.rglob("*")):
      if file.is_file() and not file.is_symlink():
        status = file.stat()
        state = status.st_mtime_ns, status.st_size
        if self._written.get(file) != state:
          path = self._remote / file.relative_to(self.local).as_posix()
          self._check()
          try:
            path.write_bytes(file.read_bytes())
          except errors.InputError as e:  # the right to write was taken away
            raise errors.DiskError(str(e)) from e
          self._written[file] = state

  def close(self) -> None:
    """Flushes, also after a failure; nothing is written after that."""
    with self._stack:
      self.flush()


class JsonlWriter:
  """Appends records to metrics.jsonl, in a bucket once a minute."""

  def __init__(
    self,
    workdir: pathlib.Path,
    *,
    first_step: int,
    check: Callable[[], object] = lambda: None,
  ):
    """Opens the file and drops the records of steps after `first_step`.

    A killed run wrote them after its last checkpoint; the resumed run repeats
    these steps. Damaged lines are dropped, too. In a bucket, `check` raises
    DiskError once another run writes to the workdir.
    """
    self._folder = GrowingFolder(workdir, check)
    self._path = self._folder.local / METRICS
    kept = [
      line
      for line, record in iterate_records(workdir)
      if record and record["step"] <= first_step
    ]
    with files.atomic_file(self._path) as file:
      file.writelines(kept)
    self._pending = b""  # lines for which the disk had no room
    with files.disk_errors(self._path):
      self._file = files.open_append(self._path)

  def write(self, record: Record) -> None:
    """Appends one record, with a warning later if the disk is full."""
    is_first = not self._pending
    line = json.dumps({"version": VERSION, **finite_or_null(record)})
    self._pending += f"{line}\n".encode()
    try:
      self._flush()
    except OSError as e:
      if is_first:
        print(
          f"warning: '{self._path}' could not be written: {e.strerror}. The run"
          " goes on and keeps the lines in memory. Free some space."
        )
    self._folder.update()

  def close(self) -> None:
    """Closes the file; raises DiskError if it lacks records."""
    with contextlib.closing(self._folder), self._file:
      with files.disk_errors(self._path):
        self._flush()

  def upload(self) -> None:
    """Writes all records to the bucket now; DiskError if that fails."""
    self._folder.flush()

  def _flush(self) -> None:
    while self._pending:
      self._pending = self._pending[self._file.write(self._pending) :]


def read_records(workdir: pathlib.Path) -> list[dict]:
  """Returns the records of metrics.jsonl without damaged lines."""
  return [x for _, x in iterate_records(workdir) if x is not None]


def iterate_records(workdir: pathlib.Path) -> Lines:
  """Yields the lines of metrics.jsonl and their records, None if damaged."""
  path = workdir / METRICS
  if not path.is_file():
    return
  for line in io.BytesIO(path.read_bytes()):
    record = _parse_record(line)
    # The last line may still be written, or a kill may have cut it off.
    if record is not None or (line.strip() and line.endswith(b"\n")):
      yield line.rstrip(b"\n") + b"\n", record


def _parse_record(line: bytes) -> dict[str, Any] | None:
  try:
    record = files.parse_json(line)
  except ValueError:
    return None
  values = [x for name, x in record.items() if name != "split"]
  is_record = all(isinstance(x, int | float | None) for x in values)
  is_record &= type(record.get("step")) is int
  return record if is_record and record.get("split") in SPLITS else None
