"""Goes on from a checkpoint of another run, in a workdir of its own."""

import pathlib
from collections.abc import Mapping
from typing import Any

from truenegs_jax.config.sections import SIZES
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.train.step import TrainState
from truenegs_jax.workdir import files, saved_model
from truenegs_jax.workdir.checkpoints import Checkpoints

# Beginnings of the keys that decide the arrays of a state and their meaning.
NETWORKS = (
  *("config.objective", "config.model.backbone", "config.model.variant"),
  *(f"config.model.{name}" for name in SIZES),
  *("config.model.sharing", "config.generator.", "fingerprints.vocabulary"),
)


def read_config(workdir: pathlib.Path, branch: str) -> dict[str, Any] | None:
  """Returns the config of the run to resume, or else of that to branch from."""
  saved = saved_model.read_config(workdir)
  if branch and saved is None:
    saved = saved_model.read_config(find(branch)[0])
  return saved


def find(branch: str) -> tuple[pathlib.Path, int | None]:
  """Returns workdir and step, None for the newest, that `branch` names."""
  path = open_path("branch", branch)
  return files.parse_run_path(path) or (path, None)


def copy(
  branch: str,
  checkpoints: Checkpoints,
  description: Mapping[str, Any],
  abstract: TrainState,
) -> None:
  """Copies the step of another run that `branch` names, to resume from it."""
  workdir, step = find(branch)
  with saved_model.open_run(workdir) as others:
    step = step or others.latest_step() or 0
    saved = others.read_description(step)
    changes = files.find_changes(saved, description)
    if changed := [str(x) for x in changes if x.key.startswith(NETWORKS)]:
      raise CheckpointError(
        f"The state of '{branch}' is of other networks. Differences"
        f" (saved -> now): {'; '.join(changed)}. Set them to the saved values,"
        " and for other text --config.data.vocab=init."
      )
    state = others.restore_state(step, vars(abstract))
    checkpoints.save(step, state, {**saved, **description}, wait=True)
