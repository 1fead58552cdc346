"""Saves and restores the state of a run with Orbax.

  <folder>/<step>/state     arrays         <folder>/<step>/run     JSON
  <folder>/<step>.damaged   a step that a resumed run could not restore

A save is asynchronous and atomic: a step's folder gets its final name when all
of its files are written and could be opened again. Only then are older steps
deleted. In a bucket (`steps.py`) it has its name from the start, and gets a
file that says that it is finished. No other module imports Orbax.
"""

import contextlib
import itertools
import json
import operator
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from orbax.checkpoint import checkpoint_managers as policies

from truenegs_jax.runtime import distributed, errors, files
from truenegs_jax.runtime.errors import CheckpointError, DiskError, printable
from truenegs_jax.runtime.files import FULL_DISK, disk_errors, remove_folder
from truenegs_jax.runtime.paths import check_utf8, is_bucket
from truenegs_jax.workdir.files import check_checkpoint_folder
from truenegs_jax.workdir.lock import Lease
from truenegs_jax.workdir.steps import COMMITTED, Steps, list_steps

Result = TypeVar("Result")
DAMAGED = ".damaged"  # suffix of the folders of steps that were set aside

# Numbers the barriers of a run, whose processes have the same calls.
_BARRIERS = itertools.count()
UNFINISHED = ".orbax-checkpoint-tmp"  # in the names of folders
# TensorStore's words for a bucket that cannot be reached.
LOST = r"(ABORTED|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAVAILABLE): .*"


class _Description(NamedTuple):
  """The JSON of a step."""

  run: dict[str, Any]
  checksums: dict[str, int]  # of the arrays, by path


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
    self.folder, self.lease = folder, lease or Lease()
    self._read_only = read_only
    self.keep_steps = frozenset(keep_steps)
    self._saving = 0  # the step that is being written
    if not read_only:
      check_checkpoint_folder(folder)
    after = self._open_unfinished
    saving = ocp.options.AsyncOptions(post_finalization_callback=after)
    self._steps: Steps | None = None  # those of a bucket or its copy
    if is_bucket(folder) or any("_" in x for x in list_steps(folder)):
      writer = None
      if not read_only:
        handler = ocp.CompositeCheckpointHandler()
        writer = ocp.AsyncCheckpointer(handler, async_options=saving)
      self._manager = self._steps = Steps(
        folder,
        owner=self.lease.owner,
        keep=keep,
        keep_steps=self.keep_steps,
        writer=writer,
        is_first=distributed.is_first_process(),
      )
    else:
      self._manager = self._open_manager(keep, saving)

  def _open_manager(self, keep: int, saving: Any) -> ocp.CheckpointManager:
    folder, options = self.folder, dict[str, Any](save_root_metadata=False)
    if self._read_only:  # Orbax would warn about the other options
      options |= dict(read_only=True, save_interval_steps=0, create=False)
    else:
      keep_steps = sorted(self.keep_steps)
      kept = [policies.LatestN(keep), policies.CustomSteps(keep_steps)]
      options |= dict(
        preservation_policy=policies.AnyPreservationPolicy(kept),
        save_decision_policy=policies.FixedIntervalPolicy(1),
        cleanup_tmp_directories=True,
        async_options=saving,
      )
    try:
      with disk_errors(folder):
        all_options = ocp.CheckpointManagerOptions(**options)
        return ocp.CheckpointManager(folder.resolve(), options=all_options)
    except ValueError as e:  # numbers of more than 4,300 digits
      raise CheckpointError(
        f"'{folder}' cannot be read: a file _CHECKPOINT_METADATA is damaged"
        f" ({printable(e)}). Remove that file, which no step needs."
      ) from e

  def save(
    self, step: int, state: Any, run: Mapping, *, wait: bool = False
  ) -> str:
    """Starts saving a tree of arrays and a JSON description of the run.

    Returns before the files are written, unless `wait`. Does nothing if the
    step is saved. If the disk is or was full, a run of one process removes
    unfinished and damaged steps, then, one by one, those that it may but the
    newest, until the save succeeds. Returns a warning that names them, or "".
    DiskError: this checkpoint or the one before could not be written, or
    another run uses the workdir.
    """
    try:
      self._start_saving(step, state, run)
      if wait:
        self.wait()
      return ""
    except DiskError as e:
      # Processes do not know of one another's errors.
      if distributed.process_count() > 1 or not _find_reason(e, FULL_DISK):
        raise
    removed = self._save_on_full_disk(step, state, run)
    return (
      f"warning: The disk was full. To save step {step:,} in '{self.folder}',"
      f" these steps were removed: {removed or None}. Free some disk space."
    )

  def _start_saving(self, step: int, state: Any, run: Mapping) -> None:
    if step in self._manager.all_steps():
      return
    self.wait()
    self._saving = step
    if self.lease.owner:
      with self._everywhere():
        self.lease.check()
    sums = compute_checksums(state)
    description = _Description(dict(run), sums)._asdict()
    description["sha256"] = _hash_json(description)
    arrays, text = ocp.args.StandardSave(state), ocp.args.JsonSave(description)
    try:
      args = ocp.args.Composite(state=arrays, run=text)
      self._manager.save(step, args=args)
    except Exception as e:
      raise self._disk_error(e) from e

  def _open_unfinished(self) -> None:
    """Opens the files of a step before it is finished."""
    folder = self._path(self._saving).resolve()
    base: Any
    if is_bucket(folder):
      from truenegs_jax.runtime.buckets import BucketPath, open_store

      base = open_store(BucketPath(folder / "state")).spec().to_json()
    else:
      folder = folder.with_name(f"{folder.name}{UNFINISHED}")
      base = {"driver": "file", "path": f"{folder / 'state'}/"}
    (folder / "state" / "manifest.ocdbt").stat()  # it may look elsewhere
    store = {"driver": "ocdbt", "base": base}
    keys = ts.KvStore.open(store).result().list().result()
    saved = _read_description(folder)
    if len(saved.checksums) != sum(x.endswith(b"/.zarray") for x in keys):
      raise ValueError("an array is missing")
    self.lease.check()

  def _path(self, step: int) -> pathlib.Path:
    """Returns the folder of a step."""
    return self._steps.path(step) if self._steps else self.folder / str(step)

  def _save_on_full_disk(self, step: int, state: Any, run: Mapping) -> list:
    """Removes steps until the save succeeds; returns the removed steps."""
    removed: list[int] = []
    while True:
      for useless in (UNFINISHED, DAMAGED):
        for path in self.folder.glob(f"*{useless}*"):
          remove_folder(path)
      try:
        self._start_saving(step, state, run)
        self.wait()
        return removed
      except DiskError as e:
        rest = [x for x in self.steps()[:-1] if x not in self.keep_steps]
        if not (rest and _find_reason(e, FULL_DISK)):
          raise
      self._manager.delete(rest[0])
      removed.append(rest[0])

  def wait(self) -> None:
    """Waits until all saves are on disk; raises DiskError if one is not."""
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
      names = {bad: f"{self._path(bad).name}{DAMAGED}" for bad in damaged}
      if damaged:
        self._set_aside(damaged)
      for bad, problem in damaged.items():
        renamed = "" if self._read_only else f" It is now '{names[bad]}'."
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
      return _read_description(self._path(step)).run

  def restore_state(self, step: int, like: Any) -> Any:
    """Restores all arrays of a step; to be called in all processes.

    `like` is a tree of (abstract) arrays with the shapes, dtypes and shardings
    of the result. Raises DamagedStepError also for another tree.
    """
    handler = ocp.StandardCheckpointHandler()
    args = ocp.args.StandardRestore(_make_abstract(like))
    with self._everywhere():
      saved, tree = self._read_step(step, handler, args, like)
    return self._verify(step, saved, tree)

  def restore_params(self, step: int, like: Any) -> dict[str, Any]:
    """Restores and verifies the parameters alone."""
    like = {"params": _make_abstract(like)}
    each = ocp.checkpoint_utils.construct_restore_args(like)
    args = ocp.args.PyTreeRestore(like, partial_restore=True, restore_args=each)
    handler = ocp.PyTreeCheckpointHandler()
    saved, tree = self._read_step(step, handler, args, like)
    return self._verify(step, saved, tree)["params"]

  def close(self) -> None:
    """Waits for pending saves, whatever becomes of them; closes the folder."""
    with contextlib.suppress(Exception):  # `wait` raises it
      self._manager.close()

  def _newest_besides(self, damaged: Mapping[int, str]) -> int | None:
    """Returns the newest other step, in all processes of the run the same."""
    self._manager.reload()  # a run may have saved or deleted steps meanwhile
    steps = [step for step in self.steps() if step not in damaged]
    newest = max(steps, default=None)
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
        folder = self._path(step)
        aside = folder.with_name(f"{folder.name}{DAMAGED}")
        with disk_errors(aside):
          remove_folder(aside)
          folder.rename(aside)
    self._manager.reload()

  def _everywhere(self) -> contextlib.AbstractContextManager[None]:
    """Raises errors in all processes of the run; a reader may be only one."""
    if self._read_only:
      return contextlib.nullcontext()
    return distributed.raise_everywhere(f"checkpoints {next(_BARRIERS)}")

  def _read_step(
    self,
    step: int,
    handler: ocp.CheckpointHandler,
    args: ocp.args.CheckpointArgs,
    like: Any,
  ) -> tuple[_Description, Any]:
    with self._restoring(step):
      saved = _read_description(self._path(step))
      # The manager's method would wait for processes that failed.
      tree = handler.restore(self._path(step).resolve() / "state", args=args)
      if not all(isinstance(x, jax.Array) for x in jax.tree.leaves(tree)):
        raise ValueError("an array is missing")
      # Metadata decide whether bits are those of a random key.
      if _list_types(tree) != _list_types(like):
        raise ValueError("arrays of other types")
      return saved, tree

  def _verify(self, step: int, saved: _Description, tree: Any) -> Any:
    sums = compute_checksums(tree)
    if saved.checksums | sums != saved.checksums:
      raise errors.DamagedStepError(
        f"Checkpoint '{self._path(step)}' is damaged: its arrays do not"
        " match their checksums."
      )
    return tree

  @contextlib.contextmanager
  def _restoring(self, step: int) -> Iterator[None]:
    """Raises DiskError if the disk failed, else DamagedStepError for errors."""
    if step not in self._manager.all_steps():
      raise CheckpointError(
        f"'{self.folder}' has no checkpoint of step {step}. Saved steps:"
        f" {', '.join(map(str, self.steps())) or 'none'}."
      )
    folder = self._path(step)
    try:
      yield
    except Exception as e:  # KeyError, JSONDecodeError, ValueError, ...
      if errors.is_out_of_memory(e) or isinstance(e, errors.TrueNegsError):
        raise
      lost = self._steps and re.search(LOST, _join_messages(e))
      if reason := lost[0] if lost else _find_reason(e, errors.UNREADABLE):
        raise DiskError(
          f"Checkpoint '{folder}' cannot be read: {reason}. It may be intact."
          " Run the same command again. To use the step before instead, rename"
          f" the folder to '{folder.name}{DAMAGED}'."
        ) from e
      first_line = (str(e).splitlines() or [""])[0][:150].rstrip(".")
      reason = f"{type(e).__name__}: {first_line}"
      message = f"Checkpoint '{folder}' cannot be restored ({reason})."
      if not (folder / COMMITTED if self._steps else folder).exists():
        message = f"Checkpoint '{folder}' was deleted by its run."
      raise errors.DamagedStepError(message) from e

  def _disk_error(self, e: Exception) -> DiskError:
    if self.lease.error:
      return self.lease.error
    fix, reason = "", str(e).partition("\n")[0].rstrip(".")
    if full := _find_reason(e, FULL_DISK):
      fix, reason = " Free some disk space.", full
    elif isinstance(e, TimeoutError):
      reason = "20 minutes passed, or the clock was changed meanwhile"
    if not self._steps:
      with contextlib.suppress(OSError):
        self._manager.reload()  # it has dropped steps that it did not delete
    return DiskError(
      f"A checkpoint could not be written to '{self.folder}': {reason}. Earlier"
      f" checkpoints are intact (steps: {self.steps()}).{fix} If the run ends,"
      " the same command resumes it."
    )


def _read_description(folder: pathlib.Path) -> _Description:
  path = folder / "run" / "metadata"
  saved = files.parse_json(files.read_file(path), strict=False)
  sha256 = saved.pop("sha256", None)
  if sha256 != _hash_json(saved):
    raise ValueError("its description does not match its checksum")
  return _Description(**saved)


def _find_reason(e: BaseException | None, numbers: Sequence[int]) -> str:
  """Returns the words of the system in a library's messages, or ""."""
  text = _join_messages(e)
  return next((x for x in map(os.strerror, numbers) if x in text), "")


def _join_messages(e: BaseException | None) -> str:
  text = ""
  while e:  # TensorStore's words are in the cause of Orbax's error
    text, e = f"{text}\n{e}", e.__cause__ or e.__context__
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


def _list_types(tree: Any) -> list[tuple]:
  return [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]


def _hash_json(value: Any) -> str:
  return files.short_sha256(json.dumps(value, sort_keys=True))


def _make_abstract(tree: Any) -> Any:
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree
  )
