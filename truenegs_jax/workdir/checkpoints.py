"""Saves and restores the state of a run with Orbax.

  <folder>/<step>/state     arrays         <folder>/<step>/run     JSON
  <folder>/<step>.damaged   a step that a resumed run could not restore

Orbax writes asynchronously and marks a step as finished when all of its files
are written: by renaming its folder, in a bucket by a file. Only then are older
steps removed. Orbax's manager needs the right to read a bucket's metadata for
that; and if a disk fails one of several processes, it holds all of them for 20
minutes and loses the reason. So steps are listed and removed here.
"""

import contextlib
import json
import os
import pathlib
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from truenegs_jax.runtime import distributed, errors
from truenegs_jax.runtime.errors import CheckpointError, DiskError, printable
from truenegs_jax.runtime.files import (
  FULL_DISK,
  disk_errors,
  parse_json,
  read_file,
  remove_folder,
  short_sha256,
)
from truenegs_jax.runtime.paths import check_utf8, is_bucket
from truenegs_jax.workdir import files
from truenegs_jax.workdir.lock import Lease

Result = TypeVar("Result")
DAMAGED = ".damaged"  # suffix of the folders of steps that were set aside
FULL = "|".join(map(os.strerror, FULL_DISK))  # in errors of libraries
# In errors of libraries, if files may be intact. The last words are
# TensorStore's, for a bucket that cannot be reached.
UNREADABLE = "|".join(map(os.strerror, errors.UNREADABLE)) + (
  "|(ABORTED|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAVAILABLE): .*"
)


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
      with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
      self._remove_unfinished()
      options = ocp.options.AsyncOptions(
        post_finalization_callback=self._check_written
      )
      self._writer = ocp.AsyncCheckpointer(
        ocp.CompositeCheckpointHandler(), async_options=options
      )
    self._saved = files.list_steps(folder)

  def save(
    self, step: int, state: Any, run: Mapping, *, wait: bool = False
  ) -> None:
    """Starts saving a tree of arrays and a JSON description of the run.

    Returns before the files are written, unless `wait`. Does nothing if the
    step is saved. DiskError: this checkpoint or the one before could not be
    written (the latter does not matter with `wait`, if there is one process),
    or another run uses the workdir.
    """
    if step in self._saved or (step == self._pending and not wait):
      return
    try:
      self.wait()
    except DiskError:
      if not wait or distributed.process_count() > 1:
        raise
    if step in self._saved:
      return
    with self._everywhere():
      self.lease.check()
      self._remove_unfinished()  # of a save that failed in a bucket
    content = make_content(state, run)
    self._pending = step
    with self._saving():
      self._writer.save((self.folder / str(step)).resolve(), args=content)
    if wait:
      self.wait()

  def _check_written(self) -> None:
    """Reads a step before Orbax marks it as finished, in a thread."""
    folder = self.folder / str(self._pending)
    if not is_bucket(folder):
      folder = folder.with_name(f"{folder.name}{files.UNFINISHED}")
    (folder / "state" / "manifest.ocdbt").stat()  # of a save that wrote arrays
    read_description(folder)
    self.lease.check()

  def wait(self) -> None:
    """Waits until all saves are on disk; raises DiskError if one is not."""
    if self._read_only:
      return
    with self._saving():
      self._writer.wait_until_finished()
    if self._pending is not None:
      self._saved = sorted({*self._saved, self._pending})
      self._pending = None
      self._remove_old()

  def _remove_old(self) -> None:
    """Removes all steps but the newest and those that are to be kept."""
    for step in self._saved[: -self._keep]:
      folder = self.folder / str(step)
      if step not in self._keep_steps:
        # If it fails, the next save tries again.
        with contextlib.suppress(OSError, errors.TrueNegsError):
          if distributed.is_first_process():
            if is_bucket(folder):  # where it is removed file by file
              (folder / files.COMMITTED).unlink(missing_ok=True)
            remove_folder(folder)
          self._saved.remove(step)

  def _remove_unfinished(self) -> None:
    """Removes what saves that failed or were killed have left."""
    if distributed.is_first_process():
      for name, is_finished in files.list_saved(self.folder).items():
        if not is_finished:
          remove_folder(self.folder / name)

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
      if damaged and not self._read_only:
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

  def _newest_besides(self, damaged: Mapping[int, str]) -> int | None:
    """Returns the newest other step, in all processes of the run the same."""
    self._saved = files.list_steps(self.folder)  # a run may be saving there
    newest = max((x for x in self._saved if x not in damaged), default=None)
    if self._read_only:
      return newest
    return json.loads(distributed.from_first("newest step", json.dumps(newest)))

  def _set_aside(self, steps: Mapping[int, str]) -> None:
    """Renames damaged steps, so that the run can save them again."""
    with self._everywhere():
      for step in steps if distributed.is_first_process() else ():
        aside = self.folder / f"{step}{DAMAGED}"
        with disk_errors(aside):
          remove_folder(aside)
          (self.folder / str(step)).rename(aside)
    self._saved = [x for x in self._saved if x not in steps]

  def read_description(self, step: int) -> dict[str, Any]:
    """Returns the description of a step's run; call it in all processes."""
    with self._everywhere(), reading(self._find(step)) as folder:
      return read_description(folder)["run"]

  def restore_state(self, step: int, like: Any) -> Any:
    """Restores all arrays of a step; to be called in all processes.

    `like` is a tree of (abstract) arrays with the shapes, dtypes and shardings
    of the result. Raises DamagedStepError also for another tree.
    """
    return self._restore(step, like, is_whole=True)

  def restore_params(self, step: int, like: Any) -> dict[str, Any]:
    """Restores the parameters alone."""
    return self._restore(step, {"params": like}, is_whole=False)["params"]

  def _restore(self, step: int, like: Any, *, is_whole: bool) -> Any:
    """Restores and verifies arrays; if `is_whole`, a step has no others."""
    with self._everywhere(), reading(self._find(step)) as folder:
      expected = read_description(folder)["checksums"]
      tree = read_arrays(folder, like)
    sums = compute_checksums(tree)
    if not is_whole:
      expected = {name: expected.get(name) for name in sums}
    if sums != expected:
      raise errors.DamagedStepError(
        f"Checkpoint '{folder}' is damaged: its arrays do not match their"
        " checksums."
      )
    return tree

  def close(self) -> None:
    """Waits for pending saves, whatever becomes of them; closes the folder."""
    if not self._read_only:
      with contextlib.suppress(Exception):  # `wait` raises it
        self.wait()
      with contextlib.suppress(Exception):
        self._writer.close()

  def _everywhere(self) -> contextlib.AbstractContextManager[None]:
    """Raises errors in all processes of the run; a reader may be only one."""
    if self._read_only:
      return contextlib.nullcontext()
    return distributed.raise_everywhere("checkpoints")

  def _find(self, step: int) -> pathlib.Path:
    """Returns the folder of a saved step; CheckpointError for another one."""
    if step not in self._saved:
      raise CheckpointError(
        f"'{self.folder}' has no checkpoint of step {step}. Saved steps:"
        f" {', '.join(map(str, self._saved)) or 'none'}."
      )
    return self.folder / str(step)

  @contextlib.contextmanager
  def _saving(self) -> Iterator[None]:
    """Raises DiskError for a save that failed, which takes no room on a disk.

    In a bucket, which may be out of reach, the next save removes its files.
    """
    try:
      yield
    except Exception as e:
      self._pending = None
      if self.lease.error:
        raise self.lease.error from e
      if not is_bucket(self.folder):
        with contextlib.suppress(OSError):
          self._remove_unfinished()
      reason = errors.first_line(e)
      if full := find_reason(e, FULL):
        reason = f"{full}. Free some disk space"
      kept = "No step was saved before."
      if self._saved:
        kept = f"Earlier checkpoints are intact (steps: {self._saved})."
      raise DiskError(
        f"A checkpoint could not be written to '{self.folder}': {reason}."
        f" {kept} If the run ends, run the same command again."
      ) from e


def make_content(state: Any, run: Mapping[str, Any]) -> ocp.args.Composite:
  """Returns what Orbax saves of a tree of arrays and a description."""
  content = {"run": dict(run), "checksums": compute_checksums(state)}
  return ocp.args.Composite(
    state=ocp.args.StandardSave(state),
    run=ocp.args.JsonSave({**content, "sha256": _hash_json(content)}),
  )


@contextlib.contextmanager
def reading(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields the folder of a step to a body that reads it.

  Raises DiskError if the disk failed, else DamagedStepError for an error.
  """
  try:
    yield folder
  except Exception as e:  # KeyError, JSONDecodeError, ValueError, ...
    if errors.is_out_of_memory(e) or isinstance(e, errors.TrueNegsError):
      raise
    if reason := find_reason(e, UNREADABLE):
      raise errors.DiskError(
        f"Checkpoint '{folder}' cannot be read: {reason}. It may be intact. Run"
        " the same command again. To use the step before instead, rename the"
        f" folder to '{folder.name}{DAMAGED}'."
      ) from e
    reason = f"{type(e).__name__}: {errors.first_line(e)}"
    message = f"Checkpoint '{folder}' cannot be restored ({reason})."
    if not files.list_saved(folder.parent).get(folder.name):
      message = f"Checkpoint '{folder}' was deleted by its run."
    raise errors.DamagedStepError(message) from e


def find_reason(error: Exception, pattern: str) -> str:
  """Returns the first match in the messages of an error and its causes."""
  # TensorStore's words are in the cause of Orbax's error.
  messages = "".join(traceback.format_exception(error, limit=0))
  match = re.search(pattern, messages)
  return match[0] if match else ""


def read_description(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the keys "run" and "checksums"; ValueError if it is damaged."""
  path = folder / "run" / "metadata"
  saved = parse_json(read_file(path), strict=False)
  if saved.pop("sha256", None) != _hash_json(saved):
    raise ValueError("its description does not match its checksum")
  return saved


def read_arrays(folder: pathlib.Path, like: Any) -> Any:
  """Returns a tree like `like` of (abstract) arrays, not yet verified.

  Raises ValueError if arrays are missing, or of another shape or dtype: that
  decides whether bits are those of a random key.
  """
  like = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like
  )
  each = ocp.checkpoint_utils.construct_restore_args(like)
  args = ocp.args.PyTreeRestore(like, partial_restore=True, restore_args=each)
  handler = ocp.PyTreeCheckpointHandler()
  tree = handler.restore(folder.resolve() / "state", args=args)
  for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True):
    is_array = isinstance(x, jax.Array)
    if not is_array or (x.shape, x.dtype) != (y.shape, y.dtype):
      raise ValueError("an array is missing or of another type")
  return tree


def compute_checksums(tree: Any) -> dict[str, int]:
  """Returns a 32-bit checksum of the bits of each array, by its path."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  by_path = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
  sums = jax.device_get(_sum_arrays(by_path))
  return {path: int(total) for path, total in sums.items()}


@jax.jit
def _sum_arrays(by_path: dict[str, jax.Array]) -> dict[str, jax.Array]:
  return jax.tree.map(_sum_array, by_path)


def _sum_array(x: jax.Array) -> jax.Array:
  """Sums the words of an array, each mixed one-to-one with its index.

  Constants: 2**32 / golden ratio; Wellons, "Prospecting for Hash Functions".
  """
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
  bits = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
  index = jax.lax.iota(jnp.uint32, x.size).reshape(x.shape)
  bits += index * np.uint32(0x9E3779B9)
  bits = (bits ^ bits >> 16) * np.uint32(0x7FEB352D)
  bits = (bits ^ bits >> 15) * np.uint32(0x846CA68B)
  return (bits ^ bits >> 16).sum(dtype=jnp.uint32)


def _hash_json(value: Any) -> str:
  return short_sha256(json.dumps(value, sort_keys=True))
