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
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from truenegs_jax.models import finetune, pretrain
from truenegs_jax.runtime.errors import InputError

Model = pretrain.Model | finetune.DownstreamModel


@dataclasses.dataclass(frozen=True)
class EncoderNames:
  """Hugging Face's names of an encoder's arrays and modules, by ours."""

  tables: Mapping[str, str]  # of embeddings
  norm: str  # of embeddings
  layer: str  # before the number of a layer
  modules: Mapping[str, str]  # of a layer
  last: Mapping[str, str] = dataclasses.field(default_factory=dict)  # modules


BERT_NAMES = EncoderNames(
  tables={
    "word": "embeddings.word_embeddings.weight",
    "position": "embeddings.position_embeddings.weight",
    "type": "embeddings.token_type_embeddings.weight",
  },
  norm="embeddings.LayerNorm",
  layer="encoder.layer",
  modules={
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "ffn_input": "intermediate.dense",
    "ffn_output": "output.dense",
    "ffn_norm": "output.LayerNorm",
  },
)
MODERN_NAMES = EncoderNames(
  tables={"word": "embeddings.tok_embeddings.weight"},
  norm="embeddings.norm",
  layer="layers",
  modules={
    "attention_norm": "attn_norm",  # the first layer has none
    "qkv": "attn.Wqkv",
    "attention_output": "attn.Wo",
    "ffn_norm": "mlp_norm",
    "ffn_gated": "mlp.Wi",
    "ffn_output": "mlp.Wo",
  },
  last={"final_norm": "final_norm"},
)


@dataclasses.dataclass(frozen=True)
class NetworkNames:
  """Hugging Face's names for a network and its head."""

  family: str  # the `model_type`
  architecture: str
  head: Mapping[str, str]  # our name -> Hugging Face's, of modules and arrays
  head_arrays: Mapping[str, str] = dataclasses.field(default_factory=dict)
  encoder: EncoderNames = BERT_NAMES
  prefix: str = ""  # of the encoder's names, if not the family
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
_MODERN_MLM = NetworkNames(
  family="modernbert",
  architecture="ModernBertForMaskedLM",
  head={"dense": "head.dense", "norm": "head.norm"},
  head_arrays={"bias": "decoder.bias"},
  tied={"decoder.weight": "embeddings/word"},
  encoder=MODERN_NAMES,
  prefix="model",
)
MODERN_ENCODER = "ModernBertModel"
# Subfolder of an export, with the encoder once more and a head for two labels.
DETECTOR, DETECTOR_LABELS = "detector", ("original", "replaced")
DETECTOR_CLASS = "ModernBertForTokenClassification"
_MODERN_DETECTOR = dataclasses.replace(
  _MODERN_MLM,
  architecture=DETECTOR_CLASS,
  head={**_MODERN_MLM.head, "output": "classifier"},
  head_arrays={},
  tied={},
)
BACKBONES = {
  "encoder": NETWORKS,
  "modern": dict.fromkeys(NETWORKS, _MODERN_MLM)
  | {"discriminator": _MODERN_DETECTOR},
}
# Modules that BertForPreTraining has and BertForMaskedLM has not.
POOLED = {
  "pooled/pooler": "bert.pooler.dense",
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
  tensors, has_labels = {}, len(list_classes(model, role)) > 1
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


def network_names(model: Model, role: str) -> NetworkNames:
  """Returns the names of a network; other backbones are described as BERT."""
  return BACKBONES.get(model.backbone, NETWORKS)[role]


def name_table(model: Model, role: str) -> dict[str, str]:
  """Maps each path in our tree to Hugging Face's name, for one network."""
  config, names = model.roles[role], network_names(model, role)
  arrays, prefix = names.encoder, names.prefix or names.family
  modules = {"embeddings/norm": f"{prefix}.{arrays.norm}"}
  if config.embedding_size != config.width:
    modules[f"{role}/project"] = f"{prefix}.embeddings_project"
  for i in range(config.layers):
    for module, name in arrays.modules.items():
      layer = f"{prefix}.{arrays.layer}.{i}"
      modules[f"{role}/layer_{i}/{module}"] = f"{layer}.{name}"
  modules |= {f"{role}/{x}": f"{prefix}.{y}" for x, y in arrays.last.items()}
  if config.pre_norm:
    modules.pop(f"{role}/layer_0/attention_norm", None)
  fine_tuned = isinstance(model, finetune.DownstreamModel)
  if fine_tuned:
    modules |= task_head(model.head, model.backbone)
  else:
    modules |= {f"{role}_head/{x}": name for x, name in names.head.items()}
  if has_pooler(model):
    modules |= POOLED
  table = {
    f"embeddings/{kind}": f"{prefix}.{name}"
    for kind, name in arrays.tables.items()
  }
  for module, name in modules.items():
    weight = "scale" if module.endswith("norm") else "kernel"
    table[f"{module}/{weight}"] = f"{name}.weight"
    if config.bias or module.endswith("/output"):
      table[f"{module}/bias"] = f"{name}.bias"
  if not fine_tuned:
    for array, name in names.head_arrays.items():
      table[f"{role}_head/{array}"] = name
  return table


def task_head(kind: str, backbone: str) -> Mapping[str, str]:
  """Maps modules of a task head; ModernBERT's have one name in all classes."""
  if backbone != "modern":
    return _TASK_HEADS[kind]
  return {f"task_head/{x}": name for x, name in _MODERN_DETECTOR.head.items()}


def architecture(model: Model, role: str) -> str:
  """Returns the class of transformers for one network of a model."""
  name = network_names(model, role).architecture
  if isinstance(model, finetune.DownstreamModel):
    return name.partition("For")[0] + TASK_CLASSES[model.head]
  return "BertForPreTraining" if has_pooler(model) else name


def list_classes(model: Model, role: str) -> list[tuple[str, str]]:
  """Returns (subfolder, class) of each folder of an export; "": the folder.

  Two labels on the discriminator's head would load in silence as a classifier,
  as the heads of ModernBERT's classes have the same names.
  """
  name = architecture(model, role)
  if name == DETECTOR_CLASS:
    return [("", MODERN_ENCODER), (DETECTOR, name)]
  return [("", name)]


def has_pooler(model: Model) -> bool:
  """Whether a pre-trained BERT has a pooler and a next-sentence classifier."""
  return isinstance(model, pretrain.BertMlm) and model.pooler
