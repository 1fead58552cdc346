"""The files of a workdir and their names."""

import json
import pathlib
from typing import Any

from truenegs_jax.runtime import errors
from truenegs_jax.runtime.files import disk_errors

SYNONYMS = "synonyms.npz"  # the workdir's copy of its table


def save_json(
  path: pathlib.Path, value: Any, *, indent: int | None = 2
) -> None:
  """Writes JSON under its final name only once it is whole."""
  whole = path.with_suffix(".json.tmp")
  with disk_errors(path):
    whole.write_text(json.dumps(value, indent=indent) + "\n")
    whole.replace(path)


def has_checkpoint(workdir: pathlib.Path) -> bool:
  """Whether a run would be resumed here."""
  # A step that was not saved to the end has more to its name.
  return any(p.name.isdigit() for p in (workdir / "checkpoints").glob("*"))


def saved_config(workdir: pathlib.Path) -> dict[str, Any] | None:
  """The config of the run that would be resumed here, if one would be.

  Its vocabulary is the copy that lies there: the first one may be gone.
  """
  path = workdir / "config.json"
  if not (has_checkpoint(workdir) and path.is_file()):
    return None
  try:
    saved = json.loads(path.read_text(encoding="utf-8"))
    saved["data"]["vocab"] = str(workdir / "vocab.txt")
  except (ValueError, KeyError, TypeError) as e:
    raise errors.CheckpointError(
      f"{path} cannot be read: {errors.printable(e)}; put back the one that the"
      " run wrote."
    ) from e
  return saved
