"""A network on disk before its weights are read: files, arrays, description."""

import dataclasses
import pathlib
import stat
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from truenegs_jax.runtime.errors import InputError, printable


@dataclasses.dataclass(frozen=True)
class CheckedFile:
  """A file of weights, which may come from anybody.

  Attributes:
    path: its name in messages.
    target: the file itself, links resolved.
    status: device, inode, size and time; `check_unchanged` compares them.
  """

  path: pathlib.Path
  target: pathlib.Path
  status: tuple[int, ...]

  def check_unchanged(self) -> None:
    """Raises ValueError or OSError if the file is another one by now."""
    if _status(self.target) != self.status:
      raise ValueError("it has changed since it was first looked at")


def find_file(folder: pathlib.Path, name: str) -> CheckedFile:
  """A file of a folder; links may not lead out of that.

  In the cache of the hub, whose folders `models--X--Y/snapshots/REV` hold links
  to `models--X--Y/blobs`, they may lead anywhere in `models--X--Y`.

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
    return CheckedFile(path, target, _status(target))
  except (OSError, ValueError, RuntimeError) as e:  # links in a circle
    line = f"init: {path}: {error_text(e)}.".replace("\n", " ")
    raise InputError(printable(ValueError(line))) from e


def error_text(error: Exception) -> str:
  """The text of an error, or its name where it has none."""
  return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _status(target: pathlib.Path) -> tuple[int, ...]:
  s = target.stat()
  if not stat.S_ISREG(s.st_mode):  # opening a pipe would wait for ever
    raise ValueError("not a file")
  return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns


@dataclasses.dataclass(frozen=True)
class Arrays:
  """The arrays of a file, or of several.

  Attributes:
    path: for messages: the file, or the folder of several.
    shapes: by name; only looked up in the headers, so that all can be checked
      before anything is read.
    dtypes: by name, as numpy calls them: "float32", "bfloat16", "int64", ...
    read: gives the array of a name, of its dtype and shape.
    release: frees what `read` keeps in memory; `read` works again afterwards.
  """

  path: pathlib.Path
  shapes: Mapping[str, tuple[int, ...]]
  dtypes: Mapping[str, str]
  read: Callable[[str], np.ndarray]
  release: Callable[[], None] = lambda: None


@dataclasses.dataclass(frozen=True)
class Network:
  """The weights of one network, and what is known of them.

  Attributes:
    role: as in `Model.roles`: "discriminator", "generator" or "bert".
    location: what the user would call it, for messages.
    arrays: its own, and no other's.
    fields: what Hugging Face's `config.json` says of it, nothing left out.
    name_table: path in our tree -> name in `arrays`, of a model and a role.
    transposed_kernels: kernels are [out, in] there, as Hugging Face's; ours are
      [in, out].
    tied: names of arrays that may be there once more -> path in our tree.
    vocabulary: the file of it that lies beside the weights, if any.
    lowercase, strip_accents: what it does to its text; None where nothing
      says so.
    backbone: the file of truenegs_jax/models that it is a network of.
  """

  role: str
  location: str
  arrays: Arrays
  fields: Mapping[str, Any]
  name_table: Callable[[Any, str], Mapping[str, str]]
  transposed_kernels: bool
  vocabulary: pathlib.Path | None
  lowercase: bool | None
  strip_accents: bool | None = None
  tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
  backbone: str = "encoder"


def check_layers(fields: Mapping[str, Any], arrays: Arrays) -> None:
  """Refuses a config of so many layers that the arrays cannot be theirs."""
  layers = fields["num_hidden_layers"]
  if layers > len(arrays.shapes):
    raise InputError(
      f"init: {arrays.path} has {len(arrays.shapes)} arrays, and its config"
      f" says {layers} layers; take the config that belongs to the weights."
    )
