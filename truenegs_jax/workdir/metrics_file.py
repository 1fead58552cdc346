"""Reads and writes metrics.jsonl: one JSON object per line."""

import json
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.files import atomic_file, disk_errors

Record = Mapping[str, Any]
METRICS = "metrics.jsonl"
# Rises when a field changes its name, unit or meaning, not for a new field.
VERSION = 1
COMMON = ("version", "step", "time", "split")  # fields that are no metrics
SPLITS = ("train", "held_out", "dev")
DAMAGED = "metrics_damaged.jsonl"  # lines that were no records


class JsonlWriter:
  """Appends records to metrics.jsonl."""

  def __init__(self, workdir: pathlib.Path, *, first_step: int):
    """Opens the file and drops the records of steps after `first_step`.

    A killed run wrote them after its last checkpoint; the resumed run repeats
    these steps. Moves damaged lines to DAMAGED, with a warning.
    """
    self._path = workdir / METRICS
    kept, damaged = [], []
    for line, record in _read_lines(workdir):
      if record is None:
        damaged.append(line)
      elif record["step"] <= first_step:
        kept.append(line)
    if damaged:
      path = workdir / DAMAGED
      with disk_errors(path), path.open("ab") as file:
        file.writelines(damaged)
      print(
        f"warning: '{self._path}' had damaged lines ({len(damaged):,}), now in"
        f" {DAMAGED}. Curves and model cards lack them; the model does not."
      )
    with atomic_file(self._path) as file:
      file.writelines(kept)
    self._pending = b""  # lines for which the disk had no room
    with disk_errors(self._path):
      self._file = self._path.open("ab", buffering=0)

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

  def close(self) -> None:
    """Closes the file; raises DiskError if it lacks records."""
    with self._file, disk_errors(self._path):
      self._flush()

  def _flush(self) -> None:
    while self._pending:
      self._pending = self._pending[self._file.write(self._pending) :]


def finite_or_null(value: Any) -> Any:
  """Replaces NaN and infinity, which JSON does not have, by None."""
  if isinstance(value, Mapping):
    return {name: finite_or_null(x) for name, x in value.items()}
  if isinstance(value, list | tuple):
    return [finite_or_null(x) for x in value]
  is_finite = not isinstance(value, float) or math.isfinite(value)
  return value if is_finite else None


def read_records(workdir: pathlib.Path) -> list[dict]:
  """Returns the records of metrics.jsonl without damaged lines."""
  return [record for record in iterate_records(workdir) if record is not None]


def iterate_records(workdir: pathlib.Path) -> Iterator[dict[str, Any] | None]:
  """Yields each record of metrics.jsonl, None for a damaged line."""
  return (record for _, record in _read_lines(workdir))


def _read_lines(
  workdir: pathlib.Path,
) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
  """Yields the lines of metrics.jsonl, and their records."""
  path = workdir / METRICS
  if not path.exists():
    return
  with path.open("rb") as file:
    for line in file:
      record = _parse_record(line)
      # The last line may still be written, or a kill may have cut it off.
      if record is not None or (line.strip() and line.endswith(b"\n")):
        yield line.rstrip(b"\n") + b"\n", record


def _parse_record(line: bytes) -> dict[str, Any] | None:
  """Returns the record of a line, or None if it is damaged."""
  try:
    record = json_text.parse(line)
  except ValueError:
    return None
  values = [x for name, x in record.items() if name != "split"]
  is_record = (
    type(record.get("step")) is int
    and record.get("split") in SPLITS
    and all(isinstance(x, int | float | None) for x in values)
  )
  return record if is_record else None
