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
  # Its name of a second copy of an array -> path in our tree.
  tied: Mapping[str, str] = dataclasses.field(default_factory=dict)


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
    tied={"generator_lm_head.weight": "embeddings/word"},
  ),
  "bert": NetworkNames(
    "bert",
    "BertForMaskedLM",
    {
      "": "cls.predictions",
      "dense": "cls.predictions.transform.dense",
      "norm": "cls.predictions.transform.LayerNorm",
    },
    tied={
      "cls.predictions.decoder.weight": "embeddings/word",
      "cls.predictions.decoder.bias": "bert_head/bias",
    },
  ),
}
MODERN_ENCODER = "ModernBertModel"
MODERN_MASKED = "ModernBertForMaskedLM"
_MODERN_MLM = NetworkNames(
  "modernbert",
  MODERN_MASKED,
  {"": "decoder", "dense": "head.dense", "norm": "head.norm"},
  tied={"decoder.weight": "embeddings/word"},
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
}
TASK_CLASSES = {
  "dense": "ForSequenceClassification",
  "pooler": "ForSequenceClassification",
  "spans": "ForQuestionAnswering",
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
  own = pretrain.own_embeddings(params, role)
  paths = traverse_util.flatten_dict(own, sep="/")
  flat = {k: x for k, x in paths.items() if not k.startswith(partners)}
  if differing := sorted(flat.keys() ^ table.keys()):
    raise InputError(
      f"The parameters of the {role} and of Hugging Face's"
      f" {network_names(model, role).family} of this size differ: only one of"
      f" them has {', '.join(differing[:5])}."
    )
  tensors = {}
  has_labels = len(list_classes(model, role)) > 1
  for path, name in table.items():
    x = np.asarray(flat[path])
    if path.endswith("/kernel"):  # Hugging Face's is [out, in]
      x = x.reshape(len(x), -1).T
    if has_labels and path.startswith(f"{role}_head/output/"):
      x = np.concatenate([np.zeros_like(x), x])
    # Contiguous: safetensors writes the buffer and ignores the strides.
    tensors[name] = np.ascontiguousarray(x, np.float32)
  return tensors


def unsupported_reason(model: Model) -> str:
  """Returns why transformers does not have a model; "" if it has."""
  if model.backbone in BACKBONES:
    return ""
  return (
    f"This model with model.backbone={model.backbone!r} has no names in Hugging"
    " Face's format, so it is not exported and cannot start from weights in"
    " this format."
  )


def flat_shapes(model: Model) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shape of every parameter by path."""
  return traverse_util.flatten_dict(pretrain.param_shapes(model), sep="/")


def list_paths(model: Model, role: str) -> list[str]:
  """Returns the paths of one network, with those of shared embeddings."""
  others = (*(x for x in model.roles if x != role), *pretrain.OWN.values())
  return [path for path in flat_shapes(model) if not path.startswith(others)]


def network_names(model: Model, role: str) -> NetworkNames:
  """Returns the names of a network; other backbones are described as BERT."""
  return BACKBONES.get(model.backbone, NETWORKS)[role]


def name_table(model: Model, role: str) -> dict[str, str]:
  """Maps each path in our tree to Hugging Face's name, for one network."""
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
  table = {}
  for path in list_paths(model, role):
    module, _, array = path.rpartition("/")
    if array not in ("kernel", "scale", "bias"):
      module = path  # a table
    layer = re.search(r"/layer_(\d+)/", module)
    if layer:
      module = module.replace(layer[0], "/layer_N/")
    if module in modules:
      name = modules[module]
      if layer:
        name = name.replace(".N.", f".{layer[1]}.")
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
  if name == DETECTOR_CLASS:
    return [("", MODERN_ENCODER), (DETECTOR, name)]
  return [("", name)]
