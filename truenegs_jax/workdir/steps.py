"""The steps of a run in a bucket, or in a local copy of one.

  <folder>/<owner>_<step>   with the object COMMITTED once it is finished

`owner` is that of the run's lease, so that no run writes to a step of another.
`Steps` has the methods of Orbax's CheckpointManager that `Checkpoints` uses,
needs a single request to list, and removes nothing that Orbax did not write.
"""

import contextlib
import pathlib
import re
from collections.abc import Container, Iterable
from typing import Any

from truenegs_jax.runtime.errors import TrueNegsError
from truenegs_jax.runtime.files import remove_folder
from truenegs_jax.runtime.paths import is_bucket

# Folder of a step, in a bucket with the number of its lease; and the file, for
# all but plain numbers, that says that it is finished.
STEP = re.compile(r"(?:(\d+)_)?(\d+)", re.ASCII)
COMMITTED = "commit_success.txt"
LOCK = "lock"  # file of a workdir, locked by the run that uses it


def list_steps(folder: pathlib.Path) -> dict[str, bool]:
  """Returns the names of folders of steps, and whether they are finished."""
  if not is_bucket(folder):  # names of unfinished steps have a suffix
    names = [x.name for x in folder.glob("*") if STEP.fullmatch(x.name)]
    return {x: x.isdigit() or (folder / x / COMMITTED).exists() for x in names}
  objects = set(folder.find())  # type: ignore[attr-defined]
  names = sorted({x.partition("/")[0] for x in objects if "/" in x})
  return {x: f"{x}/{COMMITTED}" in objects for x in names if STEP.fullmatch(x)}


def sort_steps(names: Iterable[str]) -> dict[int, list[str]]:
  """Returns the folders of each step, that of the newest owner first."""
  steps: dict[int, list[str]] = {}
  for match in map(STEP.fullmatch, names):
    if match:
      steps.setdefault(int(match[2]), []).append(match[0])
  for same in steps.values():
    same.sort(key=lambda x: int(x.rpartition("_")[0] or 0), reverse=True)
  return steps


class Steps:
  """The folders of steps, and Orbax's writer of new ones.

  With a writer, the first process removes unfinished steps of earlier runs.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    owner: int,
    keep: int,
    keep_steps: Container[int],
    writer: Any,
    is_first: bool,
  ):
    self._folder, self._writer, self._is_first = folder, writer, is_first
    self._owner, self._keep, self._keep_steps = owner, keep, keep_steps
    self._pending: int | None = None  # the step that is being written
    self._begun = set[int]()
    self.reload()
    if writer:
      self._remove(*self._unfinished)

  def reload(self) -> None:
    """Lists the folder."""
    names = list_steps(self._folder)
    self._names = sort_steps(x for x in names if names[x])
    self._unfinished = [x for x in names if "_" in x and not names[x]]

  def all_steps(self) -> list[int]:
    """Returns the numbers of finished steps and of the one being written."""
    pending = [] if self._pending is None else [self._pending]
    return [*self._names, *pending]

  def path(self, step: int) -> pathlib.Path:
    """Returns the folder of a step, that of its newest owner."""
    written = f"{self._owner}_{step}" if self._owner else f"{step}"
    return self._folder / self._names.get(step, [written])[0]

  def save(self, step: int, args: Any) -> None:
    """Starts writing a step."""
    path = self.path(step)
    if step in self._begun:  # it failed
      self._remove(path.name)
    self._begun.add(step)
    self._writer.save(path, args=args, force=True)
    self._pending = step

  def wait_until_finished(self) -> None:
    """Waits for the step that is being written; then removes older ones."""
    step, self._pending = self._pending, None
    self._writer.wait_until_finished()
    if step is not None:
      self._names[step] = [self.path(step).name]
      for old in sorted(self._names)[: -self._keep]:
        if old not in self._keep_steps:
          with contextlib.suppress(TrueNegsError):  # the next save tries again
            self.delete(old)

  def check_for_errors(self) -> None:
    """Raises errors of the writer, which also raises them when waited for."""
    self._writer.check_for_errors()

  def delete(self, step: int) -> None:
    """Removes a step, also if several owners have written it."""
    self._remove(*self._names[step])
    del self._names[step]

  def close(self) -> None:
    """Waits for the step that is being written."""
    self._writer.close()

  def _remove(self, *names: str) -> None:
    for path in [self._folder / x for x in names if self._is_first]:
      # A step that is being removed is not finished.
      (path / COMMITTED).unlink(missing_ok=True)
      remove_folder(path)
