"""The names in a run's folder, its small files, and how its config changed.

config.json     the resolved config      checkpoints/  see checkpoints.py
vocab.txt       its vocabulary           export/       for Hugging Face
synonyms.npz    its synonym table        plots/        curves
metrics.jsonl   see metrics_file.py      profile/      a profiler's trace
bad_rows.jsonl  of skipped updates       tensorboard/  its events
results.json    of a finished run        lock          see lock.py
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from truenegs_jax.configs import common_keys
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.files import atomic_file

CHECKPOINTS = "checkpoints"
CONFIG = "config.json"
VOCABULARY = "vocab.txt"
SYNONYMS = "synonyms.npz"
RESULTS = "results.json"
BAD_ROWS = "bad_rows.jsonl"
EXPORT = "export"
PLOTS = "plots"
PROFILE = "profile"
TENSORBOARD = "tensorboard"
LOCK = "lock"
ABSENT = object()  # the value of a key that is not there


class Change(NamedTuple):
  """An entry that differs between a saved mapping and the present one."""

  key: str  # of nested mappings with dots: "optim.lr"
  saved: Any  # ABSENT: there is none
  now: Any

  def __str__(self) -> str:
    show = lambda x: "(not there)" if x is ABSENT else repr(x)
    return f"{self.key}: {show(self.saved)} -> {show(self.now)}"


def save_json(
  path: pathlib.Path, value: Any, *, indent: int | None = 2
) -> None:
  """Writes JSON under its final name only once it is whole."""
  with atomic_file(path) as file:
    file.write((json.dumps(value, indent=indent) + "\n").encode())


def has_checkpoint(workdir: pathlib.Path) -> bool:
  """Whether a run would be resumed here."""
  # A step that was not saved to the end has more to its name.
  return any(p.name.isdigit() for p in (workdir / CHECKPOINTS).glob("*"))


def has_pretraining(workdir: pathlib.Path) -> bool:
  """Whether a pre-training has begun here."""
  return (workdir / CHECKPOINTS).exists()


def parse_run_path(
  path: pathlib.Path,
) -> tuple[pathlib.Path, int | None] | None:
  """Workdir and step of a path: `WORKDIR` or `WORKDIR/checkpoints[/STEP]`.

  Step None is the newest; the result is None if it is no path of a run.
  """
  if (path / CHECKPOINTS).is_dir():
    return path, None
  if path.name == CHECKPOINTS and (path.parent / VOCABULARY).exists():
    return path.parent, None
  workdir = path.parent.parent
  if (
    path.name.isdecimal()
    and path.parent.name == CHECKPOINTS
    and (workdir / VOCABULARY).exists()
  ):
    return workdir, int(path.name)
  return None


def read_saved_config(workdir: pathlib.Path) -> dict[str, Any] | None:
  """The config of the run that would be resumed here, if one would be.

  Its vocabulary is the copy that lies there: the first one may be gone.

  Raises:
    CheckpointError: the file is damaged.
  """
  path = workdir / CONFIG
  if not (has_checkpoint(workdir) and path.is_file()):
    return None
  try:
    saved = add_missing_keys(json.loads(path.read_text(encoding="utf-8")))
    saved["data"]["vocab"] = str(workdir / VOCABULARY)
  except (AttributeError, ValueError, KeyError, TypeError) as e:
    raise errors.CheckpointError(
      f"{path} cannot be read: {errors.printable(e)}; put back the one that the"
      " run wrote."
    ) from e
  return saved


def add_missing_keys(config: Mapping[str, Any]) -> dict[str, Any]:
  """A copy of a saved config with the keys that are younger than it."""
  complete = {
    name: dict(value) if isinstance(value, Mapping) else value
    for name, value in config.items()
  }
  for name, key in common_keys.KEYS.items():
    section, _, last = name.rpartition(".")
    if key.old_default is not None and (not section or section in complete):
      values = complete[section] if section else complete
      values.setdefault(last, key.old_default)
  return complete


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """The leaves of nested mappings, their keys joined by dots."""
  leaves: dict[str, Any] = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      leaves |= flatten(value, f"{prefix}{name}.")
    else:
      leaves[f"{prefix}{name}"] = value
  return leaves


def find_changes(
  saved: Mapping[str, Any], now: Mapping[str, Any]
) -> list[Change]:
  """The entries that differ, by their keys in order.

  What JSON cannot tell apart (tuples and lists) counts as equal.
  """
  old, new = flatten(saved), flatten(now)
  entries = [
    Change(key, old.get(key, ABSENT), new.get(key, ABSENT))
    for key in sorted(old.keys() | new.keys())
  ]
  return [x for x in entries if not _equal(x.saved, x.now)]


def _equal(a: Any, b: Any) -> bool:
  if a is ABSENT or b is ABSENT:
    return a is b
  return json.dumps(a) == json.dumps(b)
