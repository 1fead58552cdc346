"""Weights to start from: folders in Hugging Face's format.

ELECTRA's pair is a folder with `discriminator/` and `generator/`, as an export
has them; BERT is a folder with the files themselves, or with `bert/`. What is
read is what transformers writes: `config.json` and one `model.safetensors`.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import safetensors
from flax import traverse_util

from truenegs_jax import huggingface, tensor_names
from truenegs_jax.data.tokenizer import load_tokenizer
from truenegs_jax.errors import InputError, printable
from truenegs_jax.models import pretrain

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FLOATS = ("F32", "F16", "BF16")
# Of the largest weight: the two copies of a pair's embeddings are one array.
ROUNDING = 1e-6


def load_params(
  path: str,
  model: pretrain.Model,
  *,
  vocab: Sequence[str],
  say: Callable[[str], Any] = print,
) -> dict[str, Any]:
  """The parameters of a whole model, f32 arrays of numpy, from a folder.

  Everything is checked against the model before any weight is read. Of a pair,
  the shared embeddings are the discriminator's.

  Args:
    path: a folder, on this machine.
    model: what the parameters are to fit, all of them.
    vocab: the run's. A `vocab.txt` beside the weights has to be the same: the
      rows of a table say nothing of which words they are.
    say: told what is in the folder and was left out.

  Raises:
    InputError: no such folder or files; other sizes than the model's, with
      every array that is missing, unexpected or of another shape; a pair whose
      embeddings differ; an output table that is not the word table; weights
      that are not finite; a backbone that Hugging Face does not have.
  """
  folders = find(path, model)
  problems = []
  for role, found in folders.items():
    _check_vocabulary(found, vocab)
    if lines := _misfits(found, model, role):
      problems += [f"{found} does not fit the model:", *lines]
  if problems:
    raise InputError(
      "init: "
      + "\n  ".join(problems)
      + f"\nGive a folder of this size, or change the model. {_way_out(model)}"
    )
  params: dict[str, Any] = {}
  for role, found in folders.items():
    read = _read(found / WEIGHTS, model, role, say)
    if params:
      _check_same_embeddings(path, params["embeddings"], read["embeddings"])
    params = read | params
  return params


def find(path: str, model: pretrain.Model) -> dict[str, pathlib.Path]:
  """The folder of each network's files; InputError as in `load_params`."""
  huggingface.check_backbone(model)
  folder = pathlib.Path(path).expanduser()
  return {role: _find(folder, model, role) for role in model.roles}


def check_fields(path: str, model: pretrain.Model) -> None:
  """Refuses, before the vocabulary is known, a folder of another size.

  Raises:
    InputError: as `load_params`, for what the config.json files say.
  """
  lines = [
    line
    for role, found in find(path, model).items()
    for line in huggingface.config_misfits(found / CONFIG, model, role)
    if ": vocab_size " not in line
  ]
  if lines:
    raise InputError(
      f"init: {path} does not fit the model:\n  "
      + "\n  ".join(lines)
      + "\nGive a folder of this size, or change the model."
    )


def _find(
  folder: pathlib.Path, model: pretrain.Model, role: str
) -> pathlib.Path:
  """The folder of one network's files; InputError if they are not there."""
  found = folder / role
  if role == "bert" and not found.is_dir():
    found = folder
  if not found.is_dir():
    raise InputError(f"init: there is no folder {found}. {_way_out(model)}")
  absent = [name for name in (CONFIG, WEIGHTS) if not (found / name).is_file()]
  if absent:
    raise InputError(
      f"init: {found} holds no {' and no '.join(absent)}. {_way_out(model)}"
    )
  return found


def _check_vocabulary(folder: pathlib.Path, vocab: Sequence[str]) -> None:
  """Beside the weights, as transformers or we write it; it may not be there."""
  names = ("vocab.txt", "tokenizer.json")
  path = next((folder / n for n in names if (folder / n).is_file()), None)
  if path and load_tokenizer(str(path), lowercase=True).vocab != tuple(vocab):
    raise InputError(
      f"init: {path} is not the run's vocabulary, in which the rows of the word"
      f" table would be other words; take that of the weights:"
      f" --config.data.vocab={path}."
    )


def _way_out(model: pretrain.Model) -> str:
  """How to come by a folder that can be read."""
  lines = [
    f'{tensor_names.architecture(model, role)}.from_pretrained("NAME")'
    f'.save_pretrained("FOLDER{"" if role == "bert" else "/" + role}")'
    for role in model.roles
  ]
  return (
    "No name is looked up on the Hugging Face hub from here, and older formats"
    " are not read: where there is internet, download with transformers and"
    " give --config.init=FOLDER:\n  " + "\n  ".join(lines)
  )


def _misfits(
  folder: pathlib.Path, model: pretrain.Model, role: str
) -> list[str]:
  """One line for each field and each array that is not the model's."""
  fields = huggingface.config_misfits(folder / CONFIG, model, role)
  return fields + _array_misfits(folder / WEIGHTS, model, role)


def _array_misfits(
  path: pathlib.Path, model: pretrain.Model, role: str
) -> list[str]:
  expected = _shapes(model, role)
  tied = {
    theirs: expected[tensor_names.name_table(model, role)[ours]]
    for theirs, ours in tensor_names.NETWORKS[role].tied.items()
  }
  ignored = _left_out(model)
  lines = []
  with _open(path) as file:
    names = set(file.keys())
    for name in sorted(names - ignored):
      given = file.get_slice(name)
      shape, dtype = tuple(given.get_shape()), given.get_dtype()
      wanted = expected.get(name, tied.get(name))
      if wanted is None:
        lines.append(f"{name} {shape} is not in the model")
      elif shape != wanted:
        lines.append(f"{name} is {shape}, the model's {wanted}")
      elif dtype not in FLOATS:
        lines.append(f"{name} is of type {dtype}, not {', '.join(FLOATS)}")
  lines += [
    f"{name} is missing, the model's is {shape}"
    for name, shape in sorted(expected.items())
    if name not in names
  ]
  if names.isdisjoint(_pooled_names()) and tensor_names.has_pooled(model):
    lines.append("there is no pooler: --config.model.pooler=False goes without")
  return lines


def _shapes(model: pretrain.Model, role: str) -> dict[str, tuple[int, ...]]:
  """Hugging Face's name -> shape there, for every tensor of a file."""
  shapes = jax.eval_shape(
    lambda: pretrain.init_params(model, jax.random.key(0))
  )
  flat = traverse_util.flatten_dict(shapes, sep="/")
  return {
    theirs: tensor_names.turned_shape(ours, flat[ours].shape)
    for ours, theirs in tensor_names.name_table(model, role).items()
  }


def _read(
  path: pathlib.Path,
  model: pretrain.Model,
  role: str,
  say: Callable[[str], Any],
) -> dict[str, Any]:
  """One network's parameters, from a file that was found to fit."""
  table = tensor_names.name_table(model, role)
  tied = tensor_names.NETWORKS[role].tied
  with _open(path) as file:
    names = set(file.keys())
    tensors = {
      name: _finite(path, name, file.get_tensor(name))
      for name in table.values()
    }
    for name in sorted(names & set(tied)):
      other = table[tied[name]]
      worst = _largest_difference(file.get_tensor(name), tensors[other])
      if worst != 0:
        raise InputError(
          f"init: {path}: {name} differs from {other} by up to {worst:.3g};"
          " here the two are one array, so one of them would be lost."
        )
  left = sorted(names & _left_out(model))
  if left:
    say(
      f"init: {', '.join(left)} of {path} are left out; to carry them along:"
      " --config.model.pooler=True"
    )
  return tensor_names.from_huggingface(tensors, model, role)


def _check_same_embeddings(
  path: str, first: Mapping[str, Any], second: Mapping[str, Any]
) -> None:
  """The two networks of a pair were trained on one embedding block."""
  second = traverse_util.flatten_dict(second, sep="/")
  for name, x in traverse_util.flatten_dict(first, sep="/").items():
    worst = _largest_difference(x, second[name])
    if worst > ROUNDING * np.abs(x).max():
      raise InputError(
        f"init={path}: discriminator and generator do not share their"
        f" embeddings: embeddings/{name} differs by up to {worst:.3g}. Give two"
        " networks that were trained together."
      )


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float:
  return float(np.abs(np.float32(a) - np.float32(b)).max())


def _finite(path: pathlib.Path, name: str, x: np.ndarray) -> np.ndarray:
  x = x.astype(np.float32)
  if not np.isfinite(x).all():
    raise InputError(
      f"init: {path}: {name} holds {np.count_nonzero(~np.isfinite(x))} values"
      " that are not finite; the file is damaged or its run diverged."
    )
  return x


def _left_out(model: pretrain.Model) -> set[str]:
  """Names that may be there and that this model has no use for."""
  return set() if tensor_names.has_pooled(model) else _pooled_names()


def _pooled_names() -> set[str]:
  return {
    f"{module}.{array}"
    for module in tensor_names.POOLED.values()
    for array in ("weight", "bias")
  }


def _open(path: pathlib.Path) -> Any:
  try:
    return safetensors.safe_open(path, "numpy")
  except (OSError, safetensors.SafetensorError) as e:
    raise InputError(
      f"init: {path} cannot be read as safetensors: {printable(e)}."
    ) from e
