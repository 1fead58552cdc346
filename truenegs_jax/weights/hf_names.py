"""Maps our parameters to Hugging Face's names.

  tensors = to_huggingface(params, model, "discriminator")

A pair becomes two models, each with a copy of the shared embeddings:
ElectraForPreTraining (discriminator) and ElectraForMaskedLM (generator). BERT
becomes BertForMaskedLM, or BertForPreTraining if it has a pooler. A fine-tuned
model becomes the class of its family with the same head.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from truenegs_jax.models import finetune, pretrain
from truenegs_jax.runtime.errors import InputError

Model = pretrain.Model | finetune.DownstreamModel


@dataclasses.dataclass(frozen=True)
class NetworkNames:
  """Hugging Face's names for a network and its head."""

  family: str  # the `model_type`, also the prefix of the encoder's names
  architecture: str
  head: Mapping[str, str]  # our name -> Hugging Face's, of modules and arrays
  head_arrays: Mapping[str, str] = dataclasses.field(default_factory=dict)
  # Its name of a second copy of an array -> path in our tree.
  tied: Mapping[str, str] = dataclasses.field(default_factory=dict)


NETWORKS = {
  "discriminator": NetworkNames(
    family="electra",
    architecture="ElectraForPreTraining",
    head={
      "dense": "discriminator_predictions.dense",
      "output": "discriminator_predictions.dense_prediction",
    },
  ),
  "generator": NetworkNames(
    family="electra",
    architecture="ElectraForMaskedLM",
    head={
      "dense": "generator_predictions.dense",
      "norm": "generator_predictions.LayerNorm",
    },
    head_arrays={"bias": "generator_lm_head.bias"},
    tied={"generator_lm_head.weight": "embeddings/word"},
  ),
  "bert": NetworkNames(
    family="bert",
    architecture="BertForMaskedLM",
    head={
      "dense": "cls.predictions.transform.dense",
      "norm": "cls.predictions.transform.LayerNorm",
    },
    head_arrays={"bias": "cls.predictions.bias"},
    tied={
      "cls.predictions.decoder.weight": "embeddings/word",
      "cls.predictions.decoder.bias": "bert_head/bias",
    },
  ),
}
# Modules that BertForPreTraining has and BertForMaskedLM has not.
POOLED = {
  "pooled/pooler": "bert.pooler.dense",
  "pooled/next_sentence": "cls.seq_relationship",
}
# Modules of the task heads: our name -> Hugging Face's.
TASK_HEADS: dict[str, dict[str, str]] = {
  "dense": {
    "task_head/dense": "classifier.dense",
    "task_head/output": "classifier.out_proj",
  },
  "pooler": {
    "pooled/pooler": POOLED["pooled/pooler"],
    "task_head/output": "classifier",
  },
  "spans": {"task_head/output": "qa_outputs"},
}
# Embedding tables: our name -> Hugging Face's.
EMBEDDING_NAMES = {"word": "word", "position": "position", "type": "token_type"}
# Modules of a layer: our name -> Hugging Face's.
LAYER_NAMES = {
  "query": "attention.self.query",
  "key": "attention.self.key",
  "value": "attention.self.value",
  "attention_output": "attention.output.dense",
  "attention_norm": "attention.output.LayerNorm",
  "ffn_input": "intermediate.dense",
  "ffn_output": "output.dense",
  "ffn_norm": "output.LayerNorm",
}


def to_huggingface(
  params: Mapping[str, Any], model: Model, role: str
) -> dict[str, np.ndarray]:
  """Returns the f32 tensors of one network by Hugging Face's names.

  `params` may also be gradients. The output embeddings of a masked language
  model are tied to the word embeddings and are left out: transformers unties
  the two when a second copy differs by rounding.
  """
  table = name_table(model, role)
  partners = tuple(name for name in model.roles if name != role)
  paths = traverse_util.flatten_dict(params, sep="/")
  flat = {k: x for k, x in paths.items() if not k.startswith(partners)}
  if differing := sorted(flat.keys() ^ table.keys()):
    raise InputError(
      f"The parameters of the {role} and of Hugging Face's"
      f" {NETWORKS[role].family} of this size differ: only one of them has"
      f" {', '.join(differing[:5])}."
    )
  tensors = {}
  for path, name in table.items():
    x = np.asarray(flat[path])
    x = x.T if path.endswith("/kernel") else x  # Hugging Face's is [out, in]
    # Contiguous: safetensors writes the buffer and ignores the strides.
    tensors[name] = np.ascontiguousarray(x, np.float32)
  return tensors


def flat_shapes(model: Model) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shape of every parameter by path."""
  return traverse_util.flatten_dict(pretrain.param_shapes(model), sep="/")


def name_table(model: Model, role: str) -> dict[str, str]:
  """Maps each path in our tree to Hugging Face's name, for one network."""
  config, names = model.roles[role], NETWORKS[role]
  family = names.family
  modules = {"embeddings/norm": f"{family}.embeddings.LayerNorm"}
  if config.embedding_size != config.width:
    modules[f"{role}/project"] = f"{family}.embeddings_project"
  for i in range(config.layers):
    layer = f"{family}.encoder.layer.{i}"
    for module, name in LAYER_NAMES.items():
      modules[f"{role}/layer_{i}/{module}"] = f"{layer}.{name}"
  fine_tuned = isinstance(model, finetune.DownstreamModel)
  if fine_tuned:
    modules |= TASK_HEADS[model.head]
  else:
    modules |= {f"{role}_head/{x}": name for x, name in names.head.items()}
  if has_pooler(model):
    modules |= POOLED
  table = {
    f"embeddings/{kind}": f"{family}.embeddings.{name}_embeddings.weight"
    for kind, name in EMBEDDING_NAMES.items()
  }
  for module, name in modules.items():
    weight = "scale" if module.endswith("norm") else "kernel"
    table[f"{module}/{weight}"] = f"{name}.weight"
    table[f"{module}/bias"] = f"{name}.bias"
  if not fine_tuned:
    for array, name in names.head_arrays.items():
      table[f"{role}_head/{array}"] = name
  return table


def architecture(model: Model, role: str) -> str:
  """Returns the class of transformers for one network of a model."""
  if isinstance(model, finetune.DownstreamModel):
    is_span, family = model.head == "spans", NETWORKS[role].family.capitalize()
    task = "QuestionAnswering" if is_span else "SequenceClassification"
    return f"{family}For{task}"
  if has_pooler(model):
    return "BertForPreTraining"
  return NETWORKS[role].architecture


def has_pooler(model: Model) -> bool:
  """Whether a pre-trained BERT has a pooler and a next-sentence classifier."""
  return isinstance(model, pretrain.BertMlm) and model.pooler
