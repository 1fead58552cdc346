"""Reads the networks of a pre-training run of this project.

`WORKDIR` means the newest saved step, `WORKDIR/checkpoints/STEP` a given one.
As in exports, the logits are those of the loss: the temperature is folded.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from flax import traverse_util

from truenegs_jax.models import pretrain
from truenegs_jax.weights.formats import hf_folder, hf_names
from truenegs_jax.weights.formats.network import Arrays, Network
from truenegs_jax.workdir import files, saved_model


def open_networks(
  workdir: pathlib.Path, step: int | None, report: Callable[[str], object]
) -> dict[str, Network]:
  """Returns the networks of a run by role, in the order of its model.

  Args:
    step: a saved step; None for the newest that is undamaged.
    report: receives a line about each damaged step.

  Raises:
    InputError, CheckpointError: as `saved_model.open_run` and
      `saved_model.load`.
  """
  report = functools.cache(report)  # a damaged step once
  with saved_model.open_run(workdir) as checkpoints:
    if step is None:
      saved = saved_model.read_newest_model(checkpoints, report)
    else:
      saved = saved_model.read_saved_model(checkpoints, step)
  model, tokenizer = saved.model, saved.tokenizer
  all_shapes = pretrain.param_shapes(model)

  @functools.cache  # both networks of a pair are in one checkpoint
  def params() -> dict[str, np.ndarray]:
    with saved_model.open_run(workdir) as checkpoints:
      _, tree = saved_model.load(checkpoints, step, report=report)
    return _flatten(pretrain.fold_temperature(tree, model))

  location = f"'{workdir}'" + ("" if step is None else f" at step {step:,}")
  networks = {}
  for role in model.roles:
    shapes = _flatten(pretrain.select_params(all_shapes, role))
    networks[role] = Network(
      role=role,
      location=location,
      arrays=Arrays(
        path=workdir,
        shapes={name: x.shape for name, x in shapes.items()},
        dtypes={name: str(x.dtype) for name, x in shapes.items()},
        read=lambda name: params()[name],
        release=params.cache_clear,
      ),
      fields=hf_folder.model_config(model, role, pad=tokenizer.pad),
      name_table=_name_table,
      transposed_kernels=False,
      vocabulary=workdir / files.VOCABULARY,
      lowercase=tokenizer.lowercase,
      strip_accents=tokenizer.strip_accents,
      backbone=model.backbone,
    )
  return networks


def _name_table(model: hf_names.Model, role: str) -> dict[str, str]:
  shapes = pretrain.param_shapes(model)
  if len(model.roles) > 1:
    shapes = pretrain.select_params(shapes, role)
  return {name: name for name in _flatten(shapes)}


def _flatten(tree: dict[str, Any]) -> dict[str, Any]:
  return traverse_util.flatten_dict(tree, sep="/")
