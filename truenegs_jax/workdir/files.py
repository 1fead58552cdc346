"""Names the files of a workdir, reads its config and compares configs."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from truenegs_jax.config.keys import flatten
from truenegs_jax.config.tables import list_changeable
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.runtime.files import atomic_file

# metrics.jsonl is named in metrics_file.py.
CHECKPOINTS = "checkpoints"  # folder of steps
CONFIG = "config.json"  # with all values resolved
ABOUT = "about.json"  # data and cost of a run, for its report
REPORT = "report.html"
VOCABULARY = "vocab.txt"
SYNONYMS = "synonyms.npz"  # the synonym table
RESULTS = "results.json"  # written at the end of the run
CASES = "cases.json"  # corrections to read
BAD_ROWS = "bad_rows.jsonl"  # rows of skipped updates
EXPORT = "export"  # folder in Hugging Face format
PLOTS = "plots"  # folder of curves
PROFILE = "profile"  # folder of the profiler's trace
TENSORBOARD = "tensorboard"  # folder of TensorBoard's events
WANDB = "wandb"  # folder of Weights & Biases; the name is theirs
LOGGED_ID = "logged_id.txt"  # of the run in W&B
LOCK = "lock"  # locked by the run that uses the workdir
ABSENT = object()  # value of a key that one of two configs does not have


class Change(NamedTuple):
  """An entry that differs between a saved mapping and the current one."""

  key: str  # with dots for nested mappings: "optim.lr"
  saved: Any  # ABSENT if the saved mapping does not have the key
  now: Any  # ABSENT if the current mapping does not have the key

  def __str__(self) -> str:
    saved, now = (
      "(missing)" if x is ABSENT else repr(x) for x in (self.saved, self.now)
    )
    return f"{self.key}: {saved} -> {now}"


def save_json(path: pathlib.Path, value: Any, indent: int | None = 2) -> None:
  """Writes a JSON file atomically."""
  with atomic_file(path) as file:
    file.write((json.dumps(value, indent=indent) + "\n").encode())


def has_checkpoint(workdir: pathlib.Path) -> bool:
  """Returns whether the workdir has a checkpoint to resume from."""
  # The name of an unfinished checkpoint has a suffix.
  return any(p.name.isdigit() for p in (workdir / CHECKPOINTS).glob("*"))


def has_pretraining(workdir: pathlib.Path) -> bool:
  """Returns whether a pre-training has started in this workdir."""
  return (workdir / CHECKPOINTS).exists()


def parse_run_path(
  path: pathlib.Path,
) -> tuple[pathlib.Path, int | None] | None:
  """Splits `WORKDIR` or `WORKDIR/checkpoints[/STEP]` into workdir and step.

  The step is None for the newest. Returns None if the path is not of a run.
  """
  if (path / CHECKPOINTS).is_dir():
    return path, None
  step = int(path.name) if path.name.isdecimal() else None
  folder = path if step is None else path.parent
  if folder.name == CHECKPOINTS and (folder.parent / VOCABULARY).exists():
    return folder.parent, step
  return None


def read_saved_config(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Returns the config of the run to resume, or None without a checkpoint.

  Its `data.vocab` is the copy in the workdir, because the original file may
  have been moved.
  """
  path = workdir / CONFIG
  if not (has_checkpoint(workdir) and path.is_file()):
    return None
  fix = "Restore the file that the run wrote."
  with json_text.read_file(path, CheckpointError, fix) as config:
    config["data"]["vocab"] = str(workdir / VOCABULARY)
  return config


def find_changes(
  saved: Mapping[str, Any], now: Mapping[str, Any]
) -> list[Change]:
  """Returns the entries that differ, sorted by key.

  Values with the same JSON, as a tuple and a list, are equal.
  """
  old, new = flatten(saved), flatten(now)
  entries = [
    Change(key, old.get(key, ABSENT), new.get(key, ABSENT))
    for key in sorted(old.keys() | new.keys())
  ]
  return [x for x in entries if _to_json(x.saved) != _to_json(x.now)]


def find_fixed_changes(
  saved: Mapping[str, Any], now: Mapping[str, Any]
) -> list[Change]:
  """Returns the changes of a config that a resumed run must not have."""
  free = list_changeable(now["task"])
  return [x for x in find_changes(saved, now) if x.key not in free]


def _to_json(value: object) -> str:
  return "" if value is ABSENT else json.dumps(value)
