"""Files of a folder of weights, which may come from anybody."""

import dataclasses
import pathlib
import stat

from truenegs_jax.runtime.errors import InputError, printable


@dataclasses.dataclass(frozen=True)
class File:
  """A file as it was found; one that differs when it is read is refused."""

  path: pathlib.Path  # as it is named in messages
  target: pathlib.Path  # what links lead to
  status: tuple[int, ...]


def find(folder: pathlib.Path, name: str) -> File:
  """A file of a folder; links may not lead out of that.

  But in the cache of the hub, whose folders `models--X--Y/snapshots/REV` hold
  links to `models--X--Y/blobs`, they may lead anywhere in `models--X--Y`.

  Raises:
    InputError: there is none, it is no plain file, or it lies elsewhere.
  """
  path = folder / name
  try:
    home, target = folder.resolve(), path.resolve()
    for parent in home.parents:
      repository = parent.parent
      if parent.name == "snapshots" and repository.name.startswith("models--"):
        home = repository
        break
    if not target.is_relative_to(home):
      raise ValueError(
        f"a link that leads out of the folder, to {target}: copy that file here"
      )
    return File(path, target, status(target))
  except (OSError, ValueError, RuntimeError) as e:  # links in a circle
    line = f"init: {path}: {reason(e)}.".replace("\n", " ")
    raise InputError(printable(ValueError(line))) from e


def status(target: pathlib.Path) -> tuple[int, ...]:
  """What a file is known by again; a ValueError if it is none."""
  s = target.stat()
  if not stat.S_ISREG(s.st_mode):  # to open a pipe would be to wait for ever
    raise ValueError("not a file")
  return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns


def reason(error: Exception) -> str:
  """What an error says, however it does."""
  said = getattr(error, "strerror", None) or str(error)
  return said or type(error).__name__
