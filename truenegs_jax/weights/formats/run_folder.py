"""Runs of ours as a place to start from: their weights, nothing else of them.

`WORKDIR` stands for its newest step, `WORKDIR/checkpoints/STEP` for any.
"""

import functools
import pathlib
from typing import Any

import numpy as np
from flax import traverse_util

from truenegs_jax.models import pretrain
from truenegs_jax.weights.formats import hf_folder, hf_names
from truenegs_jax.weights.formats.network import Arrays, Network
from truenegs_jax.workdir import files, saved_model


def open_networks(
  workdir: pathlib.Path, step: int | None
) -> dict[str, Network]:
  """The networks of a run by their roles, in the order of its model.

  Args:
    step: a saved one; None for the newest.

  Raises:
    InputError, CheckpointError: as `saved.open_run` and `saved.describe`.
  """
  with saved_model.open_run(workdir) as checkpoints:
    newest = checkpoints.steps()[-1]
    found = saved_model.read_saved_model(
      checkpoints, newest if step is None else step
    )
  model, place = found.model, f"{workdir}, step {found.step:,}"
  shapes_of_all = pretrain.param_shapes(model)

  @functools.cache  # the networks of a pair are saved as one
  def params() -> dict[str, np.ndarray]:
    with saved_model.open_run(workdir) as checkpoints:
      return _flat(saved_model.read_params(checkpoints, model, found.step))

  networks = {}
  for role in model.roles:
    shapes = _flat(pretrain.select_params(shapes_of_all, role))
    networks[role] = Network(
      role=role,
      location=place,
      arrays=Arrays(
        path=workdir,
        shapes={name: x.shape for name, x in shapes.items()},
        dtypes={name: str(x.dtype) for name, x in shapes.items()},
        read=lambda name: params()[name],
        release=params.cache_clear,
      ),
      fields=hf_folder.model_config(model, role, pad=found.tokenizer.pad),
      name_table=_name_table,
      transposed_kernels=False,
      vocabulary=workdir / files.VOCABULARY,
      lowercase=found.tokenizer.lowercase,
      strip_accents=found.tokenizer.strip_accents,
      backbone=model.backbone,
    )
  return networks


def _name_table(model: hf_names.Model, role: str) -> dict[str, str]:
  shapes_of_all = pretrain.param_shapes(model)
  if len(model.roles) > 1:
    shapes_of_all = pretrain.select_params(shapes_of_all, role)
  return {name: name for name in _flat(shapes_of_all)}


def _flat(tree: Any) -> dict[str, Any]:
  return traverse_util.flatten_dict(tree, sep="/")
