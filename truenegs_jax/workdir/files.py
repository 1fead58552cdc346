"""The files of a workdir: names, state and config."""

import contextlib
import functools
import json
import math
import pathlib
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from truenegs_jax.config.keys import flatten
from truenegs_jax.config.tables import TABLES
from truenegs_jax.runtime import files
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.paths import is_bucket

LOCK = "lock"  # file of a workdir
CHECKPOINTS = "checkpoints"  # folder of steps
CONFIG = "config.json"  # with all values resolved
ABOUT = "about.json"  # data and cost of a run, for its report
REPORT = "report.html"
SYNONYMS = "synonyms.safetensors"  # the synonym table
RESULTS = "results.json"  # written at the end of the run
RESULT = "result.json"  # of a run of a fine-tuning
SEEDS = "*/seed-*"  # the folders of a fine-tuning's runs
CASES = "cases.json"  # corrections to read
FAILED = "failed.json"  # why the process of a part of a study failed
EXPORT = "export"  # folder in Hugging Face format
TENSORBOARD = "tensorboard"  # folder of TensorBoard's events
WANDB = "wandb"  # folder of Weights & Biases; the name is theirs
LOGGED_ID = "logged_id.txt"  # of the run in loggers
METRICS = "metrics.jsonl"  # one JSON object per line
RUNNING = "running"  # states
FINISHED = "finished"
STOPPED = "stopped"
Values = Mapping[str, Any]  # of JSON
# After which time without records a run in a bucket counts as killed.
SILENT_SECS = 600
STEP = re.compile(r"0|[1-9]\d*", re.ASCII)  # name of a step's folder
# A file that Orbax writes to a step's folder once the step is complete. In a
# local folder, the names of unfinished steps have a suffix until then.
COMMITTED = "commit_success.txt"
UNFINISHED = ".orbax-checkpoint-tmp"
WRITTEN = {COMMITTED, "_CHECKPOINT_METADATA", "run", "state"}  # by Orbax there


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


def save_json(
  path: pathlib.Path,
  value: Any,
  indent: int | None = 2,
  *,
  several_writers: bool = False,
) -> None:
  """Writes a JSON file as `atomic_file` does; NaN and infinity as null."""
  text = json.dumps(finite_or_null(value), indent=indent)
  with files.atomic_file(path, several_writers=several_writers) as file:
    file.write(f"{text}\n".encode())


def check_checkpoint_folder(folder: pathlib.Path) -> None:
  """Raises InputError for a bucket that Orbax cannot write to."""
  if str(folder).startswith("s3:"):
    raise InputError(
      f"No checkpoint can be saved in '{folder}': Orbax writes to local folders"
      " and gs:// only. Choose such a folder with --workdir=FOLDER. Rows,"
      " weights and results can be at s3://."
    )


def check_no_run(workdir: pathlib.Path, task: str) -> None:
  """Raises InputError for the workdir of a pre-training, or of another task."""
  try:
    content = files.read_file(workdir / CONFIG)
    saved = files.parse_json(content).get("task", task)
  except files.READ_ERRORS:  # there is none; who needs a damaged one says so
    saved = task
  if saved != task or (workdir / CHECKPOINTS).exists():
    raise InputError(
      f"--workdir='{workdir}' is the workdir of a run, whose results would be"
      " replaced. Choose another, such as --workdir=runs/NAME."
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
    for name in folder.find():  # type: ignore[attr-defined]
      step, _, rest = name.partition("/")
      if STEP.fullmatch(step) and rest.partition("/")[0] in WRITTEN:
        saved[step] = saved.get(step, False) or rest == COMMITTED
    return saved
  for path in folder.glob("*"):
    step, suffix, _ = path.name.partition(UNFINISHED)
    if STEP.fullmatch(step):
      if suffix or any((path / name).exists() for name in WRITTEN):
        saved[path.name] = not suffix
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


def find_changes(saved: Values, now: Values) -> list[Change]:
  """Returns the entries whose JSON differs, sorted by key."""
  old = flatten(saved)
  new = flatten(now)
  keys = sorted(old.keys() | new.keys())
  entries = [Change(x, old.get(x, ABSENT), new.get(x, ABSENT)) for x in keys]
  to_json = functools.partial(json.dumps, default=repr)
  return [x for x in entries if to_json(x.saved) != to_json(x.now)]


def find_fixed_changes(saved: Values, now: Values) -> list[Change]:
  """Returns the changes of a config that a resumed run must not have.

  A key that an earlier version did not save had its default of today.
  """
  table = TABLES.get(now["task"], {})
  new = flatten(now)
  old = {name: key.default for name, key in table.items() if name in new}
  old |= flatten(saved)
  free = {name for name, key in table.items() if key.may_change}
  return [x for x in find_changes(old, new) if x.key not in free]


def read_state(workdir: pathlib.Path, *, ends: bool = False) -> str:
  """Returns whether a run is RUNNING, FINISHED or STOPPED.

  `ends` tells that the run itself asks, which does not run much longer.
  """
  if not ends and is_running(workdir / LOCK):
    return RUNNING
  return FINISHED if (workdir / RESULTS).exists() else STOPPED


def is_running(path: pathlib.Path) -> bool:
  """Returns whether a run has a lock; in a bucket, whether it wrote of late."""
  if not is_bucket(path):
    return files.is_locked(path)
  times = [0]
  with contextlib.suppress(FileNotFoundError):
    if parse_lock(path.read_bytes()).get("held"):
      times.append(path.stat().mtime)  # type: ignore[attr-defined]
      times.append((path.parent / METRICS).stat().mtime)  # type: ignore[attr-defined]
  return time.time() - max(times) < SILENT_SECS


def parse_lock(data: bytes) -> dict[str, Any]:
  """Returns the fields of a lock file, none of one that no run has written."""
  with contextlib.suppress(ValueError):
    return files.parse_json(data)
  return {}


def finite_or_null(value: Any) -> Any:
  """Replaces NaN and infinity, which JSON does not have, by None."""
  if isinstance(value, Mapping):
    return {name: finite_or_null(x) for name, x in value.items()}
  if isinstance(value, list | tuple):
    return [finite_or_null(x) for x in value]
  is_finite = not isinstance(value, float) or math.isfinite(value)
  return value if is_finite else None
