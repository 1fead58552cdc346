"""Helpers that write and edit tiny networks in Hugging Face's format."""

import contextlib
import json
import pathlib
import shlex
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from support import tiny
from support.commands import type_line
from support.tokenizer_files import write_vocabulary
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.weights import export_model, find, load, match
from truenegs_jax.workdir import checkpoints

TOKENIZER = make_tokenizer(
  [*SPECIALS, *(f"w{i}" for i in range(len(SPECIALS), tiny.V))], lowercase=True
)


def random_params(model: Any, seed: int = 0) -> dict[str, Any]:
  """Returns random f32 parameters, scales of norms near 1, others near 0."""
  rng = np.random.default_rng(seed)

  def draw(path: Any, x: jax.ShapeDtypeStruct) -> np.ndarray:
    mean = 1.0 if path[-1].key == "scale" else 0.0
    return np.float32(rng.normal(mean, 0.1, x.shape))

  return jax.tree_util.tree_map_with_path(draw, pretrain.param_shapes(model))


def write_export(
  folder: pathlib.Path, model: Any, params: Any = None, **kwargs: Any
) -> pathlib.Path:
  """Writes a subfolder for each role, as an export does; returns `folder`."""
  params = random_params(model) if params is None else params
  tokenizer = kwargs.pop("tokenizer", TOKENIZER)
  for role in kwargs.pop("roles", None) or model.roles:
    (folder / role).mkdir(parents=True)
    export_model.write_model(
      folder / role, params, model, role, tokenizer, **kwargs
    )
  return folder


def run_export(*words: str | pathlib.Path) -> tuple[int, str]:
  """Types the command `export`; returns exit code and output."""
  return type_line(f"truenegs export {shlex.join(map(str, words))}")


def read_tensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Reads the tensors of a folder by name."""
  return safetensors.numpy.load_file(folder / "model.safetensors")


def _write_tensors(folder: pathlib.Path, tensors: dict[str, Any]) -> None:
  safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def edit_tensors(folder: pathlib.Path, changed: dict[str, Any]) -> None:
  """Replaces or adds tensors of a folder; None removes one."""
  tensors = {**read_tensors(folder), **changed}
  kept = {name: x for name, x in tensors.items() if x is not None}
  _write_tensors(folder, kept)


def strip_prefix(folder: pathlib.Path) -> None:
  """Keeps only the encoder, with names without "bert." or "electra."."""
  bare = {
    name.split(".", 1)[1]: x
    for name, x in read_tensors(folder).items()
    if name.startswith(("bert.", "electra."))
  }
  _write_tensors(folder, bare)


def edit_config(folder: pathlib.Path, changed: dict[str, Any]) -> None:
  """Replaces or adds fields of a config.json; None removes one."""
  path = folder / "config.json"
  fields = {**json.loads(path.read_text()), **changed}
  kept = {name: x for name, x in fields.items() if x is not None}
  path.write_text(json.dumps(kept))


def write_run(
  folder: pathlib.Path,
  config: Any,
  params_by_step: Mapping[int, Any],
  tokenizer: Any = TOKENIZER,
) -> pathlib.Path:
  """Writes a workdir with a checkpoint for each step; returns `folder`."""
  described = {
    "config": json.loads(config.to_json()),
    "fingerprints": {"vocabulary": tokenizer.fingerprint},
  }
  writer = checkpoints.Checkpoints(folder / "checkpoints")
  with contextlib.closing(writer):
    for step, params in params_by_step.items():
      writer.save(step, {"params": params}, described)
    writer.wait()
  write_vocabulary(tokenizer.vocab, folder / "vocab.txt")
  return folder


def load_params(
  init: Any,
  model: Any,
  tokenizer: Any = TOKENIZER,
  skip: str = "",
  **kwargs: Any,
) -> tuple[dict[str, Any], list[str]]:
  """Loads weights; returns parameters and reported lines."""
  lines: list[str] = []
  networks = find.Weights(str(init)).for_roles(model.roles)
  matched = match.match_weights(networks, model, tokenizer, init_skip=skip)
  return load.load_params(matched, report=lines.append, **kwargs), lines


def assert_same_tree(a: Any, b: Any) -> None:
  """Asserts that two trees have the same structure and equal arrays."""
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)
