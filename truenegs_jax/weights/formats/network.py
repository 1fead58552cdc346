"""A network whose weights lie on the disk, before any of them is read."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats import hf_names


@dataclasses.dataclass(frozen=True)
class Arrays:
  """What a file or several hold.

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
    place: what the user would call it, for messages.
    arrays: its own, and no other's.
    fields: what Hugging Face's `config.json` says of it, nothing left out.
    name_table: path in our tree -> name in `arrays`, of a model and a role.
    turned: kernels are [out, in] there, as Hugging Face's; ours are [in, out].
    tied: names of arrays that may be there once more -> path in our tree.
    vocabulary: the file of it that lies beside the weights, if any.
    lowercase, strip_accents: what it does to its text; None where nothing
      says so.
    backbone: the file of truenegs_jax/models that it is a network of.
  """

  role: str
  place: str
  arrays: Arrays
  fields: Mapping[str, Any]
  name_table: Callable[[hf_names.Model, str], Mapping[str, str]]
  turned: bool
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
