"""Our parameters under Hugging Face's names.

A pair becomes two models, each with its copy of the shared embedding block:
the discriminator an ElectraForPreTraining, the generator an ElectraForMaskedLM.
BERT becomes a BertForMaskedLM, or a BertForPreTraining if it carries a pooler.
What is fine-tuned becomes the class of its family that has the same head.

  tensors = to_huggingface(params, model, "discriminator")
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from flax import traverse_util

from truenegs_jax.models import finetune, pretrain
from truenegs_jax.runtime.errors import InputError

Model = pretrain.Model | finetune.DownstreamModel

DTYPES = {
  "float32": np.dtype(np.float32),
  "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclasses.dataclass(frozen=True)
class NetworkNames:
  """Hugging Face's names of a network and its head, ours -> theirs."""

  family: str  # its `model_type`, and the prefix of its encoder
  architecture: str
  head: Mapping[str, str]  # dense layers and norms
  head_arrays: Mapping[str, str]
  tied: Mapping[str, str]  # theirs -> ours: the same array once more


NETWORKS = {
  "discriminator": NetworkNames(
    family="electra",
    architecture="ElectraForPreTraining",
    head={
      "dense": "discriminator_predictions.dense",
      "output": "discriminator_predictions.dense_prediction",
    },
    head_arrays={},
    tied={},
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
# What BertForPreTraining has beside BertForMaskedLM.
POOLED = {
  "pooled/pooler": "bert.pooler.dense",
  "pooled/next_sentence": "cls.seq_relationship",
}
# Task heads, and endings of the classes that have one of that kind.
TASK_HEADS: dict[str, dict[str, str]] = {
  "dense": {
    "task_head/dense": "classifier.dense",
    "task_head/output": "classifier.out_proj",
  },
  "pooler": {
    "pooled/pooler": POOLED["pooled/pooler"],
    "task_head/output": "classifier",
  },
  "linear": {"task_head/output": "classifier"},  # in a file of its own
  "spans": {"task_head/output": "qa_outputs"},
}
TASK_CLASSES = {
  "dense": "ForSequenceClassification",
  "pooler": "ForSequenceClassification",
  "spans": "ForQuestionAnswering",
}
# Ours -> theirs; `kernel` and `scale` are their `weight`.
_LAYER = {
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
  params: Mapping[str, Any],
  model: Model,
  role: str,
  *,
  dtype: str = "float32",
) -> dict[str, np.ndarray]:
  """One network of a model, by Hugging Face's names, as its file holds them.

  The output table of a masked language model is the word table and is not
  there twice: a second copy that differed by a rounding would untie the two on
  loading.

  Args:
    params: the model's parameters (or gradients), arrays of any kind.
    model: what they are the parameters of.
    role: a name in `model.roles`.
    dtype: "float32" or "bfloat16".

  Raises:
    InputError: a parameter that this architecture does not have.
  """
  table = name_table(model, role)
  partners = tuple(name for name in model.roles if name != role)
  # All but the partner's own: a part that nobody takes must not get lost.
  flat = {
    path: x
    for path, x in traverse_util.flatten_dict(params, sep="/").items()
    if not path.startswith(partners)
  }
  _check_names(set(flat), set(table), role)
  # Contiguous: safetensors writes the buffer and ignores the strides.
  return {
    theirs: np.ascontiguousarray(
      _transpose_kernel(ours, flat[ours]), DTYPES[dtype]
    )
    for ours, theirs in table.items()
  }


def name_table(model: Model, role: str) -> dict[str, str]:
  """Path in our tree -> Hugging Face's name, for every tensor of a file.

  Heads of tasks that have no counterpart there are left out.
  """
  config, network = model.roles[role], NETWORKS[role]
  prefix = network.family
  modules = {"embeddings/norm": f"{prefix}.embeddings.LayerNorm"}
  if config.embedding_size != config.width:
    modules[f"{role}/project"] = f"{prefix}.embeddings_project"
  for i in range(config.layers):
    for ours, theirs in _LAYER.items():
      name = f"{prefix}.encoder.layer.{i}.{theirs}"
      modules[f"{role}/layer_{i}/{ours}"] = name
  fine_tuned = isinstance(model, finetune.DownstreamModel)
  if fine_tuned:
    modules |= TASK_HEADS.get(model.head, {})
  else:
    modules |= {f"{role}_head/{x}": name for x, name in network.head.items()}
  if has_pooler(model):
    modules |= POOLED
  table = {
    f"embeddings/{ours}": f"{prefix}.embeddings.{theirs}_embeddings.weight"
    for ours, theirs in (
      ("word", "word"),
      ("position", "position"),
      ("type", "token_type"),
    )
  }
  for ours, theirs in modules.items():
    weight = "scale" if ours.endswith("norm") else "kernel"
    table[f"{ours}/{weight}"] = f"{theirs}.weight"
    table[f"{ours}/bias"] = f"{theirs}.bias"
  if not fine_tuned:
    for ours, theirs in network.head_arrays.items():
      table[f"{role}_head/{ours}"] = theirs
  return table


def architecture(model: Model, role: str) -> str:
  """The class of transformers that one network of a model becomes."""
  if isinstance(model, finetune.DownstreamModel):
    family = NETWORKS[role].family.capitalize()
    return family + TASK_CLASSES.get(model.head, "Model")
  if has_pooler(model):
    return "BertForPreTraining"
  return NETWORKS[role].architecture


def has_pooler(model: Model) -> bool:
  """Whether a pooler and a next-sentence classifier ride along."""
  return isinstance(model, pretrain.BertMlm) and model.pooler


def transposed_shape(path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
  """Their shape of the array that is at `path` in our tree."""
  return shape[::-1] if path.endswith("/kernel") else shape


def _transpose_kernel(path: str, x: Any) -> np.ndarray:
  """A kernel is [in, out] here and [out, in] there; `path` is ours."""
  x = np.asarray(x)
  return x.T if path.endswith("/kernel") else x


def _check_names(given: set[str], known: set[str], role: str) -> None:
  if given == known:
    return
  problems = {"missing": known - given, "unknown": given - known}
  listed = "; ".join(
    f"{problem}: {', '.join(sorted(names)[:5])}"
    for problem, names in problems.items()
    if names
  )
  raise InputError(
    f"{role}: these parameters are not those of Hugging Face's"
    f" {NETWORKS[role].family} of this size ({listed})."
  )
