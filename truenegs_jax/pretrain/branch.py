"""Branches a run from a step of another one, with its state."""

import pathlib
from collections.abc import Mapping
from typing import Any

from truenegs_jax.config.sections import SIZES, PretrainConfig
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.synonyms import run_table
from truenegs_jax.train import guards
from truenegs_jax.train import step as step_lib
from truenegs_jax.workdir import files, saved_model
from truenegs_jax.workdir.checkpoints import Checkpoints

# Beginnings of the keys that decide the arrays of a state and their meaning.
NETWORKS = (
  *("config.objective", "config.model.backbone", "config.model.variant"),
  *(f"config.model.{name}" for name in SIZES),
  *("config.generator.multiplier", "config.generator.sizes"),
  *("config.model.sharing", "fingerprints.vocabulary"),
)
# Those that decide the size of a table of synonyms in a state.
TABLE = (
  *("config.negatives.sources", "config.negatives.hard_correction"),
  *("config.negatives.smoothing", "config.negatives.discriminator_label"),
)


def copy_branch(
  branch: str,
  checkpoints: Checkpoints,
  description: Mapping[str, Any],
  abstract: step_lib.TrainState,
) -> None:
  """Copies the step of another run that `branch` names, to resume from it."""
  workdir, step = find_branch(branch)
  with saved_model.open_run(workdir) as others:
    if step is None:
      step = others.latest_step() or 0
    steps = description["config"]["steps"]
    if step >= steps:
      raise CheckpointError(
        f"branch='{branch}' is at step {step:,}, and steps={steps:,} counts"
        f" from the start of that run. Set --config.steps above {step}."
      )
    saved = others.read_description(step)
    # An earlier version did not save all keys of today.
    old = PretrainConfig.read(saved["config"])
    changes = files.find_changes(saved | {"config": old.to_json()}, description)
    if old.model.backbone == "modern":  # its positions are rotary
      changes = [x for x in changes if x.key != "config.model.max_positions"]
    decisive = NETWORKS
    if _table_width(saved["config"]) != _table_width(description["config"]):
      decisive = NETWORKS + TABLE
    if changed := [str(x) for x in changes if _decides_arrays(x, decisive)]:
      raise CheckpointError(
        f"The state of '{branch}' has other arrays. Differences"
        f" (saved -> now): {'; '.join(changed)}. Set them to the saved values,"
        " and for other text --config.data.vocab=init."
      )
    state = others.restore_state(step, vars(abstract))
    own = {**saved, **description}
    own.pop(guards.TIME, None)  # its minutes are not those of the branch
    checkpoints.save(step, state, own, wait=True)


def find_branch(branch: str) -> tuple[pathlib.Path, int | None]:
  """Returns workdir and step, None for the newest, that `branch` names."""
  path = open_path("branch", branch)
  return files.parse_run_path(path) or (path, None)


def _table_width(values: Mapping[str, Any]) -> int:
  """Returns how many synonyms a token has in a state's table; 0 for none."""
  config = PretrainConfig.read(values)
  if not config.negatives.needs_table:
    return 0
  model = run_table.make_request(config.negatives, config.data).model
  return model.top if model else 0


def _decides_arrays(change: files.Change, decisive: tuple[str, ...]) -> bool:
  """Returns whether the states of two runs with this change differ."""
  if change.key == "config.optim.muon_lr":
    return not (change.saved and change.now)  # Muon has one moment
  return change.key.startswith(decisive)
