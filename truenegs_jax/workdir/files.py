"""The files of a workdir: names, state, config and metrics.jsonl."""

import collections
import contextlib
import functools
import io
import json
import math
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple

from truenegs_jax.config.keys import flatten
from truenegs_jax.config.tables import TABLES
from truenegs_jax.runtime import files
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.runtime.uploads import GrowingFolder

LOCK = "lock"  # file of a workdir
CHECKPOINTS = "checkpoints"  # folder of steps
CONFIG = "config.json"  # with all values resolved
ABOUT = "about.json"  # data and cost of a run, for its report
REPORT = "report.html"
SYNONYMS = "synonyms.safetensors"  # the synonym table
RESULTS = "results.json"  # written at the end of the run
CASES = "cases.json"  # corrections to read
BAD_ROWS = "bad_rows.jsonl"  # rows of skipped updates
EXPORT = "export"  # folder in Hugging Face format
PROFILE = "profile"  # folder of the profiler's trace
TENSORBOARD = "tensorboard"  # folder of TensorBoard's events
WANDB = "wandb"  # folder of Weights & Biases; the name is theirs
LOGGED_ID = "logged_id.txt"  # of the run in W&B
METRICS = "metrics.jsonl"  # one JSON object per line
DAMAGED = "metrics_damaged.jsonl"  # lines that were no records
RUNNING = "running"  # states
FINISHED = "finished"
STOPPED = "stopped"
REMOVED = b"{}\n"  # content of results in a bucket that are out of date
# Of a record: rises with another name, unit or meaning, not with a new field.
VERSION = 1
COMMON = ("version", "step", "time", "split")  # fields that are no metrics
SPLITS = ("train", "held_out", "dev")
Values = Mapping[str, Any]  # of JSON
Record = Values
Lines = Iterator[tuple[bytes, dict[str, Any] | None]]  # with their records
STEP = re.compile(r"0|[1-9]\d*", re.ASCII)  # name of a step's folder
# A file that Orbax writes to a step's folder once the step is complete. In a
# local folder, the names of unfinished steps have a suffix until then.
COMMITTED = "commit_success.txt"
UNFINISHED = ".orbax-checkpoint-tmp"
WRITTEN = {COMMITTED, "_CHECKPOINT_METADATA", "run", "state"}  # by Orbax there
# Paths that Orbax expands, TensorStore changes, or both take for a bucket.
UNSAVABLE = re.compile(r"[*?\\]|\[[^/]+]|gs:/|^/(az|gs|hf|s3)/")


class Absent:
  """The value of a key that one of two mappings does not have."""

  def __repr__(self) -> str:
    return "(missing)"


ABSENT = Absent()


class Change(NamedTuple):
  """An entry that differs between a saved mapping and the current one."""

  key: str  # with dots for nested mappings: "optim.lr"
  saved: Any
  now: Any

  def __str__(self) -> str:
    return f"{self.key}: {self.saved!r} -> {self.now!r}"


def save_json(path: pathlib.Path, value: Any, indent: int | None = 2) -> None:
  """Writes a JSON file atomically."""
  with files.atomic_file(path) as file:
    file.write((json.dumps(value, indent=indent) + "\n").encode())


def check_checkpoint_folder(folder: pathlib.Path) -> None:
  """Raises InputError if Orbax cannot save in a folder with such a path."""
  path = str(folder) if is_bucket(folder) else os.path.realpath(folder)
  if path.startswith("s3:"):
    raise InputError(
      f"No checkpoint can be saved in '{path}': Orbax writes to local folders"
      " and gs:// only. Choose such a folder with --workdir=FOLDER. Rows,"
      " weights and results can be at s3://."
    )
  if match := UNSAVABLE.search(f"{path.removeprefix('gs:/')}/"):
    raise InputError(
      f"No checkpoint can be saved in '{path}' because of {match[0]!r}: Orbax"
      " and TensorStore take it for a pattern, another folder or a bucket."
      " Choose another folder with --workdir=FOLDER, or rename this one."
    )


def has_checkpoint(workdir: pathlib.Path) -> bool:
  """Returns whether the workdir has a checkpoint to resume from."""
  return bool(list_steps(workdir / CHECKPOINTS))


def list_steps(folder: pathlib.Path) -> list[int]:
  """Returns the finished steps in a folder of checkpoints, ascending."""
  saved = list_saved(folder)
  return sorted(int(name) for name, is_finished in saved.items() if is_finished)


def list_saved(folder: pathlib.Path) -> dict[str, bool]:
  """Returns the folders that Orbax has written, and whether they are finished.

  A folder of a user such as `2026` or `30_1` is none of them: it is no step,
  and nothing removes it. A bucket is asked once.
  """
  saved: dict[str, bool] = {}
  if is_bucket(folder):
    contents = collections.defaultdict[str, set[str]](set)
    for name in folder.find():  # type: ignore[attr-defined]
      first, _, rest = name.partition("/")
      contents[first].add(rest.partition("/")[0])
    for first, names in contents.items():
      if STEP.fullmatch(first) and names & WRITTEN:
        saved[first] = COMMITTED in names
    return saved
  for path in folder.glob("*"):
    step, suffix, _ = path.name.partition(UNFINISHED)
    if STEP.fullmatch(step) and suffix:
      saved[path.name] = False
    elif STEP.fullmatch(path.name):
      if any((path / name).exists() for name in WRITTEN):
        saved[path.name] = True
  return saved


def vocabulary_path(workdir: pathlib.Path) -> pathlib.Path:
  """Returns the path of a run's tokenizer.json, or else of its vocab.txt."""
  path = workdir / "tokenizer.json"
  return path if path.exists() else workdir / "vocab.txt"


def parse_run_path(
  path: pathlib.Path,
) -> tuple[pathlib.Path, int | None] | None:
  """Splits `WORKDIR` or `WORKDIR/checkpoints[/STEP]` into workdir and step.

  The step is None for the newest. Returns None if the path is not of a run.
  """
  if (path / CHECKPOINTS).is_dir():
    return path, None
  step = int(path.name) if STEP.fullmatch(path.name) else None
  folder = path if step is None else path.parent
  if folder.name == CHECKPOINTS and vocabulary_path(folder.parent).exists():
    return folder.parent, step
  return None


def read_saved_config(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Returns the config of the run to resume, or None without a checkpoint.

  Its `data.vocab` is the copy in the workdir.
  """
  path = workdir / CONFIG
  if not (has_checkpoint(workdir) and path.is_file()):
    return None
  fix = "Restore the file that the run wrote."
  with files.read_json(path, CheckpointError, fix) as config:
    config["data"]["vocab"] = str(vocabulary_path(workdir))
    values = flatten(config)
    for name, key in TABLES["pretrain"].items():
      value = values[name]
      try:
        key.check_type(name, tuple(value) if type(value) is list else value)
      except InputError as e:
        raise CheckpointError(f"'{path}' cannot be read ({e}) {fix}") from e
  return config


def find_changes(saved: Values, now: Values) -> list[Change]:
  """Returns the entries whose JSON differs, sorted by key."""
  old = flatten(saved)
  new = flatten(now)
  keys = sorted(old.keys() | new.keys())
  entries = [Change(x, old.get(x, ABSENT), new.get(x, ABSENT)) for x in keys]
  to_json = functools.partial(json.dumps, default=repr)
  return [x for x in entries if to_json(x.saved) != to_json(x.now)]


def find_fixed_changes(saved: Values, now: Values) -> list[Change]:
  """Returns the changes of a config that a resumed run must not have."""
  table = TABLES.get(now["task"], {})
  free = {name for name, key in table.items() if key.may_change}
  return [x for x in find_changes(saved, now) if x.key not in free]


def read_state(workdir: pathlib.Path, *, ends: bool = False) -> str:
  """Returns whether a run is RUNNING, FINISHED or STOPPED.

  `ends` tells that the run itself asks, which does not run much longer.
  """
  if not ends and is_running(workdir / LOCK):
    return RUNNING
  return FINISHED if _has_results(workdir / RESULTS) else STOPPED


def is_running(path: pathlib.Path) -> bool:
  """Returns whether a run has a lock, or has renewed its lease in time."""
  if not is_bucket(path):
    return files.is_locked(path)
  with contextlib.suppress(FileNotFoundError):
    lease = parse_lock(path.read_bytes())
    if lease.get("held"):  # not released, and not of a copied local folder
      return time.time() - lease["renewed"] < lease["takeover_secs"]
  return False


def parse_lock(data: bytes) -> dict[str, Any]:
  """Returns the fields of a lock file, none of one that no run has written."""
  with contextlib.suppress(ValueError):
    return files.parse_json(data)
  return {}


def _has_results(path: Any) -> bool:
  if not is_bucket(path):
    return path.exists()
  with contextlib.suppress(FileNotFoundError):
    return path.stat().length > len(REMOVED)
  return False


def remove_outdated(path: pathlib.Path) -> None:
  """Removes JSON that is out of date; in a bucket, it becomes empty."""
  if not is_bucket(path):
    with files.disk_errors(path):
      path.unlink(missing_ok=True)
  elif path.exists():
    path.write_bytes(REMOVED)


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
    these steps. Moves damaged lines to DAMAGED, with a warning. In a bucket,
    `check` raises DiskError once another run writes to the workdir.
    """
    self._folder = GrowingFolder(workdir, check)
    self._path = self._folder.local / METRICS
    kept = []
    damaged = []
    for line, record in iterate_records(workdir):
      if record is None:
        damaged.append(line)
      elif record["step"] <= first_step:
        kept.append(line)
    if damaged:
      files.append(workdir / DAMAGED, b"".join(damaged))
      print(
        f"warning: '{workdir / METRICS}' had damaged lines ({len(damaged):,}),"
        f" now in {DAMAGED}. Curves and model cards lack them; the model does"
        " not."
      )
    with files.atomic_file(self._path) as file:
      file.writelines(kept)
    self._pending = b""  # lines for which the disk had no room
    with files.disk_errors(self._path):
      self._file = files.open_append(self._path)

  def write(self, record: Record) -> None:
    """Appends one record, with a warning later if the disk is full."""
    is_first = not self._pending
    self._pending += make_line(record)
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


def make_line(record: Record) -> bytes:
  """Returns the line of a record."""
  line = json.dumps({"version": VERSION, **finite_or_null(record)})
  return f"{line}\n".encode()


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
  return [x for _, x in iterate_records(workdir) if x is not None]


def list_recorded(workdir: pathlib.Path, pattern: str) -> list[pathlib.Path]:
  """Returns the folders in `pattern` that have records, sorted."""
  return sorted(path.parent for path in workdir.glob(f"{pattern}/{METRICS}"))


def iterate_records(workdir: pathlib.Path) -> Lines:
  """Yields the lines of metrics.jsonl and their records, None if damaged."""
  path = workdir / METRICS
  if not path.is_file():
    return
  with _open_lines(path) as lines:
    for line in lines:
      record = _parse_record(line)
      # The last line may still be written, or a kill may have cut it off.
      if record is not None or (line.strip() and line.endswith(b"\n")):
        yield line.rstrip(b"\n") + b"\n", record


def _open_lines(path: pathlib.Path) -> IO[bytes]:
  return io.BytesIO(path.read_bytes()) if is_bucket(path) else path.open("rb")


def _parse_record(line: bytes) -> dict[str, Any] | None:
  try:
    record = files.parse_json(line)
  except ValueError:
    return None
  values = [x for name, x in record.items() if name != "split"]
  is_record = all(isinstance(x, int | float | None) for x in values)
  is_record &= type(record.get("step")) is int
  return record if is_record and record.get("split") in SPLITS else None
