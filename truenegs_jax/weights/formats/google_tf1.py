"""Google's released checkpoints of ELECTRA and BERT, as networks.

Both lie in a folder as unpacked: a checkpoint of TensorFlow 1, a vocab.txt and,
for BERT, its bert_config.json. TensorFlow reads the arrays. Names are those of
google-research/electra and google-research/bert; the two networks of ELECTRA
share `electra/embeddings`.
BERT's code there approximates gelu by tanh; here it is exact, as in Hugging
Face's copies of the same weights.
"""

import contextlib
import glob
import json
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
)

# Beginnings of the names of what each network is made of, its encoder's first.
PARTS = {
  "discriminator": ("electra/", "discriminator_predictions/"),
  "generator": ("generator/", "generator_predictions/", "electra/embeddings/"),
  "bert": ("bert/", "cls/"),
}
# From Hugging Face's names, one rule after another.
RULES = (
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
# The one matrix that is [out, in] there.
TRANSPOSED = "cls/seq_relationship/output_weights"
CONFIG, VOCABULARY = "bert_config.json", "vocab.txt"
POINTER = "checkpoint"  # the file that names the newest one


def find_index(folder: pathlib.Path) -> pathlib.Path | None:
  """The index of a folder's checkpoint; None where there is none.

  Raises:
    InputError: several, and no file `checkpoint` that names one; it names one
      that is not there; the folder cannot be read.
  """
  try:
    names = {path.name for path in folder.iterdir() if path.is_file()}
    text = _beginning(folder / POINTER) if POINTER in names else ""
  except OSError as e:
    raise InputError(f"init: {folder} cannot be read: {e}.") from e
  data = (re.fullmatch(r"(.+)\.data-\d{5}-of-\d{5}", name) for name in names)
  complete = {m[1] for m in data if m and f"{m[1]}.index" in names}
  # Without data it is still what was meant: opening it says what is lacking.
  found = sorted(
    complete or {n[: -len(".index")] for n in names if n.endswith(".index")}
  )
  if not found:
    return None
  if named := re.search(r'model_checkpoint_path: *"(?:.*[/\\])?(.*)"', text):
    if named[1] not in found:
      raise InputError(
        f"init: {folder / POINTER} names {named[1]!r}, and there is"
        f" {', '.join(found)}: put one of these there as model_checkpoint_path."
      )
    found = [named[1]]
  if len(found) > 1:
    raise InputError(
      f"init: {folder} holds several checkpoints: {', '.join(found)}; leave one"
      f" there, or name it in a file `{POINTER}` as TensorFlow does:"
      ' model_checkpoint_path: "NAME".'
    )
  return folder / f"{found[0]}.index"


def open_networks(folder: pathlib.Path) -> dict[str, Network]:
  """The networks of a folder's checkpoint by their roles; nothing is read.

  Raises:
    InputError: no checkpoint, a damaged one, not of ELECTRA or BERT, or no
      TensorFlow.
  """
  index = find_index(folder)
  if index is None:
    raise InputError(f"init: there is no TensorFlow checkpoint in {folder}.")
  for path in (index, *folder.glob(f"{glob.escape(index.stem)}.data-*")):
    find_file(folder, path.name)  # refuses what a link brings in from elsewhere
  arrays = _open_arrays(index.with_suffix(""))
  given = _config(folder)
  vocabulary = (folder / VOCABULARY).exists()
  found = {}
  for role in _roles(arrays):
    own = _own(arrays, role)
    fields = _fields(own, role) | (given if role == "bert" else {})
    check_layers(fields, own)
    found[role] = Network(
      role=role,
      location=str(index.with_suffix("")),
      arrays=own,
      fields=fields,
      name_table=name_table,
      transposed_kernels=False,
      vocabulary=find_file(folder, VOCABULARY).path if vocabulary else None,
      lowercase=None,
    )
  return found


def load_checkpoint(prefix: pathlib.Path) -> Any:
  """TensorFlow's reader of a checkpoint (`tf.train.load_checkpoint`).

  Raises:
    InputError: TensorFlow is not installed.
  """
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no line on absent GPUs
  try:
    import tensorflow
  except ImportError as e:
    raise InputError(
      f"init: {prefix} is a checkpoint that TensorFlow has to read: pip"
      " install 'truenegs_jax[tf]', or give the model's name on the"
      f" Hugging Face hub ({e})."
    ) from e
  with contextlib.suppress(RuntimeError):  # whoever used it before has chosen
    tensorflow.config.set_visible_devices([], "GPU")  # it would take them all
  return tensorflow.train.load_checkpoint(str(prefix))


def name_table(model: hf_names.Model, role: str) -> dict[str, str]:
  """Path in our tree -> TensorFlow's name, for every array of a network."""
  table = {}
  for ours, name in hf_names.name_table(model, role).items():
    for pattern, new in RULES:
      name = re.sub(pattern, new, name)
    if role == "generator":
      name = re.sub("^electra/(?!embeddings/)", "generator/", name)
    table[ours] = name
  return table


def _open_arrays(prefix: pathlib.Path) -> Arrays:
  with _reading(prefix):
    reader = load_checkpoint(prefix)
    shapes = {
      name: tuple(shape)
      for name, shape in reader.get_variable_to_shape_map().items()
    }

  def read(name: str) -> np.ndarray:
    with _reading(prefix):
      x = np.asarray(reader.get_tensor(name))
      if x.dtype != np.float32:
        raise ValueError(f"{name} is of type {x.dtype}, not float32")
      return x

  dtypes = dict.fromkeys(shapes, "float32")
  return Arrays(path=prefix, shapes=shapes, dtypes=dtypes, read=read)


@contextlib.contextmanager
def _reading(prefix: pathlib.Path) -> Iterator[None]:
  """Turns any error of TensorFlow's reader into an InputError."""
  try:
    yield
  except InputError:
    raise
  except Exception as e:  # it has a dozen kinds, most of tf.errors
    raise InputError(
      f"init: {prefix} cannot be read as a TensorFlow checkpoint:"
      f" {printable(e)}. If its files were copied, copy them again, all."
    ) from e


def _roles(arrays: Arrays) -> list[str]:
  """The networks that are there: a pair, a discriminator or BERT."""
  has = lambda part: any(name.startswith(part) for name in arrays.shapes)
  if has("bert/"):
    return ["bert"]
  if has("electra/encoder/"):
    pair = all(map(has, PARTS["generator"]))
    return ["discriminator", "generator"] if pair else ["discriminator"]
  tops = sorted({name.split("/")[0] for name in arrays.shapes})
  raise InputError(
    f"init: {arrays.path} is of no ELECTRA and no BERT: there is nothing that"
    f" begins with electra/encoder/ or bert/, only {tops[:5]}."
  )


def _own(arrays: Arrays, role: str) -> Arrays:
  """The arrays of one network, without the optimizer's."""
  own = {
    name: shape
    for name, shape in arrays.shapes.items()
    # What an optimizer keeps of a variable is named NAME/adam_m and the like.
    if name.startswith(PARTS[role])
    and name.rpartition("/")[0] not in arrays.shapes
  }
  if TRANSPOSED in own:
    own[TRANSPOSED] = own[TRANSPOSED][::-1]
  return Arrays(
    path=arrays.path,
    shapes=own,
    dtypes={name: arrays.dtypes[name] for name in own},
    read=lambda name: (
      arrays.read(name).T if name == TRANSPOSED else arrays.read(name)
    ),
  )


def _fields(arrays: Arrays, role: str) -> dict[str, Any]:
  """The sizes of a network, by the names of Hugging Face's config.json.

  How many heads there are shows in no shape; bert_config.json has it.
  """
  family = hf_names.NETWORKS[role].family
  scope = PARTS[role][0]
  table = lambda kind: _matrix(arrays, f"{family}/embeddings/{kind}_embeddings")
  layer = f"{scope}encoder/layer_"
  width, ffn = _matrix(arrays, f"{layer}0/intermediate/dense/kernel")
  vocab_size, embedding_size = table("word")
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
    "max_position_embeddings": table("position")[0],
    "type_vocab_size": table("token_type")[0],
    "layer_norm_eps": LAYER_NORM_EPSILON,
  }


def _matrix(arrays: Arrays, name: str) -> tuple[int, ...]:
  """The two numbers of its shape."""
  shape = arrays.shapes.get(name, ())
  if len(shape) != 2:
    raise InputError(
      f"init: {arrays.path} holds no matrix {name}, which says how large the"
      " network is."
    )
  return shape


def _config(folder: pathlib.Path) -> dict[str, Any]:
  """The fields of bert_config.json; none where it is not there."""
  path = folder / CONFIG
  if not path.exists():
    return {}
  file = find_file(folder, CONFIG)
  try:
    given = json.loads(file.target.read_text(encoding="utf-8"))
  except (OSError, ValueError, RecursionError) as e:
    raise InputError(f"init: {path} cannot be read: {e!r}.") from e
  if not isinstance(given, dict):
    raise InputError(f"init: {path} holds no object of JSON.")
  hf_folder.check_sizes(path, given)
  return given


def _beginning(path: pathlib.Path) -> str:
  with path.open("rb") as file:
    return file.read(10_000).decode(errors="replace")
