"""Reads Google's released TensorFlow 1 checkpoints of ELECTRA and BERT.

Each is a folder as unpacked: the checkpoint, a vocab.txt and, for BERT, a
bert_config.json. TensorFlow reads the arrays. Names are those of
google-research/electra and google-research/bert. The two networks of ELECTRA
share `electra/embeddings`.
Google's BERT code approximates gelu by tanh. Here gelu is exact, as in Hugging
Face's copies of the same weights.
"""

import contextlib
import glob
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from truenegs_jax.models.layers import LAYER_NORM_EPSILON
from truenegs_jax.runtime.errors import InputError, printable
from truenegs_jax.weights.formats import hf_folder, hf_names
from truenegs_jax.weights.formats.network import (
  Arrays,
  Network,
  check_layers,
  find_file,
  find_optional,
  read_error,
)

# Prefixes of the names of each network's arrays; the encoder's prefix is first.
PREFIXES = {
  "discriminator": ("electra/", "discriminator_predictions/"),
  "generator": ("generator/", "generator_predictions/", "electra/embeddings/"),
  "bert": ("bert/", "cls/"),
}
# Regular expressions, applied in order, that turn Hugging Face's names into
# TensorFlow's.
RENAMINGS = (
  (r"\.layer\.", ".layer_"),
  (r"LayerNorm\.weight$", "LayerNorm.gamma"),
  (r"LayerNorm\.bias$", "LayerNorm.beta"),
  (r"_embeddings\.weight$", "_embeddings"),
  (r"\.dense_prediction\.", ".dense_1."),
  (r"generator_lm_head\.bias$", "generator_predictions.output_bias"),
  (r"(cls\.predictions|seq_relationship)\.bias$", r"\1.output_bias"),
  (r"seq_relationship\.weight$", "seq_relationship.output_weights"),
  (r"\.weight$", ".kernel"),
  (r"\.", "/"),
)
# The only matrix that TensorFlow stores as [out, in].
TRANSPOSED = "cls/seq_relationship/output_weights"
CONFIG, VOCABULARY = "bert_config.json", "vocab.txt"
STATE_FILE = "checkpoint"  # names the newest checkpoint of the folder


def find_index(folder: pathlib.Path) -> pathlib.Path | None:
  """Finds the index file of a folder's checkpoint; None if there is none.

  Raises:
    InputError: the folder cannot be read; it holds several checkpoints and no
      file `checkpoint` that names one; the named one is missing.
  """
  try:
    names = {path.name for path in folder.iterdir() if path.is_file()}
    state = ""
    if STATE_FILE in names:
      with (folder / STATE_FILE).open("rb") as file:
        state = file.read(10_000).decode(errors="replace")
  except OSError as e:
    raise read_error(folder, e, "Choose another folder.") from e
  data = (re.fullmatch(r"(.+)\.data-\d{5}-of-\d{5}", name) for name in names)
  complete = {m[1] for m in data if m and f"{m[1]}.index" in names}
  # An index without data counts too: opening it reports the missing file.
  indexed = {n.removesuffix(".index") for n in names if n.endswith(".index")}
  prefixes = sorted(complete or indexed)
  if not prefixes:
    return None
  if match := re.search(r'model_checkpoint_path: *"(?:.*[/\\])?(.*)"', state):
    if match[1] not in prefixes:
      raise InputError(
        f"init: '{folder / STATE_FILE}' names the checkpoint {match[1]!r}, but"
        f" the folder holds {', '.join(prefixes)}. Set model_checkpoint_path in"
        " that file to one of them."
      )
    prefixes = [match[1]]
  if len(prefixes) > 1:
    raise InputError(
      f"init: '{folder}' holds several checkpoints: {', '.join(prefixes)}."
      f" Remove all but one, or name one in a file '{STATE_FILE}' as TensorFlow"
      ' does: model_checkpoint_path: "NAME".'
    )
  return folder / f"{prefixes[0]}.index"


def open_networks(folder: pathlib.Path) -> dict[str, Network]:
  """Returns the networks of a folder's checkpoint by role; reads no arrays.

  Raises:
    InputError: the folder holds no checkpoint of ELECTRA or BERT; the
      checkpoint is damaged; TensorFlow is not installed.
  """
  index = find_index(folder)
  if index is None:
    raise InputError(f"init: '{folder}' holds no TensorFlow checkpoint.")
  for path in (index, *folder.glob(f"{glob.escape(index.stem)}.data-*")):
    find_file(folder, path.name)  # refuses links that lead out of the folder
  prefix = index.with_suffix("")
  all_arrays = _open_arrays(prefix)
  networks = {}
  for role in _detect_roles(all_arrays):
    arrays = _select_arrays(all_arrays, role)
    fields = _derive_fields(arrays, role)
    if role == "bert":
      fields |= _read_bert_config(folder)
    check_layers(fields, arrays)
    networks[role] = Network(
      role=role,
      location=f"'{prefix}'",
      arrays=arrays,
      fields=fields,
      name_table=name_table,
      transposed_kernels=False,
      vocabulary=find_optional(folder, VOCABULARY),
      lowercase=None,
    )
  return networks


def load_checkpoint(prefix: pathlib.Path) -> Any:
  """Returns TensorFlow's reader of a checkpoint, `tf.train.load_checkpoint`.

  Raises:
    InputError: TensorFlow is not installed.
  """
  # TensorFlow would otherwise warn that it finds no GPU.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  try:
    import tensorflow
  except ImportError as e:
    raise InputError(
      f"init: '{prefix}' is a TensorFlow checkpoint, and TensorFlow cannot be"
      f" imported ({e}). Install it: pip install 'truenegs_jax[tf]'. Or pass"
      " the model's name on the Hugging Face hub: --config.init=NAME."
    ) from e
  with contextlib.suppress(RuntimeError):  # TensorFlow was initialized before
    # TensorFlow would otherwise reserve the memory of all GPUs.
    tensorflow.config.set_visible_devices([], "GPU")
  return tensorflow.train.load_checkpoint(str(prefix))


def name_table(model: hf_names.Model, role: str) -> dict[str, str]:
  """Maps each path in our tree to TensorFlow's name, for one network."""
  table = {}
  for path, name in hf_names.name_table(model, role).items():
    for pattern, replacement in RENAMINGS:
      name = re.sub(pattern, replacement, name)
    if role == "generator":
      name = re.sub("^electra/(?!embeddings/)", "generator/", name)
    table[path] = name
  return table


def _open_arrays(prefix: pathlib.Path) -> Arrays:
  with _wrap_errors(prefix):
    reader = load_checkpoint(prefix)
    shapes = {
      name: tuple(shape)
      for name, shape in reader.get_variable_to_shape_map().items()
    }

  def read(name: str) -> np.ndarray:
    with _wrap_errors(prefix):
      x = np.asarray(reader.get_tensor(name))
      if x.dtype != np.float32:
        raise ValueError(f"{name!r} is of type {x.dtype}, not float32")
      return x

  dtypes = dict.fromkeys(shapes, "float32")
  return Arrays(path=prefix, shapes=shapes, dtypes=dtypes, read=read)


@contextlib.contextmanager
def _wrap_errors(prefix: pathlib.Path) -> Iterator[None]:
  """Turns every error of TensorFlow's reader into an InputError."""
  try:
    yield
  except InputError:
    raise
  except Exception as e:  # a dozen classes, most of them in tf.errors
    raise InputError(
      f"init: '{prefix}' cannot be read as a TensorFlow checkpoint:"
      f" {printable(e)}. If its files were copied, copy all of them again."
    ) from e


def _detect_roles(arrays: Arrays) -> list[str]:

  def has_prefix(prefix: str) -> bool:
    return any(name.startswith(prefix) for name in arrays.shapes)

  if has_prefix("bert/"):
    return ["bert"]
  if has_prefix("electra/encoder/"):
    is_pair = all(map(has_prefix, PREFIXES["generator"]))
    return ["discriminator", "generator"] if is_pair else ["discriminator"]
  scopes = sorted({name.split("/")[0] for name in arrays.shapes})
  raise InputError(
    f"init: '{arrays.path}' is not a checkpoint of ELECTRA or BERT. No array"
    " name begins with electra/encoder/ or bert/. The names begin with"
    f" {', '.join(map(repr, scopes[:5]))}."
  )


def _select_arrays(arrays: Arrays, role: str) -> Arrays:
  """Selects a network's arrays; leaves out those of the optimizer."""
  shapes = {
    name: shape
    for name, shape in arrays.shapes.items()
    # The optimizer's arrays of a variable are named NAME/adam_m and the like.
    if name.startswith(PREFIXES[role])
    and name.rpartition("/")[0] not in arrays.shapes
  }
  if TRANSPOSED in shapes:
    shapes[TRANSPOSED] = shapes[TRANSPOSED][::-1]

  def read(name: str) -> np.ndarray:
    x = arrays.read(name)
    return x.T if name == TRANSPOSED else x

  dtypes = {name: arrays.dtypes[name] for name in shapes}
  return Arrays(path=arrays.path, shapes=shapes, dtypes=dtypes, read=read)


def _derive_fields(arrays: Arrays, role: str) -> dict[str, Any]:
  """Derives the fields of Hugging Face's config.json from array shapes.

  The number of heads is missing: no shape depends on it.
  """
  family = hf_names.NETWORKS[role].family

  def table_shape(kind: str) -> tuple[int, ...]:
    return _matrix_shape(arrays, f"{family}/embeddings/{kind}_embeddings")

  layer = f"{PREFIXES[role][0]}encoder/layer_"
  width, ffn = _matrix_shape(arrays, f"{layer}0/intermediate/dense/kernel")
  vocab_size, embedding_size = table_shape("word")
  layers = {
    name.removeprefix(layer).split("/")[0]
    for name in arrays.shapes
    if name.startswith(layer)
  }
  return {
    "model_type": family,
    "vocab_size": vocab_size,
    "embedding_size": embedding_size,
    "hidden_size": width,
    "num_hidden_layers": len(layers),
    "intermediate_size": ffn,
    "hidden_act": "gelu",
    "max_position_embeddings": table_shape("position")[0],
    "type_vocab_size": table_shape("token_type")[0],
    "layer_norm_eps": LAYER_NORM_EPSILON,
  }


def _matrix_shape(arrays: Arrays, name: str) -> tuple[int, ...]:
  shape = arrays.shapes.get(name, ())
  if len(shape) != 2:
    raise InputError(
      f"init: '{arrays.path}' holds no matrix {name!r}. The size of the network"
      " is read from its shape."
    )
  return shape


def _read_bert_config(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the fields of bert_config.json; empty if the file is missing."""
  path = find_optional(folder, CONFIG)
  if path is None:
    return {}
  fields = hf_folder.read_json_object(path)
  hf_folder.check_sizes(path, fields)
  return fields
