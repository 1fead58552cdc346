"""Stands in for TensorFlow's reader of checkpoints, and for its files."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from truenegs_jax.weights.formats import google_tf1


def write(prefix: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Files of a checkpoint's names, which `Reader` reads."""
  prefix.parent.mkdir(parents=True, exist_ok=True)
  prefix.with_name(f"{prefix.name}.index").touch()
  with prefix.with_name(f"{prefix.name}.data-00000-of-00001").open("wb") as f:
    np.savez(f, **arrays)


class Reader:
  """In place of `google_tf1.load_checkpoint`."""

  def __init__(self, prefix: pathlib.Path):
    with np.load(f"{prefix}.data-00000-of-00001") as file:
      self._arrays = dict(file)

  def get_variable_to_shape_map(self) -> dict[str, list[int]]:
    """Name -> shape of every variable."""
    return {name: list(x.shape) for name, x in self._arrays.items()}

  def get_tensor(self, name: str) -> np.ndarray:
    """The array of a name."""
    return self._arrays[name]


def write_model(prefix: pathlib.Path, model: Any, params: Any) -> None:
  """A checkpoint of a pre-trained model, by Google's names."""
  flat = traverse_util.flatten_dict(params, sep="/")
  arrays = {}
  for role in model.roles:
    for ours, name in google_tf1.name_table(model, role).items():
      transposed = name == google_tf1.TRANSPOSED
      arrays[name] = flat[ours].T if transposed else flat[ours]
  write(prefix, arrays)
