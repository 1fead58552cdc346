"""The file metrics.jsonl of a run: one JSON object a line."""

import contextlib
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from truenegs_jax.runtime.files import atomic_file, disk_errors

Record = Mapping[str, Any]


METRICS = "metrics.jsonl"


class JsonlWriter:
  """One JSON object a line in metrics.jsonl; a resumed run repeats no step."""

  def __init__(self, workdir: pathlib.Path, *, first_step: int):
    """Opens the file and drops the records after `first_step`, which a run
    that was killed had written and this one is going to write again."""
    self._path = workdir / METRICS
    kept = [r for r in read_records(workdir) if r["step"] <= first_step]
    with atomic_file(self._path) as file:
      file.write("".join(json.dumps(r) + "\n" for r in kept).encode())
    with disk_errors(self._path):
      self._file = self._path.open("a")

  def write(self, record: Record) -> None:
    """Appends one record."""
    with disk_errors(self._path):
      self._file.write(json.dumps(finite_or_null(record)) + "\n")
      self._file.flush()

  def close(self) -> None:
    """Closes the file; what a full disk had no room for is let go."""
    with contextlib.suppress(OSError):
      self._file.close()


def finite_or_null(record: Record) -> dict[str, Any]:
  """The record with None for NaN and infinity, which JSON does not know."""
  return {
    name: None if isinstance(x, float) and not math.isfinite(x) else x
    for name, x in record.items()
  }


def read_records(workdir: pathlib.Path) -> list[dict]:
  """The records in metrics.jsonl; a line that a kill cut short is left out."""
  path = workdir / METRICS
  records = []
  for line in path.read_text().splitlines() if path.exists() else []:
    with contextlib.suppress(json.JSONDecodeError):
      records.append(json.loads(line))
  return records
