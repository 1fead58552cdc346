"""Writes the records of a run to a bucket, where nothing is appended.

  WORKDIR/metrics/<owner>-<steps>.jsonl  records after so many steps
  WORKDIR/metrics.jsonl                  at the end of a run, all of them

`files.iterate_records` reads both as one. Each run of a workdir has a number,
the owner, so that none writes to the parts of another.
"""

import pathlib

from truenegs_jax.runtime.files import atomic_file
from truenegs_jax.runtime.uploads import Uploads
from truenegs_jax.workdir import files

FLUSH_SECS = 30.0
PART_BYTES = 2**18  # after which the next part begins


class PartsWriter:
  """Writes records to a bucket, as `files.JsonlWriter` does to a disk."""

  def __init__(self, workdir: pathlib.Path, *, first_step: int, owner: int):
    """Begins a part, which replaces the records of steps after `first_step`."""
    self._workdir, self._owner = workdir, owner
    self._uploads = Uploads(FLUSH_SECS)
    self._step = first_step  # of the newest record
    self._begin_part()

  def write(self, record: files.Record) -> None:
    """Adds one record, with a warning later if the bucket is out of reach."""
    if len(self._lines) >= PART_BYTES:
      self._begin_part()
    self._lines += files.make_line(record)
    self._step = record["step"]
    self._uploads.put({self._part: self._lines})

  def flush(self) -> None:
    """Writes all records now; raises TrueNegsError if it cannot."""
    self._uploads.flush()

  def close(self) -> None:
    """Writes all records, and metrics.jsonl unless another run has taken over.

    Raises:
      DiskError: the bucket lacks records or cannot be reached.
    """
    self._uploads.close()
    names = [path.name for path in self._part.parent.iterdir()]
    if max(names).partition("-")[0] > f"{self._owner:06}":
      return
    lines = [line for line, _ in files.iterate_records(self._workdir)]
    with atomic_file(self._workdir / files.METRICS) as file:
      file.writelines(lines)

  def _begin_part(self) -> None:
    name = f"{self._owner:06}-{self._step:010}.jsonl"
    self._part, self._lines = self._workdir / files.PARTS / name, b""
    self._uploads.put({self._part: b""})
