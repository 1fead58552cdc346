"""Finds the next missing part of a study, which a launcher then runs.

  flags=$(python -m truenegs_jax.main --config=study --workdir=W --next)

On stdout is one line, or nothing: the flags of `truenegs_jax.main` that run the
next missing part, quoted for a shell. A part that was stopped, or that failed,
is printed again with the same flags, which resume it. When all parts have ended
these are the flags of the study itself, which makes its tables, and after that
there are none. Exit codes: 0, also without a line; 75 if what is missing runs
at the moment, or needs what runs; 2 to 5 as for all commands.

It is fast, starts no device and imports no jax. Parts and their folders are
those of `run_parts`, so either can continue what the other began.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from truenegs_jax.config.tables import Study
from truenegs_jax.runtime.errors import BusyError, InputError
from truenegs_jax.runtime.files import atomic_file, disk_errors
from truenegs_jax.study import drive, plan
from truenegs_jax.study.drive import Part, State, States
from truenegs_jax.study.scores import Comparison
from truenegs_jax.workdir import files


def find_next_flags(
  config: Mapping[str, Any], root: pathlib.Path, own_flags: Sequence[str]
) -> Sequence[str]:
  """Returns flags of main: of a part, of the study (`own_flags`), or none.

  Saves the config of the study and that of the part, so that a later call with
  another config is refused.
  """
  study, own, states = open_study(Study.read(config["study"]), root)
  config = save_config(config, root)
  if part := drive.next_part(own, states):
    drive.save_record(part, root / part.key)
    return part.command[len(plan.MAIN) :]
  if running := [x.key for x in own if states[x.key] == State.RUNNING]:
    raise BusyError(
      f"All missing parts run, or need one that runs: {', '.join(running)}."
      " Run the same command again when they have ended."
    )
  saved = drive.read_json(root / files.RESULTS)
  shown = saved.get("parts", {})
  is_current = all(shown.get(x.key) == states[x.key] for x in own)
  return [] if is_current and saved["config"] == config else own_flags


def open_study(
  s: Study, root: pathlib.Path
) -> tuple[Comparison, Sequence[Part], States]:
  """Plans a study and reads what its folder has of it.

  Returns:
    The plan, the parts of this job, and the states of all parts.

  Raises:
    InputError: a value is wrong, or the folder is that of a run.
    CheckpointError: a part was started with another config.
  """
  if files.has_pretraining(root):
    raise InputError(
      f"--workdir='{root}' is the workdir of a run. Choose another, such as"
      " --workdir=runs/study."
    )
  files.check_checkpoint_folder(root / files.CHECKPOINTS)
  study = plan.make_plan(s, root)
  own = plan.select_shard(study.parts, s.shard)
  states = drive.read_states(study.parts, root)
  plan.check_unchanged(study.parts, root)
  return study, own, states


def save_config(config: Mapping[str, Any], root: pathlib.Path) -> dict:
  """Saves and returns the config of a study, the same for all of its jobs."""
  shared = {**config, "study": {**config["study"], "shard": "0/1"}}
  with disk_errors(root):
    root.mkdir(parents=True, exist_ok=True)
  save_text(root / files.CONFIG, f"{json.dumps(shared, indent=2)}\n")
  return shared


def save_text(path: pathlib.Path, text: str) -> None:
  """Writes a file that processes of other jobs may write, too."""
  with atomic_file(path, several_writers=True) as file:
    file.write(text.encode())
