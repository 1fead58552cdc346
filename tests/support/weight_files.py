"""Tiny networks and folders of their weights, in Hugging Face's format."""

import contextlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from support import tiny
from truenegs_jax.data.tokens.tokenizer import (
  SPECIALS,
  make_tokenizer,
  write_vocabulary,
)
from truenegs_jax.models import pretrain
from truenegs_jax.weights.formats import hf_folder
from truenegs_jax.workdir import checkpoints

TOKENIZER = make_tokenizer(
  [*SPECIALS, *(f"w{i}" for i in range(len(SPECIALS), tiny.V))], lowercase=True
)


def random_params(model: Any, seed: int = 0) -> dict[str, Any]:
  """f32 parameters around 0, norms' scales around 1; none is either."""
  rng = np.random.default_rng(seed)
  around = lambda path: 1.0 if path[-1].key == "scale" else 0.0
  return jax.tree_util.tree_map_with_path(
    lambda path, x: np.float32(rng.normal(around(path), 0.1, x.shape)),
    pretrain.param_shapes(model),
  )


def write(
  folder: pathlib.Path, model: Any, params: Any = None, **kwargs: Any
) -> pathlib.Path:
  """A folder for each role, as an export has them; returns `folder`."""
  params = random_params(model) if params is None else params
  tokenizer = kwargs.pop("tokenizer", TOKENIZER)
  for role in model.roles:
    (folder / role).mkdir(parents=True)
    hf_folder.write_model(
      folder / role, params, model, role, tokenizer, **kwargs
    )
  return folder


def read(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of a folder by name."""
  return safetensors.numpy.load_file(folder / "model.safetensors")


def edit(folder: pathlib.Path, changed: dict[str, Any]) -> None:
  """Puts arrays into a folder's file, by name; None takes one out."""
  tensors = {**read(folder), **changed}
  kept = {name: x for name, x in tensors.items() if x is not None}
  safetensors.numpy.save_file(kept, folder / "model.safetensors")


def strip_prefix(folder: pathlib.Path) -> None:
  """Makes it an encoder alone, names without "bert." or "electra."."""
  bare = {
    name.split(".", 1)[1]: x
    for name, x in read(folder).items()
    if name.startswith(("bert.", "electra."))
  }
  safetensors.numpy.save_file(bare, folder / "model.safetensors")


def edit_config(folder: pathlib.Path, changed: dict[str, Any]) -> None:
  """Puts fields into a config.json; None takes one out."""
  path = folder / "config.json"
  fields = {**json.loads(path.read_text()), **changed}
  kept = {name: x for name, x in fields.items() if x is not None}
  path.write_text(json.dumps(kept))


def write_run(
  folder: pathlib.Path, config: Any, saved: Mapping[int, Any]
) -> pathlib.Path:
  """A workdir whose run has saved these parameters by step."""
  described = {
    "config": json.loads(config.to_json()),
    "fingerprints": {"vocabulary": TOKENIZER.fingerprint},
  }
  saving = checkpoints.Checkpoints(folder / "checkpoints")
  with contextlib.closing(saving):
    for step, params in saved.items():
      saving.save(step, {"params": params}, described)
    saving.wait()
  write_vocabulary(TOKENIZER.vocab, folder / "vocab.txt")
  return folder


def assert_same(a: Any, b: Any) -> None:
  """Bit for bit, the same tree."""
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)
