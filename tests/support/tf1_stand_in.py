"""Stand-in for TensorFlow's checkpoint files and their reader."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from truenegs_jax.weights.formats import google_tf1


def write_checkpoint(
  prefix: pathlib.Path, arrays: Mapping[str, np.ndarray]
) -> None:
  """Writes files with the names of a checkpoint's, for `Reader`."""
  prefix.parent.mkdir(parents=True, exist_ok=True)
  prefix.with_name(f"{prefix.name}.index").touch()
  with prefix.with_name(f"{prefix.name}.data-00000-of-00001").open("wb") as f:
    np.savez(f, **arrays)


class Reader:
  """Replaces the reader that `google_tf1.load_checkpoint` returns."""

  def __init__(self, prefix: pathlib.Path):
    with np.load(f"{prefix}.data-00000-of-00001") as file:
      self._arrays = dict(file)

  def get_variable_to_shape_map(self) -> dict[str, list[int]]:
    """Returns the shape of every variable by name."""
    return {name: list(x.shape) for name, x in self._arrays.items()}

  def get_tensor(self, name: str) -> np.ndarray:
    """Returns the array of a name."""
    return self._arrays[name]


def write_model(prefix: pathlib.Path, model: Any, params: Any) -> None:
  """Writes a checkpoint of a pre-trained model with Google's names."""
  flat = traverse_util.flatten_dict(params, sep="/")
  arrays = {}
  for role in model.roles:
    for path, name in google_tf1.name_table(model, role).items():
      is_transposed = name == google_tf1.TRANSPOSED
      arrays[name] = flat[path].T if is_transposed else flat[path]
  write_checkpoint(prefix, arrays)
