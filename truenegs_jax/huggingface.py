"""Our parameters under Hugging Face's names, and the files beside them.

A pair becomes two models, each with its copy of the shared embedding block:
the discriminator an ElectraForPreTraining, the generator an ElectraForMaskedLM.
One table of names serves both directions.

  write_model(folder, "discriminator", params, config, tokenizer)
  params = from_huggingface(tensors, "discriminator", config)
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy
from flax import traverse_util

from truenegs_jax.data.tokenizer import Tokenizer, write_vocabulary
from truenegs_jax.errors import InputError
from truenegs_jax.models import encoder, pretrain

ARCHITECTURES = {
  "discriminator": "ElectraForPreTraining",
  "generator": "ElectraForMaskedLM",
}
DTYPES = {
  "float32": np.dtype(np.float32),
  "bfloat16": np.dtype(ml_dtypes.bfloat16),
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
_HEADS = {
  "discriminator": {
    "dense": "discriminator_predictions.dense",
    "output": "discriminator_predictions.dense_prediction",
  },
  "generator": {
    "dense": "generator_predictions.dense",
    "norm": "generator_predictions.LayerNorm",
  },
}


def to_huggingface(
  params: Mapping[str, Any],
  role: str,
  config: encoder.EncoderConfig,
  *,
  dtype: str = "float32",
) -> dict[str, np.ndarray]:
  """One network of a pair, by Hugging Face's names, as its file holds them.

  The generator's output table is the word table and is not there twice: a
  second copy that differed by a rounding would untie the two on loading.

  Args:
    params: the pair's parameters (or gradients), arrays of any kind.
    role: "generator" or "discriminator".
    config: the size of that network.
    dtype: "float32" or "bfloat16".

  Raises:
    InputError: a parameter that this architecture does not have.
  """
  other = "generator" if role == "discriminator" else "discriminator"
  table = name_table(role, config)
  # All but the partner's own: a part that nobody takes must not get lost.
  flat = {
    path: x
    for path, x in traverse_util.flatten_dict(params, sep="/").items()
    if not path.startswith(other)
  }
  _check_names(set(flat), set(table), f"the {role}'s parameters")
  # Contiguous: safetensors writes the buffer and ignores the strides.
  return {
    theirs: np.ascontiguousarray(_turn(ours, flat[ours]), DTYPES[dtype])
    for ours, theirs in table.items()
  }


def from_huggingface(
  tensors: Mapping[str, np.ndarray], role: str, config: encoder.EncoderConfig
) -> dict[str, Any]:
  """The inverse: `embeddings`, `<role>` and `<role>_head` of a params tree.

  Raises:
    InputError: tensors that are missing or not of this architecture.
  """
  table = name_table(role, config)
  _check_names(set(tensors), set(table.values()), f"the {role}'s tensors")
  flat = {
    ours: np.ascontiguousarray(_turn(ours, tensors[theirs]), np.float32)
    for ours, theirs in table.items()
  }
  return traverse_util.unflatten_dict(flat, sep="/")


def name_table(role: str, config: encoder.EncoderConfig) -> dict[str, str]:
  """Path in our tree -> Hugging Face's name, for every tensor of a file."""
  modules = {"embeddings/norm": "electra.embeddings.LayerNorm"}
  if config.embedding_size != config.width:
    modules[f"{role}/project"] = "electra.embeddings_project"
  for i in range(config.layers):
    for ours, theirs in _LAYER.items():
      name = f"electra.encoder.layer.{i}.{theirs}"
      modules[f"{role}/layer_{i}/{ours}"] = name
  for ours, theirs in _HEADS[role].items():
    modules[f"{role}_head/{ours}"] = theirs
  table = {
    "embeddings/word": "electra.embeddings.word_embeddings.weight",
    "embeddings/position": "electra.embeddings.position_embeddings.weight",
    "embeddings/type": "electra.embeddings.token_type_embeddings.weight",
  }
  for ours, theirs in modules.items():
    weight = "scale" if ours.endswith("norm") else "kernel"
    table[f"{ours}/{weight}"] = f"{theirs}.weight"
    table[f"{ours}/bias"] = f"{theirs}.bias"
  if role == "generator":
    table["generator_head/bias"] = "generator_lm_head.bias"
  return table


def network_config(
  model: pretrain.ElectraPair, role: str
) -> encoder.EncoderConfig:
  """The size of one network of a pair."""
  return {
    "discriminator": model.discriminator_config,
    "generator": model.generator_config,
  }[role]


def model_config(
  role: str, config: encoder.EncoderConfig, *, pad: int, dtype: str = "float32"
) -> dict[str, Any]:
  """A whole `config.json`: every field that is left out means ELECTRA-small."""
  return {
    "architectures": [ARCHITECTURES[role]],
    "model_type": "electra",
    "vocab_size": config.vocab_size,
    "embedding_size": config.embedding_size,
    "hidden_size": config.width,
    "num_hidden_layers": config.layers,
    "num_attention_heads": config.heads,
    "intermediate_size": config.ffn,
    "hidden_act": "gelu",
    "hidden_dropout_prob": config.dropout,
    "attention_probs_dropout_prob": config.attention_dropout,
    "max_position_embeddings": config.max_positions,
    "type_vocab_size": config.type_vocab_size,
    "initializer_range": config.initializer_range,
    "layer_norm_eps": encoder.LAYER_NORM_EPSILON,
    "pad_token_id": pad,
    "classifier_dropout": None,
    "tie_word_embeddings": True,
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
    "summary_last_dropout": 0.1,
    "dtype": dtype,
  }


def tokenizer_config(
  tokenizer: Tokenizer, *, max_length: int
) -> dict[str, Any]:
  """What `tokenizer_config.json` adds to a `vocab.txt`."""
  # BERT's null stands for "as lower-casing says".
  as_lowercase = tokenizer.strip_accents == tokenizer.lowercase
  return {
    "tokenizer_class": "ElectraTokenizer",
    "do_lower_case": tokenizer.lowercase,
    "model_max_length": max_length,
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
    "strip_accents": None if as_lowercase else tokenizer.strip_accents,
    "tokenize_chinese_chars": True,
  }


def write_model(
  folder: pathlib.Path,
  role: str,
  params: Mapping[str, Any],
  config: encoder.EncoderConfig,
  tokenizer: Tokenizer,
  *,
  dtype: str = "float32",
) -> None:
  """Writes what `from_pretrained` reads into an existing folder.

  That is `model.safetensors`, `config.json`, `vocab.txt` and
  `tokenizer_config.json`.

  Raises:
    InputError: another vocabulary than the model's, or a backbone that Hugging
      Face's ELECTRA is not.
    OSError, safetensors.SafetensorError: a file could not be written.
  """
  if len(tokenizer.vocab) != config.vocab_size:
    raise InputError(
      f"the vocabulary has {len(tokenizer.vocab)} entries, the model"
      f" {config.vocab_size}; export with the one that it was trained on."
    )
  safetensors.numpy.save_file(
    to_huggingface(params, role, config, dtype=dtype),
    folder / "model.safetensors",
    metadata={"format": "pt"},
  )
  # safetensors lets nobody else read it; an export is made to be shared.
  (folder / "model.safetensors").chmod(0o644)
  _write_json(
    folder / "config.json",
    model_config(role, config, pad=tokenizer.pad, dtype=dtype),
  )
  _write_json(
    folder / "tokenizer_config.json",
    tokenizer_config(tokenizer, max_length=config.max_positions),
  )
  write_vocabulary(tokenizer.vocab, folder / "vocab.txt")


def _turn(path: str, x: Any) -> np.ndarray:
  """A kernel is [in, out] here and [out, in] there."""
  x = np.asarray(x)
  return x.T if path.endswith("/kernel") else x


def _check_names(given: set[str], known: set[str], what: str) -> None:
  if given == known:
    return
  problems = {"missing": known - given, "unknown": given - known}
  listed = "; ".join(
    f"{problem}: {', '.join(sorted(names)[:5])}"
    for problem, names in problems.items()
    if names
  )
  raise InputError(
    f"{what} are not those of an ELECTRA of this size ({listed}); only the"
    ' backbone "encoder" has Hugging Face names.'
  )


def _write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
