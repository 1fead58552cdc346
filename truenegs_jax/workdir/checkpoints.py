"""Saves and restores the state of a run with Orbax.

  <folder>/<step>/state   the arrays         <folder>/<step>/run   JSON

A save is asynchronous and atomic: a step's folder gets its final name when all
of its files are written. No other module imports Orbax.
"""

import contextlib
import logging
import os
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import CheckpointError, DiskError
from truenegs_jax.runtime.files import FULL_DISK

FIX_DAMAGED = "Move this folder away to continue from an earlier step."


UNFINISHED = ".orbax-checkpoint-tmp"  # in the names of folders
# Log records that tell users nothing they could act on, and those of a failed
# save, which is also raised: Orbax logs some hundred lines for each.
NOTICES = (
  "directory is read only",
  "Waiting for previous save to complete",
  "Failed to run",
  "Failed to write metadata",
  "_SignalingThread.run() raised an exception",
  "Save Finalize thread",
  "Attempted to create temporary directory",
  "exception was never retrieved",
)
CLOSED = "Event loop is closed"  # an error in threads of a failed save


def _is_no_notice(record: logging.LogRecord) -> bool:
  return not any(notice in record.getMessage() for notice in NOTICES)


def _print_unraisable(info: Any) -> None:
  """Prints an error in a thread, as `sys.unraisablehook`, but not CLOSED."""
  if str(info.exc_value) != CLOSED:
    sys.__unraisablehook__(info)


class Checkpoints:
  """The checkpoints of one run."""

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    keep: int = 2,
    keep_steps: Sequence[int] = (),
    read_only: bool = False,
  ):
    """Opens the folder; creates it unless `read_only`.

    Args:
      folder: `checkpoints` of a workdir.
      keep: number of newest checkpoints to keep.
      keep_steps: steps whose checkpoints are never deleted.
      read_only: write and delete nothing, because a run may be saving to this
        folder at the same time.
    """
    self.folder = folder
    self.keep_steps = frozenset(keep_steps)
    options: dict[str, Any]
    for logger in ("absl", "asyncio"):
      logging.getLogger(logger).addFilter(_is_no_notice)
    if read_only:  # Orbax would warn about the other options
      options = dict(read_only=True, save_interval_steps=0, create=False)
    else:
      kept = [policies.LatestN(keep), policies.CustomSteps(sorted(keep_steps))]
      options = dict(
        preservation_policy=policies.AnyPreservationPolicy(kept),
        save_decision_policy=policies.FixedIntervalPolicy(1),
        cleanup_tmp_directories=True,
      )
      sys.unraisablehook = _print_unraisable
    self._manager = ocp.CheckpointManager(
      folder.resolve(),
      options=ocp.CheckpointManagerOptions(save_root_metadata=False, **options),
    )

  def save(
    self, step: int, state: Any, run: Mapping, *, wait: bool = False
  ) -> str:
    """Starts saving a tree of arrays and a JSON description of the run.

    Returns before the files are written, unless `wait`. Does nothing if the
    step is saved. If the disk was full at the save before or is full now, a run
    of one process removes all steps that it may, and tries again.

    Returns:
      A warning that names the removed steps, or "".

    Raises:
      DiskError: this checkpoint or the one before could not be written.
    """
    try:
      self._start_saving(step, state, run)
      if wait:
        self.wait()
      return ""
    except DiskError as e:
      # Processes do not know of one another's errors.
      if distributed.process_count() > 1 or not _find_full_disk(e):
        raise
    removed = self._make_room()
    self._start_saving(step, state, run)
    self.wait()
    return (
      f"warning: The disk was full. To save step {step:,} in '{self.folder}',"
      f" these steps were removed: {removed}. Free some disk space."
    )

  def _start_saving(self, step: int, state: Any, run: Mapping) -> None:
    if step in self._manager.all_steps():
      return
    description = {"run": dict(run), "checksums": compute_checksums(state)}
    try:
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(state), run=ocp.args.JsonSave(description)
        ),
      )
    except Exception as e:
      raise self._disk_error(e) from e

  def _make_room(self) -> list[int]:
    """Removes all but the newest of the steps that are not to be kept."""
    for path in self.folder.glob(f"*{UNFINISHED}*"):
      shutil.rmtree(path, ignore_errors=True)
    removed = [x for x in self.steps()[:-1] if x not in self.keep_steps]
    for step in removed:
      self._manager.delete(step)
    return removed

  def wait(self) -> None:
    """Waits until all saves are on disk.

    Raises:
      DiskError: a checkpoint could not be written.
    """
    try:
      self._manager.wait_until_finished()
      self._manager.check_for_errors()
    except Exception as e:
      raise self._disk_error(e) from e

  def steps(self) -> list[int]:
    """Returns the saved steps in ascending order."""
    return sorted(self._manager.all_steps())

  def latest_step(self) -> int | None:
    """Returns the newest saved step, or None."""
    return max(self._manager.all_steps(), default=None)

  def read_description(self, step: int) -> dict[str, Any]:
    """Returns the description of the run that was saved with a step."""
    return self._read_json(step)["run"]

  def restore_state(self, step: int, like: Any) -> Any:
    """Restores all arrays of a step.

    `like` is a tree of (abstract) arrays with the shapes, dtypes and shardings
    of the result.

    Raises:
      CheckpointError: the step is missing or damaged, or has another tree.
    """
    args = ocp.args.StandardRestore(_make_abstract(like))
    return self._restore_state(step, args)

  def restore_params(self, step: int, like: Any) -> dict[str, Any]:
    """Restores the parameters only; otherwise as `restore_state`."""
    like = {"params": _make_abstract(like)}
    args = ocp.args.PyTreeRestore(
      like,
      partial_restore=True,
      restore_args=ocp.checkpoint_utils.construct_restore_args(like),
    )
    return self._restore_state(step, args)["params"]

  def close(self) -> None:
    """Waits for pending saves, whatever becomes of them; closes the folder."""
    with contextlib.suppress(Exception):  # `wait` raises it
      self._manager.close()

  def _read_json(self, step: int) -> dict[str, Any]:
    return self._restore(step, run=ocp.args.JsonRestore())["run"]

  def _restore_state(self, step: int, args: ocp.args.CheckpointArgs) -> Any:
    tree = self._restore(step, state=args)["state"]
    saved = self._read_json(step)["checksums"]
    if saved | compute_checksums(tree) != saved:
      raise CheckpointError(
        f"Checkpoint '{self.folder / str(step)}' is damaged: its arrays do not"
        f" match their checksums. {FIX_DAMAGED}"
      )
    return tree

  def _restore(self, step: int, **args: ocp.args.CheckpointArgs) -> Any:
    if step not in self._manager.all_steps():
      raise CheckpointError(
        f"'{self.folder}' has no checkpoint of step {step}. Saved steps:"
        f" {', '.join(map(str, self.steps())) or 'none'}."
      )
    try:
      return self._manager.restore(step, args=ocp.args.Composite(**args))
    except Exception as e:  # orbax: KeyError, JSONDecodeError, ValueError, ...
      first_line = (str(e).splitlines() or [""])[0][:300].rstrip(".")
      raise CheckpointError(
        f"Checkpoint '{self.folder / str(step)}' cannot be restored"
        f" ({type(e).__name__}: {first_line}). {FIX_DAMAGED}"
      ) from e

  def _disk_error(self, e: Exception) -> DiskError:
    reason = _find_full_disk(e) or str(e).partition("\n")[0].rstrip(".")
    return DiskError(
      f"A checkpoint could not be written to '{self.folder}': {reason}. Earlier"
      f" checkpoints are intact (steps: {self.steps()}). Free some disk space"
      " and run the same command again."
    )


def _find_full_disk(e: Exception) -> str:
  """Returns the words of the system for a full disk, "" for other errors."""
  words = map(os.strerror, FULL_DISK)
  return next((text for text in words if text in str(e)), "")


def compute_checksums(tree: Any) -> dict[str, int]:
  """Returns a 32-bit sum of the bits of each array, by its path.

  The sums do not depend on the mesh. They are needed because Orbax verifies
  its index only: a bit that flips on the disk would change a parameter.
  """
  by_path = {
    jax.tree_util.keystr(path): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }
  sums = jax.device_get(_bit_sums(by_path))
  return {path: int(total) for path, total in sums.items()}


@jax.jit
def _bit_sums(by_path: dict[str, jax.Array]) -> dict[str, jax.Array]:
  def bit_sum(x):
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
      x = jax.random.key_data(x)
    unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(x, unsigned)
    return bits.astype(jnp.uint32).sum(dtype=jnp.uint32)

  return jax.tree.map(bit_sum, by_path)


def _make_abstract(tree: Any) -> Any:
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree
  )
