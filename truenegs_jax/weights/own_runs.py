"""Runs of ours as a place to start from: their weights, nothing else of them.

`WORKDIR` stands for its newest step, `WORKDIR/checkpoints/STEP` for any.
"""

import functools
import pathlib
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from truenegs_jax import huggingface, saved
from truenegs_jax.models import pretrain
from truenegs_jax.weights.arrays import Arrays
from truenegs_jax.weights.networks import Network


def is_run(path: pathlib.Path) -> bool:
  """Whether `path` is a workdir or one of its saved steps."""
  return (path / "checkpoints").is_dir() or _is_step(path)


def open_networks(path: pathlib.Path) -> dict[str, Network]:
  """The networks of a run by their roles, in the order of its model.

  Raises:
    InputError, CheckpointError: as `saved.open_run` and `saved.describe`.
  """
  workdir = path.parent.parent if _is_step(path) else path
  with saved.open_run(workdir) as checkpoints:
    newest = checkpoints.steps()[-1]
    found = saved.describe(
      checkpoints, int(path.name) if _is_step(path) else newest
    )
  model, place = found.model, f"{workdir}, step {found.step:,}"
  whole = jax.eval_shape(lambda: pretrain.init_params(model, jax.random.key(0)))

  @functools.cache  # the networks of a pair are saved as one
  def params() -> dict[str, np.ndarray]:
    with saved.open_run(workdir) as checkpoints:
      return _flat(saved.read_params(checkpoints, model, found.step))

  networks = {}
  for role in model.roles:
    shapes = _flat(pretrain.role_params(whole, role))
    networks[role] = Network(
      role=role,
      place=place,
      arrays=Arrays(
        path=workdir,
        shapes={name: x.shape for name, x in shapes.items()},
        dtypes={name: str(x.dtype) for name, x in shapes.items()},
        read=lambda name: params()[name],
      ),
      fields=huggingface.model_config(model, role, pad=found.tokenizer.pad),
      name_table=_name_table,
      turned=False,
      vocabulary=workdir / "vocab.txt",
      lowercase=found.tokenizer.lowercase,
      strip_accents=found.tokenizer.strip_accents,
      backbone=model.backbone,
    )
  return networks


def _is_step(path: pathlib.Path) -> bool:
  return path.name.isdigit() and path.parent.name == "checkpoints"


def _name_table(model: pretrain.Model, role: str) -> dict[str, str]:
  params = jax.eval_shape(
    lambda: pretrain.init_params(model, jax.random.key(0))
  )
  return {name: name for name in _flat(pretrain.role_params(params, role))}


def _flat(tree: Any) -> dict[str, Any]:
  return traverse_util.flatten_dict(tree, sep="/")
