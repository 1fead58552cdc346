"""Saves and restores the state of a run with Orbax.

  <folder>/<step>/state     arrays         <folder>/<step>/run     JSON
  <folder>/<step>.damaged   a step that a resumed run could not restore

Orbax writes asynchronously and marks a step as finished when all of its files
are written: by renaming its folder, in a bucket by a file. Only then are older
steps removed. Orbax's manager would also take a user's folder `2026` for a
step, remove what is not finished in a bucket, whoever wrote it, and need a
right of its own there; so steps are listed and removed here. No other module
imports Orbax.
"""

import contextlib
import itertools
import json
import operator
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from truenegs_jax.runtime import distributed, errors, files
from truenegs_jax.runtime.errors import CheckpointError, DiskError, printable
from truenegs_jax.runtime.files import FULL_DISK, disk_errors, remove_folder
from truenegs_jax.runtime.paths import check_utf8, is_bucket
from truenegs_jax.workdir.files import (
  COMMITTED,
  UNFINISHED,
  check_checkpoint_folder,
  list_saved,
  list_steps,
)
from truenegs_jax.workdir.lock import Lease

Result = TypeVar("Result")
DAMAGED = ".damaged"  # suffix of the folders of steps that were set aside

# Numbers the barriers of a run, whose processes have the same calls.
_BARRIERS = itertools.count()
# TensorStore's words for a bucket that cannot be reached.
LOST = r"(ABORTED|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAVAILABLE): .*"


class Checkpoints:
  """The checkpoints of one run."""

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    keep: int = 2,
    keep_steps: Sequence[int] = (),
    read_only: bool = False,
    lease: Lease | None = None,
  ):
    """Opens the folder `checkpoints` of a workdir.

    Keeps the newest `keep` steps, and `keep_steps`. With `read_only` it writes
    nothing, as a run may be saving there; else it creates a missing folder, and
    in a bucket it has the right to write until `lease` is lost.
    """
    check_utf8(folder)
    self.folder = folder
    self.lease = lease or Lease()
    self._read_only = read_only
    self._keep = keep
    self._keep_steps = frozenset(keep_steps)
    self._pending: int | None = None  # the step that is being written
    if not read_only:
      check_checkpoint_folder(folder)
      with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
      self._remove_unfinished()
      options = ocp.options.AsyncOptions(
        post_finalization_callback=self._check_written
      )
      self._writer = ocp.AsyncCheckpointer(
        ocp.CompositeCheckpointHandler(), async_options=options
      )
    self._saved = list_steps(folder)

  def save(
    self, step: int, state: Any, run: Mapping, *, wait: bool = False
  ) -> None:
    """Starts saving a tree of arrays and a JSON description of the run.

    Returns before the files are written, unless `wait`. Does nothing if the
    step is saved. DiskError: this checkpoint or the one before could not be
    written, or another run uses the workdir.
    """
    if step in (*self._saved, self._pending):
      return
    self.wait()
    with self._everywhere():
      self.lease.check()
      self._check_free(step)
    sums = compute_checksums(state)
    description: dict[str, Any] = {"run": dict(run), "checksums": sums}
    description["sha256"] = _hash_json(description)
    args = ocp.args.Composite(
      state=ocp.args.StandardSave(state), run=ocp.args.JsonSave(description)
    )
    self._pending = step
    try:
      self._writer.save(self._path(step).resolve(), args=args, force=True)
    except Exception as e:
      self._pending = None
      raise self._disk_error(e) from e
    if wait:
      self.wait()

  def _check_free(self, step: int) -> None:
    """Refuses a folder that Orbax did not write, as it would be removed."""
    path = self._path(step)
    if path.exists() and path.name not in list_saved(self.folder):
      raise DiskError(
        f"Step {step:,} cannot be saved: '{path}' exists and is no checkpoint."
        " Move it to another folder. If the run ends, the same command resumes"
        " it."
      )

  def _check_written(self) -> None:
    """Reads a step before Orbax marks it as finished, in a thread."""
    folder = self._path(self._pending or 0)
    if not is_bucket(folder):
      folder = folder.with_name(f"{folder.name}{UNFINISHED}")
    (folder / "state" / "manifest.ocdbt").stat()  # of a save that wrote arrays
    _read_description(folder)
    self.lease.check()

  def wait(self) -> None:
    """Waits until all saves are on disk; raises DiskError if one is not."""
    if self._read_only:
      return
    try:
      self._writer.wait_until_finished()
      self._writer.check_for_errors()
    except Exception as e:
      self._pending = None
      raise self._disk_error(e) from e
    step = self._pending
    self._pending = None
    if step is not None:
      self._saved = sorted({*self._saved, step})
      self._remove_old()

  def _remove_old(self) -> None:
    """Removes all steps but the newest and those that are to be kept."""
    for step in self._saved[: -self._keep]:
      if step not in self._keep_steps:
        # If it fails, the next save tries again.
        with contextlib.suppress(OSError, errors.TrueNegsError):
          if distributed.is_first_process():
            if is_bucket(self.folder):  # where it is removed file by file
              (self._path(step) / COMMITTED).unlink(missing_ok=True)
            remove_folder(self._path(step))
          self._saved.remove(step)

  def _remove_unfinished(self) -> None:
    """Removes what saves that failed or were killed have left."""
    if distributed.is_first_process():
      for name, is_finished in list_saved(self.folder).items():
        if not is_finished:
          remove_folder(self.folder / name)

  def _path(self, step: int) -> pathlib.Path:
    """Returns the folder of a step."""
    return self.folder / str(step)

  def steps(self) -> list[int]:
    """Returns the saved steps in ascending order."""
    return list(self._saved)

  def latest_step(self) -> int | None:
    """Returns the newest saved step, or None."""
    return max(self._saved, default=None)

  def read_newest(
    self, read: Callable[[int], Result], report: Callable[[str], object]
  ) -> tuple[int, Result] | None:
    """Returns the newest undamaged step with `read(step)`; None without steps.

    Reports each damaged step. Unless opened with `read_only`, it also renames
    them, and all processes of the run have to call this method. If all steps
    are damaged, it raises CheckpointError and renames nothing.
    """
    damaged: dict[int, str] = {}
    while (step := self._newest_besides(damaged)) is not None:
      try:
        result = read(step)
      except errors.DamagedStepError as e:
        damaged[step] = printable(e)
        continue
      if damaged:
        self._set_aside(damaged)
      for bad, problem in damaged.items():
        renamed = "" if self._read_only else f" It is now '{bad}{DAMAGED}'."
        report(f"warning: {problem}{renamed} Step {step:,} is used instead.")
      return step, result
    if not damaged and not any(self.folder.glob(f"*{DAMAGED}")):
      return None
    problem = f"{next(iter(damaged.values()))} " if damaged else ""
    raise CheckpointError(
      f"{problem}'{self.folder}' has no undamaged step. Restore one from a"
      " backup, or choose another folder with --workdir=FOLDER to start again."
    )

  def read_description(self, step: int) -> dict[str, Any]:
    """Returns the description of a step's run; call it in all processes."""
    with self._everywhere(), self._restoring(step):
      return _read_description(self._path(step))["run"]

  def restore_state(self, step: int, like: Any) -> Any:
    """Restores all arrays of a step; to be called in all processes.

    `like` is a tree of (abstract) arrays with the shapes, dtypes and shardings
    of the result. Raises DamagedStepError also for another tree.
    """
    with self._everywhere():
      checksums, tree = self._read_arrays(step, like, are_all=True)
    return self._verify(step, checksums, tree)

  def restore_params(self, step: int, like: Any) -> dict[str, Any]:
    """Restores and verifies the parameters alone."""
    like = {"params": like}
    checksums, tree = self._read_arrays(step, like, are_all=False)
    return self._verify(step, checksums, tree)["params"]

  def close(self) -> None:
    """Waits for pending saves, whatever becomes of them; closes the folder."""
    if not self._read_only:
      with contextlib.suppress(Exception):  # `wait` raises it
        self.wait()
      with contextlib.suppress(Exception):
        self._writer.close()

  def _newest_besides(self, damaged: Mapping[int, str]) -> int | None:
    """Returns the newest other step, in all processes of the run the same."""
    self._saved = list_steps(self.folder)  # a run may be saving there
    newest = max((x for x in self._saved if x not in damaged), default=None)
    if self._read_only:
      return newest
    name = f"newest step {next(_BARRIERS)}"
    return json.loads(distributed.from_first(name, json.dumps(newest)))

  def _set_aside(self, steps: Mapping[int, str]) -> None:
    """Renames steps, so that the run can save them again."""
    if self._read_only:
      return
    with self._everywhere():
      for step in steps if distributed.is_first_process() else ():
        aside = self.folder / f"{step}{DAMAGED}"
        with disk_errors(aside):
          remove_folder(aside)
          self._path(step).rename(aside)
    self._saved = [x for x in self._saved if x not in steps]

  def _everywhere(self) -> contextlib.AbstractContextManager[None]:
    """Raises errors in all processes of the run; a reader may be only one."""
    if self._read_only:
      return contextlib.nullcontext()
    return distributed.raise_everywhere(f"checkpoints {next(_BARRIERS)}")

  def _read_arrays(
    self, step: int, like: Any, *, are_all: bool
  ) -> tuple[dict[str, int], Any]:
    """Returns the checksums of a step and its arrays of the tree `like`."""
    like = jax.tree.map(_make_abstract, like)
    each = ocp.checkpoint_utils.construct_restore_args(like)
    args = ocp.args.PyTreeRestore(like, partial_restore=True, restore_args=each)
    with self._restoring(step):
      folder = self._path(step)
      checksums = _read_description(folder)["checksums"]
      handler = ocp.PyTreeCheckpointHandler()
      tree = handler.restore(folder.resolve() / "state", args=args)
      arrays = jax.tree.leaves(tree)
      if not all(isinstance(x, jax.Array) for x in arrays):
        raise ValueError("an array is missing")
      # Metadata decide whether bits are those of a random key.
      if [*map(_get_type, arrays)] != [*map(_get_type, jax.tree.leaves(like))]:
        raise ValueError("arrays of other types")
      if are_all and len(arrays) != len(checksums):
        raise ValueError("it has other arrays")
      return checksums, tree

  def _verify(self, step: int, checksums: dict[str, int], tree: Any) -> Any:
    if not compute_checksums(tree).items() <= checksums.items():
      raise errors.DamagedStepError(
        f"Checkpoint '{self._path(step)}' is damaged: its arrays do not"
        " match their checksums."
      )
    return tree

  @contextlib.contextmanager
  def _restoring(self, step: int) -> Iterator[None]:
    """Raises DiskError if the disk failed, else DamagedStepError for errors."""
    if step not in self._saved:
      raise CheckpointError(
        f"'{self.folder}' has no checkpoint of step {step}. Saved steps:"
        f" {', '.join(map(str, self._saved)) or 'none'}."
      )
    folder = self._path(step)
    try:
      yield
    except Exception as e:  # KeyError, JSONDecodeError, ValueError, ...
      if errors.is_out_of_memory(e) or isinstance(e, errors.TrueNegsError):
        raise
      lost = is_bucket(folder) and re.search(LOST, _join_messages(e))
      if reason := lost[0] if lost else _find_reason(e, errors.UNREADABLE):
        raise DiskError(
          f"Checkpoint '{folder}' cannot be read: {reason}. It may be intact."
          " Run the same command again. To use the step before instead, rename"
          f" the folder to '{folder.name}{DAMAGED}'."
        ) from e
      first_line = (str(e).splitlines() or [""])[0][:150].rstrip(".")
      reason = f"{type(e).__name__}: {first_line}"
      message = f"Checkpoint '{folder}' cannot be restored ({reason})."
      if step not in list_steps(self.folder):
        message = f"Checkpoint '{folder}' was deleted by its run."
      raise errors.DamagedStepError(message) from e

  def _disk_error(self, e: Exception) -> DiskError:
    """Returns the error for a failed save, which takes no room on a disk."""
    if self.lease.error:
      return self.lease.error
    if not is_bucket(self.folder):  # there, the next start removes it
      with contextlib.suppress(OSError):
        self._remove_unfinished()
    reason = str(e).partition("\n")[0].rstrip(".")
    fix = ""
    if full := _find_reason(e, FULL_DISK):
      reason = full
      fix = " Free some disk space."
    elif isinstance(e, TimeoutError):
      reason = "20 minutes passed, or the clock was changed meanwhile"
    return DiskError(
      f"A checkpoint could not be written to '{self.folder}': {reason}. Earlier"
      f" checkpoints are intact (steps: {self._saved}).{fix} If the run ends,"
      " the same command resumes it."
    )


def _read_description(folder: pathlib.Path) -> dict[str, Any]:
  path = folder / "run" / "metadata"
  saved = files.parse_json(files.read_file(path), strict=False)
  if saved.pop("sha256", None) != _hash_json(saved):
    raise ValueError("its description does not match its checksum")
  return saved


def _find_reason(e: BaseException | None, numbers: Sequence[int]) -> str:
  """Returns the words of the system in a library's messages, or ""."""
  text = _join_messages(e)
  return next((x for x in map(os.strerror, numbers) if x in text), "")


def _join_messages(e: BaseException | None) -> str:
  text = ""
  while e:  # TensorStore's words are in the cause of Orbax's error
    text = f"{text}\n{e}"
    e = e.__cause__ or e.__context__
  return text


def compute_checksums(tree: Any) -> dict[str, int]:
  """Returns a 32-bit checksum of the bits of each array, by its path.

  It does not depend on the mesh. Orbax verifies its index only: a bit that
  flips on the disk would change a parameter.
  """
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  by_path = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
  sums = jax.device_get(_sum_arrays(by_path))
  return {path: int(total) for path, total in sums.items()}


@jax.jit
def _sum_arrays(by_path: dict[str, jax.Array]) -> dict[str, jax.Array]:
  def sum_array(x: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
      x = jax.random.key_data(x)
    unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
    return _mix_with_position(bits).sum(dtype=jnp.uint32)

  return jax.tree.map(sum_array, by_path)


def _mix_with_position(bits: jax.Array) -> jax.Array:
  """Mixes each uint32 with its index in the flat array, one-to-one.

  Constants: 2**32 / golden ratio; Wellons, "Prospecting for Hash Functions".
  """
  bits = jnp.atleast_1d(bits)
  strides = itertools.accumulate((1, *bits.shape[:0:-1]), operator.mul)
  for axis, stride in zip(reversed(range(bits.ndim)), strides, strict=True):
    index = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    bits += index * np.uint32(stride * 0x9E3779B9 % 2**32)
  bits = (bits ^ bits >> 16) * np.uint32(0x7FEB352D)
  bits = (bits ^ bits >> 15) * np.uint32(0x846CA68B)
  return bits ^ bits >> 16


def _get_type(x: Any) -> tuple:
  return x.shape, x.dtype


def _hash_json(value: Any) -> str:
  return files.short_sha256(json.dumps(value, sort_keys=True))


def _make_abstract(x: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
