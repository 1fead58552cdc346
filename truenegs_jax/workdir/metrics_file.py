"""Reads and writes metrics.jsonl: one JSON object per line."""

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
  """Appends records to metrics.jsonl."""

  def __init__(self, workdir: pathlib.Path, *, first_step: int):
    """Opens the file and drops the records of steps after `first_step`.

    A killed run wrote them after its last checkpoint; the resumed run repeats
    these steps.
    """
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
    """Closes the file; ignores errors of a full disk."""
    with contextlib.suppress(OSError):
      self._file.close()


def finite_or_null(value: Any) -> Any:
  """Replaces NaN and infinity, which JSON does not have, by None."""
  if isinstance(value, Mapping):
    return {name: finite_or_null(x) for name, x in value.items()}
  if isinstance(value, list | tuple):
    return [finite_or_null(x) for x in value]
  is_finite = not isinstance(value, float) or math.isfinite(value)
  return value if is_finite else None


def read_records(workdir: pathlib.Path) -> list[dict]:
  """Returns the records of metrics.jsonl without incomplete lines."""
  path = workdir / METRICS
  records = []
  for line in path.read_text().splitlines() if path.exists() else []:
    with contextlib.suppress(json.JSONDecodeError):
      records.append(json.loads(line))
  return records
