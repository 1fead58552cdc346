"""Files of the Flax models of transformers 4, which transformers 5 lacks."""

import pathlib

from flax import serialization, traverse_util

from support.weight_files import read_tensors

FILE = "flax_model.msgpack"


def convert(folder: pathlib.Path) -> None:
  """Replaces the safetensors of a tiny network by a Flax file.

  The names are those that save_pretrained of transformers 4.57.6 wrote for
  FlaxElectraForPreTraining, FlaxElectraForMaskedLM and FlaxBertForPreTraining.
  """
  flat = {}
  for name, x in read_tensors(folder).items():
    *modules, array = name.split(".")
    if array == "weight" and modules[-1] == "LayerNorm":
      array = "scale"
    elif array == "weight" and modules[-1].endswith("_embeddings"):
      array = "embedding"
    elif array == "weight":
      array = "kernel"
      x = x.T
    flat[(*modules, array)] = x
  tree = traverse_util.unflatten_dict(flat)
  (folder / FILE).write_bytes(serialization.to_bytes(tree))
  (folder / "model.safetensors").unlink()
