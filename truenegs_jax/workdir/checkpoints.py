"""Saving and restoring a run with orbax; the only file that knows orbax.

  <folder>/<step>/state   the arrays         <folder>/<step>/run   JSON

A save is asynchronous and atomic: a step's folder stands under its name only
once it is whole.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from truenegs_jax.runtime.errors import CheckpointError, DiskError

MOVE_AWAY = "Move that folder away to go on from the step saved before it."


class Checkpoints:
  """The saved steps of one run."""

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    keep: int = 2,
    keep_steps: Sequence[int] = (),
    read_only: bool = False,
  ):
    """Opens the folder, and makes it unless `read_only`.

    Args:
      folder: where the steps lie.
      keep: how many of the newest steps to keep.
      keep_steps: steps that are kept for good.
      read_only: write nothing and clear nothing away, as is right beside a
        run that may be saving here.
    """
    self.folder = folder
    self.keep_steps = frozenset(keep_steps)
    writing = dict(
      preservation_policy=policies.AnyPreservationPolicy(
        [policies.LatestN(keep), policies.CustomSteps(sorted(keep_steps))]
      ),
      save_decision_policy=policies.FixedIntervalPolicy(1),
      cleanup_tmp_directories=True,
    )
    options = ocp.CheckpointManagerOptions(
      read_only=read_only,
      save_root_metadata=False,
      # Else orbax warns of what is of no use to a reader.
      **(dict(save_interval_steps=0, create=False) if read_only else writing),
    )
    self._manager = ocp.CheckpointManager(folder.resolve(), options=options)

  def save(self, step: int, state: Any, run: Mapping) -> None:
    """Starts to save a tree of arrays and the JSON that describes the run.

    Raises:
      DiskError: this or the save before it could not be written.
    """
    if step in self._manager.all_steps():
      return
    described = {"run": dict(run), "checksums": checksums(state)}
    try:
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(state),
          run=ocp.args.JsonSave(described),
        ),
      )
    except Exception as e:
      raise self._disk_error(e) from e

  def wait(self) -> None:
    """Returns once every save begun is on disk; DiskError if one is not."""
    try:
      self._manager.wait_until_finished()
      self._manager.check_for_errors()
    except Exception as e:
      raise self._disk_error(e) from e

  def steps(self) -> list[int]:
    """The saved steps, ascending."""
    return sorted(self._manager.all_steps())

  def latest(self) -> int | None:
    """The newest saved step; None if there is none."""
    steps = self.steps()
    return steps[-1] if steps else None

  def run(self, step: int) -> dict:
    """The JSON saved with a step."""
    return self._described(step)["run"]

  def state(self, step: int, like: Any) -> Any:
    """The arrays of a step, laid out as the (abstract) tree `like` says."""
    args = ocp.args.StandardRestore(_abstract(like))
    return self._checked(step, self._restore(step, state=args)["state"])

  def params(self, step: int, like: Any) -> Any:
    """The parameters alone, without what the optimizer holds."""
    like = {"params": _abstract(like)}
    args = ocp.args.PyTreeRestore(
      like,
      partial_restore=True,
      restore_args=ocp.checkpoint_utils.construct_restore_args(like),
    )
    tree = self._checked(step, self._restore(step, state=args)["state"])
    return tree["params"]

  def close(self) -> None:
    """Waits for what is being written and lets go of the folder."""
    self._manager.close()

  def _described(self, step: int) -> dict:
    return self._restore(step, run=ocp.args.JsonRestore())["run"]

  def _checked(self, step: int, tree: Any) -> Any:
    saved = self._described(step)["checksums"]
    if saved | checksums(tree) != saved:
      raise CheckpointError(
        f"{self.folder / str(step)} cannot be trusted: its arrays are not what"
        f" was saved (a checksum differs).\n{MOVE_AWAY}"
      )
    return tree

  def _restore(self, step: int, **args: Any) -> Any:
    if step not in self._manager.all_steps():
      saved = ", ".join(map(str, self.steps())) or "none"
      raise CheckpointError(
        f"{self.folder} holds no step {step}; saved steps: {saved}."
      )
    try:
      return self._manager.restore(step, args=ocp.args.Composite(**args))
    except Exception as e:  # orbax: KeyError, JSONDecodeError, ValueError, ...
      first_line = (str(e).splitlines() or [""])[0][:300]
      raise CheckpointError(
        f"{self.folder / str(step)} cannot be restored:"
        f" {type(e).__name__}: {first_line}\n"
        f"{MOVE_AWAY}"
      ) from e

  def _disk_error(self, e: Exception) -> DiskError:
    return DiskError(
      f"a checkpoint could not be written to {self.folder}: {e}\n"
      f"The steps saved before are intact ({self.steps()}); free some space"
      " and give the same command again."
    )


def checksums(tree: Any) -> dict[str, int]:
  """A 32-bit sum of the bits of each array by its path, alike on every mesh.

  Orbax checks its index and not the numbers: a flipped bit on the disk would
  come back as another parameter.
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


def _abstract(tree: Any) -> Any:
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
    tree,
  )
