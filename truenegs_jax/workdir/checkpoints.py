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
import itertools
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
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
from truenegs_jax.workdir.checksums import compute_checksums
from truenegs_jax.workdir.lock import Lease

Result = TypeVar("Result")
DAMAGED = ".damaged"  # suffix of the folders of steps that were set aside
# In errors of libraries: a full disk, and files that may be intact. The last
# words are TensorStore's, for a bucket that cannot be reached.
FULL = "|".join(map(os.strerror, FULL_DISK))
UNREADABLE = "|".join(map(os.strerror, errors.UNREADABLE)) + (
  "|(ABORTED|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAVAILABLE): .*"
)
# Numbers the barriers of a run, whose processes have the same calls.
_BARRIERS = itertools.count()


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
      files.check_checkpoint_folder(folder)
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
    if step in (*self._saved, self._pending):
      return
    try:
      self.wait()
    except DiskError:
      if not wait or distributed.process_count() > 1:
        raise
    with self._everywhere():
      self.lease.check()
      self._remove_unfinished()  # of a save that failed in a bucket
    content = {"run": dict(run), "checksums": compute_checksums(state)}
    args = ocp.args.Composite(
      state=ocp.args.StandardSave(state),
      run=ocp.args.JsonSave({**content, "sha256": _hash_json(content)}),
    )
    self._pending = step
    with self._saving():
      self._writer.save(self._path(step).resolve(), args=args)
    if wait:
      self.wait()

  def _check_written(self) -> None:
    """Reads a step before Orbax marks it as finished, in a thread."""
    folder = self._path(self._pending or 0)
    if not is_bucket(folder):
      folder = folder.with_name(f"{folder.name}{files.UNFINISHED}")
    (folder / "state" / "manifest.ocdbt").stat()  # of a save that wrote arrays
    _read_description(folder)
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
      if step not in self._keep_steps:
        # If it fails, the next save tries again.
        with contextlib.suppress(OSError, errors.TrueNegsError):
          if distributed.is_first_process():
            if is_bucket(self.folder):  # where it is removed file by file
              (self._path(step) / files.COMMITTED).unlink(missing_ok=True)
            remove_folder(self._path(step))
          self._saved.remove(step)

  def _remove_unfinished(self) -> None:
    """Removes what saves that failed or were killed have left."""
    if distributed.is_first_process():
      for name, is_finished in files.list_saved(self.folder).items():
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
    name = f"newest step {next(_BARRIERS)}"
    return json.loads(distributed.from_first(name, json.dumps(newest)))

  def _set_aside(self, steps: Mapping[int, str]) -> None:
    """Renames damaged steps, so that the run can save them again."""
    with self._everywhere():
      for step in steps if distributed.is_first_process() else ():
        aside = self.folder / f"{step}{DAMAGED}"
        with disk_errors(aside):
          remove_folder(aside)
          self._path(step).rename(aside)
    self._saved = [x for x in self._saved if x not in steps]

  def read_description(self, step: int) -> dict[str, Any]:
    """Returns the description of a step's run; call it in all processes."""
    with self._everywhere(), self._restoring(step) as folder:
      return _read_description(folder)["run"]

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
    with self._everywhere(), self._restoring(step) as folder:
      expected = _read_description(folder)["checksums"]
      tree = _read_arrays(folder, like)
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
    return distributed.raise_everywhere(f"checkpoints {next(_BARRIERS)}")

  @contextlib.contextmanager
  def _restoring(self, step: int) -> Iterator[pathlib.Path]:
    """Yields the folder of a step.

    Raises DiskError if the disk failed, else DamagedStepError for an error.
    """
    if step not in self._saved:
      raise CheckpointError(
        f"'{self.folder}' has no checkpoint of step {step}. Saved steps:"
        f" {', '.join(map(str, self._saved)) or 'none'}."
      )
    folder = self._path(step)
    try:
      yield folder
    except Exception as e:  # KeyError, JSONDecodeError, ValueError, ...
      if errors.is_out_of_memory(e) or isinstance(e, errors.TrueNegsError):
        raise
      if reason := _find_reason(e, UNREADABLE):
        raise DiskError(
          f"Checkpoint '{folder}' cannot be read: {reason}. It may be intact."
          " Run the same command again. To use the step before instead, rename"
          f" the folder to '{folder.name}{DAMAGED}'."
        ) from e
      reason = f"{type(e).__name__}: {_first_line(e)}"
      message = f"Checkpoint '{folder}' cannot be restored ({reason})."
      if step not in files.list_steps(self.folder):
        message = f"Checkpoint '{folder}' was deleted by its run."
      raise errors.DamagedStepError(message) from e

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
      reason = _first_line(e)
      if isinstance(e, TimeoutError):
        reason = "20 minutes passed, or the clock was changed meanwhile"
      if full := _find_reason(e, FULL):
        reason = f"{full}. Free some disk space"
      raise DiskError(
        f"A checkpoint could not be written to '{self.folder}': {reason}."
        f" Earlier checkpoints are intact (steps: {self._saved}). If the run"
        " ends, the same command resumes it."
      ) from e


def _read_description(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the keys "run" and "checksums"; ValueError if it is damaged."""
  path = folder / "run" / "metadata"
  saved = parse_json(read_file(path), strict=False)
  if saved.pop("sha256", None) != _hash_json(saved):
    raise ValueError("its description does not match its checksum")
  return saved


def _read_arrays(folder: pathlib.Path, like: Any) -> Any:
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


def _find_reason(error: BaseException | None, pattern: str) -> str:
  """Returns the first match in the messages of an error and its causes."""
  while error:  # TensorStore's words are in the cause of Orbax's error
    if match := re.search(pattern, str(error)):
      return match[0]
    error = error.__cause__ or error.__context__
  return ""


def _first_line(error: Exception) -> str:
  return str(error).partition("\n")[0][:150].rstrip(".")


def _hash_json(value: Any) -> str:
  return short_sha256(json.dumps(value, sort_keys=True))
