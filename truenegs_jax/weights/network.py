"""Describes a network on disk before its weights are read."""

import dataclasses
import pathlib
import stat
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from truenegs_jax.runtime.errors import InputError, printable

# Sizes of a variant -> fields of Hugging Face's config.json.
FIELDS = {
  "embedding_size": "embedding_size",
  "width": "hidden_size",
  "layers": "num_hidden_layers",
  "heads": "num_attention_heads",
  "ffn": "intermediate_size",
  "type_vocab_size": "type_vocab_size",
}


def find_file(folder: pathlib.Path, name: str) -> pathlib.Path:
  """Finds a file of a folder; links must not lead out of the folder.

  In the cache of the hub, folders `models--X--Y/snapshots/REVISION` hold links
  to `models--X--Y/blobs`. There a link may lead anywhere in `models--X--Y`.
  """
  path = folder / name
  try:
    root, target = folder.resolve(), path.resolve()
    for parent in root.parents:
      repository = parent.parent
      if parent.name == "snapshots" and repository.name.startswith("models--"):
        root = repository
        break
    if not target.is_relative_to(root):
      raise ValueError(
        f"it is a link that leads out of the folder, to '{target}'. Copy that"
        " file into the folder"
      )
    # Opening a pipe would wait forever.
    if not stat.S_ISREG(target.stat().st_mode):
      raise ValueError("it is not a file")
    return path
  except (OSError, ValueError, RuntimeError) as e:  # RuntimeError: link loops
    raise read_error(path, e) from e


def find_optional(folder: pathlib.Path, *names: str) -> pathlib.Path | None:
  """Finds the first of several files that exists; None if there is none."""
  for name in names:
    if (folder / name).exists():
      return find_file(folder, name)
  return None


def read_error(
  path: pathlib.Path, problem: Exception | str, fix: str = ""
) -> InputError:
  """Returns the error for a file that cannot be read; escapes its text."""
  if isinstance(problem, Exception):
    strerror = getattr(problem, "strerror", None)  # without number and path
    problem = strerror or str(problem) or type(problem).__name__
  line = f"init: '{path}' cannot be read: {problem[:20_000]}. {fix}".strip()
  return InputError(printable(ValueError(line.replace("\n", " "))))


@dataclasses.dataclass(frozen=True)
class Arrays:
  """Named arrays of one or several files, read one by one on request.

  Attributes:
    path: the file, or the folder of several files, for messages.
    shapes: by name, from the files' headers, so that everything can be checked
      before an array is read.
    dtypes: by name, NumPy's names: "float32", "bfloat16", "int64", ...
    read: returns the array of a name, with its dtype and shape.
    release: frees what `read` caches in memory; `read` still works afterwards.
  """

  path: pathlib.Path
  shapes: Mapping[str, tuple[int, ...]]
  dtypes: Mapping[str, str]
  read: Callable[[str], np.ndarray]
  release: Callable[[], None] = lambda: None


@dataclasses.dataclass(frozen=True)
class Network:
  """The weights of one network and their description.

  Attributes:
    role: "discriminator", "generator" or "bert".
    location: where the weights are, for messages, with the path in quotes.
    arrays: the arrays of this network only.
    fields: the fields of Hugging Face's `config.json`, with defaults filled in.
    name_table: maps (model, role) to {path in our tree: name in `arrays`}.
    transposed_kernels: whether kernels are stored as [out, in], like Hugging
      Face's; ours are [in, out].
    tied: name of an array that may be stored a second time -> path in our tree.
    vocabulary: the vocabulary file next to the weights, if there is one.
    lowercase, strip_accents: how text is normalized; None if unknown.
    backbone: the backbone, a module of truenegs_jax/models.
  """

  role: str
  location: str
  arrays: Arrays
  fields: Mapping[str, Any]
  name_table: Callable[..., Mapping[str, str]]
  transposed_kernels: bool
  vocabulary: pathlib.Path | None
  lowercase: bool | None
  strip_accents: bool | None = None
  tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
  backbone: str = "encoder"

  def require_vocabulary(self) -> str:
    """Returns the path of the vocabulary file, or raises an InputError."""
    if self.vocabulary is None:
      raise InputError(
        f"init: {self.location} has no vocabulary file. Set"
        " --config.data.vocab=FILE."
      )
    return str(self.vocabulary)

  @property
  def variant(self) -> str:
    """The sizes, in the form that `model.variant` accepts."""
    fields = dict(self.fields)
    if self.role == "bert":  # its embeddings are as wide as the model
      fields["embedding_size"] = fields["hidden_size"]
    return " ".join(f"{size}={fields[name]}" for size, name in FIELDS.items())
