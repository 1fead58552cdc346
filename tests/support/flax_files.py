"""Files of the Flax models of transformers 4, which transformers 5 lacks.

The names are those that save_pretrained of transformers 4.57.6 wrote for
FlaxElectraForPreTraining, FlaxElectraForMaskedLM and FlaxBertForPreTraining.
"""

import pathlib

from flax import serialization, traverse_util

from support.weight_files import read_tensors

FILE = "flax_model.msgpack"
DENSE, NORM = ("kernel", "bias"), ("scale", "bias")
ENCODER = {
  "embeddings/word_embeddings": ("embedding",),
  "embeddings/position_embeddings": ("embedding",),
  "embeddings/token_type_embeddings": ("embedding",),
  "embeddings/LayerNorm": NORM,
  "embeddings_project": DENSE,  # of an ELECTRA with narrow embeddings
  "pooler/dense": DENSE,  # of a BERT
}
LAYER = {
  "attention/self/query": DENSE,
  "attention/self/key": DENSE,
  "attention/self/value": DENSE,
  "attention/output/dense": DENSE,
  "attention/output/LayerNorm": NORM,
  "intermediate/dense": DENSE,
  "output/dense": DENSE,
  "output/LayerNorm": NORM,
}
HEADS = {
  "discriminator_predictions/dense": DENSE,
  "discriminator_predictions/dense_prediction": DENSE,
  "generator_predictions/LayerNorm": NORM,
  "generator_predictions/dense": DENSE,
  "generator_lm_head": ("bias",),
  "cls/predictions": ("bias",),
  "cls/predictions/transform/dense": DENSE,
  "cls/predictions/transform/LayerNorm": NORM,
  "cls/seq_relationship": DENSE,
}


def list_paths(layers: int = 2) -> list[str]:
  """Returns the paths of the arrays of all models."""
  modules = dict(HEADS)
  for family in ("electra", "bert"):
    modules |= {f"{family}/{name}": x for name, x in ENCODER.items()}
    for i in range(layers):
      layer = f"{family}/encoder/layer/{i}"
      modules |= {f"{layer}/{name}": x for name, x in LAYER.items()}
  return [f"{name}/{array}" for name, x in modules.items() for array in x]


def convert(folder: pathlib.Path) -> None:
  """Replaces the safetensors of a tiny network by a Flax file."""
  tensors = read_tensors(folder)
  flat = {}
  for path in list_paths():
    module, _, array = path.rpartition("/")
    kind = "bias" if array == "bias" else "weight"
    if (name := f"{module.replace('/', '.')}.{kind}") in tensors:
      x = tensors.pop(name)
      flat[path] = x.T if array == "kernel" else x
  assert not tensors
  tree = traverse_util.unflatten_dict(flat, sep="/")
  (folder / FILE).write_bytes(serialization.to_bytes(tree))
  (folder / "model.safetensors").unlink()
