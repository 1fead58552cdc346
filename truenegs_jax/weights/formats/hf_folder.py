"""A network's folder in Hugging Face's format: read, described and written.

  network = open_network(folder)
  write_model(folder, params, model, "discriminator", tokenizer)

It holds `config.json`, the weights and, beside them, the vocabulary. Old names
of arrays are read, too.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from truenegs_jax.data.tokens.tokenizer import Tokenizer, write_vocabulary
from truenegs_jax.models import layers, registry
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats import hf_names
from truenegs_jax.weights.formats.hf_safetensors import (
  WEIGHTS,
  open_arrays,
  open_file,
)
from truenegs_jax.weights.formats.network import (
  Arrays,
  Network,
  check_layers,
  find_file,
)

CONFIG = "config.json"
HEAD = "head.safetensors"  # a linear head, which no class of transformers has
VOCABULARIES = ("vocab.txt", "tokenizer.json")
# Of TF1's layer norms; transformers takes them, too.
OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}
# What a network without a head calls its parts.
PARTS = ("embeddings", "embeddings_project", "encoder", "pooler")
# Constants that older versions saved among the weights.
CONSTANTS = ("embeddings.position_ids", "embeddings.token_type_ids")
DECODER_BIAS, BIAS = "cls.predictions.decoder.bias", "cls.predictions.bias"
GENERATORS = ("generator_predictions.", "generator_lm_head.")
TOKENIZERS = {"electra": "ElectraTokenizer", "bert": "BertTokenizer"}

# What decides the function that the weights make up, and what transformers
# takes for a field that config.json leaves out.
_DEFAULTS: dict[str, dict[str, Any]] = {
  "electra": dict(
    embedding_size=128,
    hidden_size=256,
    num_attention_heads=4,
    intermediate_size=1024,
  ),
  "bert": dict(hidden_size=768, num_attention_heads=12, intermediate_size=3072),
}
_SHARED_DEFAULTS: dict[str, Any] = dict(
  vocab_size=30_522,
  num_hidden_layers=12,
  max_position_embeddings=512,
  type_vocab_size=2,
  hidden_act="gelu",
  layer_norm_eps=1e-12,
)
# Fields that we never write; another value is another network.
_FIXED: dict[str, Any] = dict(
  position_embedding_type="absolute", is_decoder=False
)
_SIZES = {
  name
  for defaults in (*_DEFAULTS.values(), _SHARED_DEFAULTS)
  for name, value in defaults.items()
  if isinstance(value, int)
}
MAX_SIZE = 10_000_000


def has_counterpart(model: hf_names.Model) -> bool:
  """Whether Hugging Face knows the backbone: only then is there an export."""
  backbone = registry.load_backbone(model.backbone)
  return getattr(backbone, "HUGGING_FACE", False)


def check_backbone(model: hf_names.Model) -> None:
  """InputError where `has_counterpart` says no."""
  if not has_counterpart(model):
    raise InputError(
      f"model.backbone {model.backbone!r} has no counterpart in Hugging Face's"
      " transformers: such a model is neither exported nor started from its"
      ' weights; "encoder" is.'
    )


def model_config(
  model: hf_names.Model, role: str, *, pad: int, dtype: str = "float32"
) -> dict[str, Any]:
  """A whole `config.json`: a field left out means ELECTRA-small, BERT-base."""
  config = model.roles[role]
  family = hf_names.NETWORKS[role].family
  written = {
    "architectures": [hf_names.architecture(model, role)],
    "model_type": family,
    "vocab_size": config.vocab_size,
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
    "layer_norm_eps": layers.LAYER_NORM_EPSILON,
    "pad_token_id": pad,
    "classifier_dropout": None,
    "tie_word_embeddings": True,
    "dtype": dtype,
  }
  if family == "electra":
    written |= {
      "embedding_size": config.embedding_size,
      "summary_type": "first",
      "summary_use_proj": True,
      "summary_activation": "gelu",
      "summary_last_dropout": 0.1,
    }
  return written


def read_fields(path: pathlib.Path) -> dict[str, Any]:
  """The fields of a `config.json`, those that it leaves out included.

  Raises:
    InputError: it cannot be read, or is of a family that is not known here.
  """
  try:
    given = json.loads(path.read_text(encoding="utf-8"))
    family = str(given["model_type"])
  except (KeyError, TypeError) as e:
    raise InputError(
      f"init: {path} names no model_type, so it is no config of transformers:"
      " take the file that belongs to the weights."
    ) from e
  except (OSError, ValueError, RecursionError) as e:
    raise InputError(
      f"init: {path} cannot be read as the config of a model: {e!r}."
    ) from e
  if family not in _DEFAULTS:
    raise InputError(
      f"init: {path} is of a {family!r} model; weights are read of"
      f" {' and '.join(_DEFAULTS)}."
    )
  fields = _DEFAULTS[family] | _SHARED_DEFAULTS | _FIXED | given
  check_sizes(path, fields)
  return fields


def check_sizes(path: pathlib.Path, fields: Mapping[str, Any]) -> None:
  """InputError where a field of a config is no whole number that can be."""
  for name in sorted(_SIZES & fields.keys()):
    if type(fields[name]) is not int or not 1 <= fields[name] < MAX_SIZE:
      shown = repr(fields[name])[:40]
      raise InputError(
        f"init: {path}: {name} is {shown}, no size: take the file that belongs"
        " to the weights."
      )


def field_mismatches(
  given: Mapping[str, Any], model: hf_names.Model, role: str
) -> list[str]:
  """One line for each field by which weights are of another network.

  Args:
    given: as `read_fields` has them; those that it lacks are not asked for.
  """
  ours = model_config(model, role, pad=0) | _FIXED
  names = _DEFAULTS[ours["model_type"]] | _SHARED_DEFAULTS | _FIXED
  return [
    f"{name} is {given[name]!r}, the model's {ours[name]!r}"
    for name in names
    if name in given and given[name] != ours[name]
  ]


def tokenizer_config(
  tokenizer: Tokenizer, *, max_length: int, family: str = "electra"
) -> dict[str, Any]:
  """The content of `tokenizer_config.json`."""
  # BERT's null stands for "as lower-casing says".
  as_lowercase = tokenizer.strip_accents == tokenizer.lowercase
  return {
    "tokenizer_class": TOKENIZERS[family],
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
  params: Mapping[str, Any],
  model: hf_names.Model,
  role: str,
  tokenizer: Tokenizer,
  *,
  dtype: str = "float32",
  extra_fields: Mapping[str, Any] | None = None,
) -> None:
  """Writes what `from_pretrained` reads into an existing folder.

  That is `model.safetensors`, `config.json`, `vocab.txt` and
  `tokenizer_config.json` of one network of a model. A linear head of a task
  lies beside them, `head.safetensors`.

  Args:
    extra_fields: fields of `config.json` that only a task has.

  Raises:
    InputError: another vocabulary than the model's, or a backbone that Hugging
      Face does not have.
    OSError, safetensors.SafetensorError: a file could not be written.
  """
  check_backbone(model)
  config = model.roles[role]
  if len(tokenizer.vocab) != config.vocab_size:
    raise InputError(
      f"the vocabulary has {len(tokenizer.vocab)} entries, the model"
      f" {config.vocab_size}; export with the one that it was trained on."
    )
  tensors = hf_names.to_huggingface(params, model, role, dtype=dtype)
  if getattr(model, "head", "") == "linear":  # transformers has no such class
    names = [name for name in tensors if name.startswith("classifier.")]
    _save(folder / HEAD, {name: tensors.pop(name) for name in names})
  _save(folder / WEIGHTS, tensors)
  fields = model_config(model, role, pad=tokenizer.pad, dtype=dtype)
  _write_json(folder / "config.json", {**fields, **(extra_fields or {})})
  _write_json(
    folder / "tokenizer_config.json",
    tokenizer_config(
      tokenizer,
      max_length=config.max_positions,
      family=hf_names.NETWORKS[role].family,
    ),
  )
  write_vocabulary(tokenizer.vocab, folder / "vocab.txt")


def _save(path: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
  safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
  # safetensors lets nobody else read it; an export is made to be shared.
  path.chmod(0o644)


def _write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def open_network(folder: pathlib.Path) -> Network:
  """The network of a folder; its role is told by its head.

  Raises:
    InputError: no config, no weights in safetensors, damaged or hostile files,
      a family that is not known here.
  """
  path = folder / CONFIG
  if not path.exists():
    raise InputError(
      f"init: {folder} holds no {CONFIG}, which says what network its weights"
      " are of; it belongs to the model: take it from where they are from."
    )
  fields = read_fields(find_file(folder, CONFIG).path)
  arrays = _canonical(open_arrays(folder), fields["model_type"])
  if (folder / HEAD).exists():
    arrays = _with_head(arrays, open_file(folder, HEAD))
  role = _role(fields["model_type"], arrays.shapes)
  check_layers(fields, arrays)
  lowercase, strip_accents = _text(folder)
  return Network(
    role=role,
    location=str(folder),
    arrays=arrays,
    fields=fields,
    name_table=hf_names.name_table,
    transposed_kernels=True,
    vocabulary=_vocabulary(folder),
    lowercase=lowercase,
    strip_accents=strip_accents,
    tied=hf_names.NETWORKS[role].tied,
  )


def _canonical(arrays: Arrays, family: str) -> Arrays:
  """The same arrays by the names that transformers gives them today."""
  bare = not any(name.startswith(f"{family}.") for name in arrays.shapes)
  given: dict[str, str] = {}
  for name in arrays.shapes:
    if name.endswith(CONSTANTS):
      continue
    new = f"{family}.{name}" if bare and name.startswith(PARTS) else name
    for old, ending in OLD_ENDINGS.items():
      if new.endswith(old):
        new = new.removesuffix(old) + ending
    if new in given:
      raise InputError(
        f"init: {arrays.path} holds both {given[new]} and {name}, which are one"
        " array; take the original file."
      )
    given[new] = name
  if DECODER_BIAS in given and BIAS not in given:
    given[BIAS] = given.pop(DECODER_BIAS)
  return dataclasses.replace(
    arrays,
    shapes={new: arrays.shapes[name] for new, name in given.items()},
    dtypes={new: arrays.dtypes[name] for new, name in given.items()},
    read=lambda name: arrays.read(given[name]),
  )


def _with_head(arrays: Arrays, head: Arrays) -> Arrays:
  if both := arrays.shapes.keys() & head.shapes.keys():
    raise InputError(
      f"init: {arrays.path} and {head.path} both hold {min(both)}; take the"
      " original files."
    )
  return dataclasses.replace(
    arrays,
    shapes={**arrays.shapes, **head.shapes},
    dtypes={**arrays.dtypes, **head.dtypes},
    read=lambda x: head.read(x) if x in head.shapes else arrays.read(x),
  )


def _role(family: str, names: Iterable[str]) -> str:
  if family == "bert":
    return "bert"
  is_generator = any(name.startswith(GENERATORS) for name in names)
  return "generator" if is_generator else "discriminator"


def _vocabulary(folder: pathlib.Path) -> pathlib.Path | None:
  there = (name for name in VOCABULARIES if (folder / name).exists())
  return next((find_file(folder, name).path for name in there), None)


def _text(folder: pathlib.Path) -> tuple[bool | None, bool | None]:
  """Whether text is lower-cased and loses its accents, as far as is said.

  The tokenizer's files say it, the older of the two first. Where they say
  nothing of accents, or null, those go with lower-casing, as BERT's do.
  """
  config = _json(folder, "tokenizer_config.json")
  normalizer = _json(folder, "tokenizer.json").get("normalizer")
  rules = normalizer if isinstance(normalizer, dict) else {}
  lowercase = config.get("do_lower_case", rules.get("lowercase"))
  accents = config.get("strip_accents", rules.get("strip_accents"))
  lowercase = lowercase if isinstance(lowercase, bool) else None
  return lowercase, accents if isinstance(accents, bool) else lowercase


def _json(folder: pathlib.Path, name: str) -> Mapping[str, Any]:
  """A file that need not be there and need not be right."""
  if not (folder / name).exists():
    return {}
  file = find_file(folder, name)
  try:
    fields = json.loads(file.target.read_text(encoding="utf-8"))
  except (OSError, ValueError, RecursionError):
    return {}
  return fields if isinstance(fields, dict) else {}
