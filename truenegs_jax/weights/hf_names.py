"""Maps our parameters to Hugging Face's names.

  tensors = to_huggingface(params, model, "discriminator")

A pair becomes two models, each with all its embeddings:
ElectraForPreTraining (discriminator) and ElectraForMaskedLM (generator). BERT
becomes BertForMaskedLM, or BertForPreTraining if it has a pooler. With the
backbone `modern`, BERT and the generator become ModernBertForMaskedLM, and the
discriminator ModernBertForTokenClassification of two labels, whose logits are
(0, x) for our x. A fine-tuned model becomes the class of its family with the
same head.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from truenegs_jax.models import finetune, pretrain
from truenegs_jax.runtime.errors import InputError

Model = pretrain.Model | finetune.DownstreamModel

# Encoders: our name -> Hugging Face's, of modules and of tables; N is the
# number of a layer.
BERT_NAMES = {
  "embeddings/word": "embeddings.word_embeddings",
  "embeddings/position": "embeddings.position_embeddings",
  "embeddings/type": "embeddings.token_type_embeddings",
  "embeddings/norm": "embeddings.LayerNorm",
  "project": "embeddings_project",
  "layer_N/query": "encoder.layer.N.attention.self.query",
  "layer_N/key": "encoder.layer.N.attention.self.key",
  "layer_N/value": "encoder.layer.N.attention.self.value",
  "layer_N/attention_output": "encoder.layer.N.attention.output.dense",
  "layer_N/attention_norm": "encoder.layer.N.attention.output.LayerNorm",
  "layer_N/ffn_input": "encoder.layer.N.intermediate.dense",
  "layer_N/ffn_output": "encoder.layer.N.output.dense",
  "layer_N/ffn_norm": "encoder.layer.N.output.LayerNorm",
}
MODERN_NAMES = {
  "embeddings/word": "embeddings.tok_embeddings",
  "embeddings/norm": "embeddings.norm",
  "layer_N/attention_norm": "layers.N.attn_norm",  # the first layer has none
  "layer_N/qkv": "layers.N.attn.Wqkv",
  "layer_N/attention_output": "layers.N.attn.Wo",
  "layer_N/ffn_norm": "layers.N.mlp_norm",
  "layer_N/ffn_gated": "layers.N.mlp.Wi",
  "layer_N/ffn_output": "layers.N.mlp.Wo",
  "final_norm": "final_norm",
}
# `model_type` -> prefix of the encoder's names, and the names.
FAMILIES: dict[str, tuple[str, Mapping[str, str]]] = {
  "electra": ("electra.", BERT_NAMES),
  "bert": ("bert.", BERT_NAMES),
  "modernbert": ("model.", MODERN_NAMES),
}


@dataclasses.dataclass(frozen=True)
class NetworkNames:
  """Hugging Face's names for a network and its head."""

  family: str  # the `model_type`
  architecture: str
  # Modules of the head: our name -> Hugging Face's; "" has its own arrays.
  head: Mapping[str, str]
  tied: tuple[str, ...] = ()  # arrays that may be stored a second time


NETWORKS = {
  "discriminator": NetworkNames(
    "electra",
    "ElectraForPreTraining",
    {
      "dense": "discriminator_predictions.dense",
      "output": "discriminator_predictions.dense_prediction",
    },
  ),
  "generator": NetworkNames(
    "electra",
    "ElectraForMaskedLM",
    {
      "": "generator_lm_head",
      "dense": "generator_predictions.dense",
      "norm": "generator_predictions.LayerNorm",
    },
    tied=("generator_lm_head.weight",),
  ),
  "bert": NetworkNames(
    "bert",
    "BertForMaskedLM",
    {
      "": "cls.predictions",
      "dense": "cls.predictions.transform.dense",
      "norm": "cls.predictions.transform.LayerNorm",
    },
    tied=("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
  ),
}
MODERN_ENCODER = "ModernBertModel"
MODERN_MASKED = "ModernBertForMaskedLM"
_MODERN_MLM = NetworkNames(
  "modernbert",
  MODERN_MASKED,
  {"": "decoder", "dense": "head.dense", "norm": "head.norm"},
  tied=("decoder.weight",),
)
# Subfolder of an export, with the encoder once more and a head for two labels.
DETECTOR = "detector"
DETECTOR_LABELS = ("original", "replaced")
DETECTOR_CLASS = "ModernBertForTokenClassification"
_MODERN_HEAD = {
  "dense": "head.dense",
  "norm": "head.norm",
  "output": "classifier",
}
BACKBONES = {
  "encoder": NETWORKS,
  "modern": {
    "discriminator": NetworkNames("modernbert", DETECTOR_CLASS, _MODERN_HEAD),
    "generator": _MODERN_MLM,
    "bert": _MODERN_MLM,
  },
}
TASK_HEAD = "task_head/"  # of our paths
POOLER = "bert.pooler."  # of Hugging Face's names
# Modules that BertForPreTraining has and BertForMaskedLM has not.
POOLED = {
  "pooled/pooler": f"{POOLER}dense",
  "pooled/next_sentence": "cls.seq_relationship",
}
# Modules of the task heads: our name -> Hugging Face's.
_TASK_HEADS: dict[str, dict[str, str]] = {
  "dense": {
    "task_head/dense": "classifier.dense",
    "task_head/output": "classifier.out_proj",
  },
  "pooler": {
    "pooled/pooler": POOLED["pooled/pooler"],
    "task_head/output": "classifier",
  },
  "spans": {"task_head/output": "qa_outputs"},
  "tags": {"task_head/output": "classifier"},
}
TASK_CLASSES = {
  "dense": "ForSequenceClassification",
  "pooler": "ForSequenceClassification",
  "spans": "ForQuestionAnswering",
  "tags": "ForTokenClassification",
}


def to_huggingface(
  params: Mapping[str, Any], model: Model, role: str
) -> dict[str, np.ndarray]:
  """Returns the f32 tensors of one network by Hugging Face's names.

  `params` may also be gradients. The output embeddings of a masked language
  model are tied to the word embeddings and are left out: transformers unties
  the two when a second copy differs by rounding.
  """
  own = pretrain.own_embeddings(params, role)
  others = tuple(name for name in model.roles if name != role)
  paths = traverse_util.flatten_dict(own, sep="/")
  flat = {path: x for path, x in paths.items() if not path.startswith(others)}
  table = name_table(model, role)
  if differing := sorted(flat.keys() ^ table.keys()):
    raise InputError(
      f"The parameters are not those of the model's {role}: only one of them"
      f" has {', '.join(differing[:5])}."
    )
  tensors = {}
  for path, name in table.items():
    x = np.asarray(flat[path])
    if path.endswith("/kernel"):  # Hugging Face's is [out, in]
      x = x.reshape(len(x), -1).T
    if _has_two_labels(model, role, path):
      x = np.concatenate([np.zeros_like(x), x])
    # Contiguous: safetensors writes the buffer and ignores the strides.
    tensors[name] = np.ascontiguousarray(x, np.float32)
  return tensors


def from_huggingface(
  x: np.ndarray, path: str, shape: tuple[int, ...]
) -> np.ndarray:
  """Returns the parameter at a path, of `shape`, from Hugging Face's array.

  A table of words may have other rows than the parameter.
  """
  if len(x) == 2 and shape[-1] == 1:  # the labels "original" and "replaced"
    x = x[1:] - x[:1]
  if path.endswith("/kernel"):
    return np.ascontiguousarray(x.T).reshape(shape)
  return np.ascontiguousarray(x)


def list_shapes(model: Model, role: str) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of a network's arrays in Hugging Face's layout."""
  params = flat_shapes(model)
  shapes = {}
  for path, name in name_table(model, role).items():
    shape = params[path].shape
    if path.endswith("/kernel"):
      shape = (math.prod(shape[1:]), shape[0])
    if _has_two_labels(model, role, path):
      shape = (2, *shape[1:])
    shapes[name] = shape
  return shapes


def _has_two_labels(model: Model, role: str, path: str) -> bool:
  is_output = path.startswith(f"{role}_head/output/")
  return is_output and architecture(model, role) == DETECTOR_CLASS


def unsupported_reason(model: Model) -> str:
  """Returns why transformers does not have a model; "" if it has."""
  if model.backbone in BACKBONES:
    return ""
  return (
    f"model.backbone={model.backbone!r} has no names in Hugging Face's format,"
    " so the model is not exported."
  )


def flat_shapes(model: Model) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shape of every parameter by path."""
  return traverse_util.flatten_dict(pretrain.param_shapes(model), sep="/")


def network_names(model: Model, role: str) -> NetworkNames:
  """Returns the names of a network; other backbones are described as BERT."""
  return BACKBONES.get(model.backbone, NETWORKS)[role]


def name_table(model: Model, role: str) -> dict[str, str]:
  """Maps each path in our tree to Hugging Face's name, for one network.

  A module of a backbone that transformers lacks keeps our name.
  """
  names = network_names(model, role)
  modules = dict(POOLED)
  prefix, encoder_names = FAMILIES[names.family]
  for module, name in encoder_names.items():
    is_shared = module.startswith("embeddings/")
    modules[module if is_shared else f"{role}/{module}"] = f"{prefix}{name}"
  for module, name in names.head.items():
    modules[f"{role}_head/{module}".rstrip("/")] = name
  if isinstance(model, finetune.DownstreamModel):
    modules |= task_head(model.head, model.backbone)
  # Those of shared embeddings are of each network.
  others = (*(x for x in model.roles if x != role), *pretrain.OWN.values())
  table = {}
  for path in flat_shapes(model):
    if path.startswith(others):
      continue
    module, _, array = path.rpartition("/")
    if array not in ("kernel", "scale", "bias"):
      module = path  # a table
    number = "".join(re.findall(r"/layer_(\d+)/", module))
    module = module.replace(f"/layer_{number}/", "/layer_N/")
    table[path] = path
    if module in modules:
      name = modules[module].replace(".N.", f".{number}.")
      table[path] = f"{name}.{'bias' if array == 'bias' else 'weight'}"
  return table


def task_head(kind: str, backbone: str) -> Mapping[str, str]:
  """Maps modules of a task head; ModernBERT's have one name in all classes."""
  if backbone != "modern":
    return _TASK_HEADS[kind]
  return {f"{TASK_HEAD}{module}": name for module, name in _MODERN_HEAD.items()}


def architecture(model: Model, role: str) -> str:
  """Returns the class of transformers for one network of a model."""
  name = network_names(model, role).architecture
  if isinstance(model, finetune.DownstreamModel):
    return name.partition("For")[0] + TASK_CLASSES[model.head]
  has_pooler = isinstance(model, pretrain.BertMlm) and model.pooler
  return "BertForPreTraining" if has_pooler else name


def list_classes(model: Model, role: str) -> list[tuple[str, str]]:
  """Returns (subfolder, class) of each folder of an export; "": the folder.

  Two labels on the discriminator's head would load in silence as a classifier,
  as the heads of ModernBERT's classes have the same names.
  """
  name = architecture(model, role)
  is_tagger = isinstance(model, finetune.DownstreamModel)
  if name == DETECTOR_CLASS and not is_tagger:
    return [("", MODERN_ENCODER), (DETECTOR, name)]
  return [("", name)]
