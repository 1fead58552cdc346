"""The fields of a network's config.json, by family: one table for both ways.

fields = make_fields(model, "bert", pad=0)
fields = complete_fields(json.loads(text), path)
sizes = read_sizes(fields)  # of a model
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import decoders, processors

from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.data.tokenizer import SPECIALS, Tokenizer
from truenegs_jax.models import encoder
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.weights import hf_names

# Numbers: field -> attribute of `EncoderConfig`, and the default that
# transformers takes if config.json leaves the field out.
_BERT = {
  "vocab_size": ("vocab_size", 30_522),
  "num_hidden_layers": ("layers", 12),
  "hidden_size": ("width", 768),
  "num_attention_heads": ("heads", 12),
  "intermediate_size": ("ffn", 3072),
  "max_position_embeddings": ("max_positions", 512),
  "type_vocab_size": ("type_vocab_size", 2),
  "hidden_dropout_prob": ("dropout", 0.1),
  "attention_probs_dropout_prob": ("attention_dropout", 0.1),
  "initializer_range": ("initializer_range", 0.02),
  "layer_norm_eps": ("norm_epsilon", 1e-12),
}
FIELDS: dict[str, dict[str, tuple[str, float]]] = {
  "bert": _BERT,
  "electra": _BERT
  | {
    "embedding_size": ("embedding_size", 128),
    "hidden_size": ("width", 256),
    "num_attention_heads": ("heads", 4),
    "intermediate_size": ("ffn", 1024),
  },
  "modernbert": {
    "vocab_size": ("vocab_size", 50_368),
    "num_hidden_layers": ("layers", 22),
    "hidden_size": ("width", 768),
    "num_attention_heads": ("heads", 12),
    "intermediate_size": ("ffn", 1152),
    "max_position_embeddings": ("max_positions", 8192),
    "global_attn_every_n_layers": ("global_every", 3),
    "local_attention": ("window", 128),  # twice the window
    "mlp_dropout": ("dropout", 0.0),
    "embedding_dropout": ("dropout", 0.0),
    "attention_dropout": ("attention_dropout", 0.0),
    "initializer_range": ("initializer_range", 0.02),
    "norm_eps": ("norm_epsilon", 1e-5),
  },
}
# Fields with the only value that is supported, which is also their default.
# transformers ignores the position_embedding_type "sans_pos" of Ettin and
# mmBERT.
_BERT_ONLY = {
  "tie_word_embeddings": True,
  "hidden_act": "gelu",
  "position_embedding_type": "absolute",
  "is_decoder": False,
}
_FIXED: dict[str, dict[str, Any]] = {
  "bert": _BERT_ONLY,
  "electra": _BERT_ONLY,
  "modernbert": {
    "tie_word_embeddings": True,
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "decoder_bias": True,
    **{f"{x}_bias": False for x in ("norm", "attention", "mlp", "classifier")},
  },
}
_UNWRITTEN = ("position_embedding_type", "is_decoder")
MAX_SIZE = 10_000_000
# Attributes that no array and no other result than training depends on.
RATES = ("dropout", "attention_dropout", "initializer_range")
# Keys of `model` -> kinds of layers in ModernBERT's config.json, global first.
THETAS = {
  "global_rope_theta": "full_attention",
  "local_rope_theta": "sliding_attention",
}


def make_fields(
  model: hf_names.Model, role: str, *, pad: int
) -> dict[str, Any]:
  """Returns a complete `config.json`, as defaults are of other sizes."""
  config = model.roles[role]
  family = hf_names.network_names(model, role).family
  fields = {
    "architectures": [hf_names.architecture(model, role)],
    "model_type": family,
    "pad_token_id": pad,
    "dtype": "float32",
    **{x: y for x, y in _FIXED[family].items() if x not in _UNWRITTEN},
  }
  for name, (attribute, _) in FIELDS[family].items():
    fields[name] = getattr(config, attribute)
  if family == "modernbert":
    fields["local_attention"] = 2 * config.window
    fields["layer_types"] = _layer_types(config.layers, config.global_every)
    fields["rope_parameters"] = {}
    for name, kind in THETAS.items():  # for transformers v4.57 and v5
      theta = getattr(config, name)
      rope = {"rope_type": "default", "rope_theta": theta}
      fields[name] = theta
      fields["rope_parameters"][kind] = rope
  return fields


def label_fields(labels: Sequence[str]) -> dict[str, Any]:
  """Returns the fields of a head of these labels."""
  return {
    "num_labels": len(labels),
    "id2label": {str(i): label for i, label in enumerate(labels)},
    "label2id": {label: i for i, label in enumerate(labels)},
  }


def tokenizer_files(
  tokenizer: Tokenizer, family: str, length: int
) -> dict[str, Any]:
  """Returns what transformers reads beside the vocabulary, by file name."""
  inputs = ["input_ids", "token_type_ids", "attention_mask"]
  if family == "modernbert":  # it has no token types
    inputs.remove("token_type_ids")
  limits = {"model_max_length": length, "model_input_names": inputs}
  if tokenizer.definition:
    saved = json.loads(tokenizer.files[tokenizer_lib.CONFIG])
    return {tokenizer_lib.CONFIG: saved | limits}
  # In BERT's tokenizer, null means that accents are stripped if lower-casing.
  is_default = tokenizer.strip_accents == tokenizer.lowercase
  config: dict[str, Any] = {
    "tokenizer_class": f"{family.capitalize()}Tokenizer",
    "do_lower_case": tokenizer.lowercase,
    "model_max_length": length,
    **{f"{x[1:-1].lower()}_token": x for x in SPECIALS},
    "strip_accents": None if is_default else tokenizer.strip_accents,
    "tokenize_chinese_chars": True,
  }
  if family != "modernbert":
    return {tokenizer_lib.CONFIG: config}
  # transformers makes no tokenizer.json for ModernBERT.
  config |= {"tokenizer_class": "PreTrainedTokenizerFast"} | limits
  backend = tokenizer.make_backend()
  backend.add_special_tokens(list(SPECIALS))
  backend.decoder = decoders.WordPiece()
  backend.post_processor = processors.BertProcessing(
    ("[SEP]", tokenizer.sep), ("[CLS]", tokenizer.cls)
  )
  fast = json.loads(backend.to_str())
  return {tokenizer_lib.CONFIG: config, tokenizer_lib.JSON: fast}


def complete_fields(
  saved: Mapping[str, Any], path: pathlib.Path
) -> dict[str, Any]:
  """Fills in the defaults of missing fields of a `config.json`.

  InputError, with its `path`: a network that the backbones cannot be.
  """
  family = _find_family(saved, path)
  defaults = {name: default for name, (_, default) in FIELDS[family].items()}
  fields = {**defaults, **_FIXED[family], **saved, "model_type": family}
  for name, default in defaults.items():
    low = 2 if name == "local_attention" else 1  # a window of at least 1
    size = fields[name]
    is_valid = type(size) is int and low <= size < MAX_SIZE
    if type(default) is int and not is_valid:
      raise InputError(
        f"init: '{path}' has {name}={repr(size)[:40]}, which is not a valid"
        " size. Use the config that belongs to the weights."
      )
  if family == "modernbert":
    fields["local_attention"] -= fields["local_attention"] % 2  # rounded down
    fields["global_attn_every_n_layers"] = _read_pattern(fields, path)
    fields |= _read_thetas(fields, path)
    pooling = fields.get("classifier_pooling", "cls")
    one_of(f"init: '{path}': classifier_pooling", pooling, ("cls", "mean"))
  return fields


def _find_family(saved: Mapping[str, Any], path: pathlib.Path) -> str:
  """Returns the `model_type`; old files only have a class of that family."""
  family = saved.get("model_type")
  match saved.get("architectures"):
    case [str(name), *_] if family is None:
      family = name.partition("For")[0].removesuffix("Model").lower()
  if isinstance(family, str) and family in FIELDS:
    return family
  problem = f"the model_type {repr(family)[:40]}. Use weights of those"
  if saved.get("model_type") is None:
    problem = 'no model_type. Add it to that file, as "model_type": "bert"'
  raise InputError(
    f"init: '{path}' has {problem}. Supported are {', '.join(FIELDS)}."
  )


def _layer_types(layers: int, global_every: int) -> list[str]:
  kinds = list(THETAS.values())
  return [kinds[i % global_every > 0] for i in range(layers)]


def _read_pattern(fields: Mapping[str, Any], path: pathlib.Path) -> int:
  """Returns n if layers 0, n, 2 n, ... attend to all tokens.

  `layer_types` of transformers v5 replaces `global_attn_every_n_layers`.
  """
  every = fields["global_attn_every_n_layers"]
  layers = fields["num_hidden_layers"]
  types = fields.get("layer_types")
  full, local = THETAS.values()
  if isinstance(types, list) and types != _layer_types(layers, every):
    every = types.index(full, 1) if full in types[1:] else layers
  if types in (None, _layer_types(layers, every)):
    return every
  raise InputError(
    f"init: '{path}' has layer_types in another order than ModernBERT's, where"
    f" layers 0, n, 2 n, ... have {full} and all others {local}. Use other"
    " weights."
  )


def _read_thetas(
  fields: Mapping[str, Any], path: pathlib.Path
) -> dict[str, float]:
  """Returns the bases of rotary positions; v4.57 and v5 name them differently.

  InputError: rotary positions that are scaled, or without a valid base.
  """
  thetas = {}
  for name, kind in THETAS.items():
    saved = fields.get(name, getattr(encoder.EncoderConfig, name))
    ropes = fields.get("rope_parameters") or {kind: {"rope_theta": saved}}
    match ropes.get(kind) if isinstance(ropes, dict) else ropes:
      case {"rope_theta": float(theta) | int(theta), **others} if (
        others.get("rope_type", "default") == "default" and 0 < theta < 1e30
      ):
        thetas[name] = float(theta)
      case _:
        raise InputError(
          f"init: '{path}' has the rotary positions {repr(ropes)[:80]}, but"
          " only a positive rope_theta with rope_type='default' is supported."
          " Use other weights."
        )
  return thetas


def read_sizes(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the values of `EncoderConfig` in the fields of a config.json."""
  table = FIELDS[fields["model_type"]]
  sizes = {attribute: fields[name] for name, (attribute, _) in table.items()}
  for name in RATES:
    if not (type(sizes[name]) in (int, float) and 0 <= sizes[name] <= 1):
      del sizes[name]  # no result but training depends on it
  if "embedding_size" not in sizes:
    sizes["embedding_size"] = sizes["width"]
  if "window" in sizes:
    sizes["window"] //= 2
    sizes |= {name: fields[name] for name in THETAS}
  return sizes


def field_mismatches(
  saved: Mapping[str, Any], expected: Mapping[str, Any]
) -> list[str]:
  """Returns one line for each of the `saved` fields that differ.

  Rates of dropout and bases of rotary positions may differ, and so may fields
  that are in one of the two.
  """
  family = expected["model_type"]
  unwritten = {x: _FIXED[family][x] for x in _UNWRITTEN if x in _FIXED[family]}
  fields = {**unwritten, **expected}
  sizes = [x for x, (name, _) in FIELDS[family].items() if name not in RATES]
  return [
    f"{name} is {saved[name]!r}, the model's is {fields[name]!r}"
    for name in (*sizes, *_FIXED[family])
    if name in saved and name in fields and saved[name] != fields[name]
  ]
