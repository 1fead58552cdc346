"""The fields of a network's config.json, by family: one table for both ways.

fields = make_fields(config, "bert", "BertForMaskedLM", pad=0)
fields = read_fields(folder / "config.json")
sizes = read_sizes(fields)  # of a model
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from truenegs_jax.models import encoder
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.runtime.files import parse_json, read_file
from truenegs_jax.weights import arrays as arrays_lib

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
  "hidden_act": "gelu",
  "position_embedding_type": "absolute",
  "is_decoder": False,
}
_FIXED: dict[str, dict[str, Any]] = {
  "bert": _BERT_ONLY,
  "electra": _BERT_ONLY,
  "modernbert": {
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "decoder_bias": True,
    **{f"{x}_bias": False for x in ("norm", "attention", "mlp", "classifier")},
  },
}
_UNWRITTEN = ("position_embedding_type", "is_decoder")
_HEADS: dict[str, dict[str, Any]] = {  # fields that are always written
  "bert": {"classifier_dropout": None},
  "electra": {
    "classifier_dropout": None,
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
    "summary_last_dropout": 0.1,
  },
  "modernbert": {"classifier_pooling": "cls"},
}
MAX_SIZE = 10_000_000
# Attributes that no array and no other result than training depends on.
RATES = ("dropout", "attention_dropout", "initializer_range")
# Keys of `model` -> kinds of layers in ModernBERT's config.json, global first.
THETAS = {
  "global_rope_theta": "full_attention",
  "local_rope_theta": "sliding_attention",
}


def make_fields(
  config: encoder.EncoderConfig, family: str, architecture: str, *, pad: int
) -> dict[str, Any]:
  """Returns a complete `config.json`, as defaults are of other sizes."""
  fields = {
    "architectures": [architecture],
    "model_type": family,
    "pad_token_id": pad,
    "tie_word_embeddings": True,
    "dtype": "float32",
    **{x: y for x, y in _FIXED[family].items() if x not in _UNWRITTEN},
    **_HEADS[family],
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


def read_fields(path: pathlib.Path) -> dict[str, Any]:
  """Reads a `config.json`, and fills in the defaults of missing fields.

  InputError: it is damaged, or of a network that the backbones cannot be.
  """
  try:
    saved = parse_json(read_file(path))
  except (OSError, ValueError) as e:
    raise arrays_lib.read_error(path, e, "Use the original file.") from e
  family = _find_family(saved, path)
  defaults = {name: default for name, (_, default) in FIELDS[family].items()}
  fields = {**defaults, **_FIXED[family], **saved, "model_type": family}
  for name, default in defaults.items():
    is_size = type(default) is int
    low = 2 if name == "local_attention" else 1  # a window of at least 1
    is_valid = type(fields[name]) is int and low <= fields[name] < MAX_SIZE
    if is_size and not is_valid:
      raise InputError(
        f"init: '{path}' has {name}={repr(fields[name])[:40]}, which is not a"
        " valid size. Use the config that belongs to the weights."
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
  supported = ", ".join(FIELDS)
  if saved.get("model_type") is None:
    raise InputError(
      f"init: '{path}' has no model_type. Add the one of the weights to that"
      f' file, such as "model_type": "bert". Supported are {supported}.'
    )
  raise InputError(
    f"init: '{path}' has model_type={repr(family)[:40]}, but only {supported}"
    " are supported. Use other weights."
  )


def _layer_types(layers: int, global_every: int) -> list[str]:
  kinds = list(THETAS.values())
  return [kinds[i % global_every > 0] for i in range(layers)]


def _read_pattern(fields: Mapping[str, Any], path: pathlib.Path) -> int:
  """Returns n if layers 0, n, 2 n, ... attend to all tokens.

  `layer_types` of transformers v5 replaces `global_attn_every_n_layers`.
  """
  types = fields.get("layer_types")
  layers = fields["num_hidden_layers"]
  known = fields["global_attn_every_n_layers"]
  if types is None or types == _layer_types(layers, known):
    return known
  full, local = THETAS.values()
  if isinstance(types, list) and len(types) == layers <= MAX_SIZE:
    later = types[1:]
    every = later.index(full) + 1 if full in later else layers
    if types == _layer_types(layers, every):
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
        0 < theta < 1e30 and others.get("rope_type", "default") == "default"
      ):
        thetas[name] = float(theta)
      case rope:
        raise InputError(
          f"init: '{path}' has the rotary positions {repr(rope)[:80]}, but only"
          " a positive rope_theta with rope_type='default' is supported. Use"
          " other weights."
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

  Rates of dropout and bases of rotary positions may differ.
  """
  family = expected["model_type"]
  fields = {**_FIXED[family], **expected}
  numbers = FIELDS[family].items()
  compared = [x for x, (attribute, _) in numbers if attribute not in RATES]
  return [
    f"{name} is {saved[name]!r}, the model's is {fields[name]!r}"
    for name in (*compared, *_FIXED[family])
    if name in saved and saved[name] != fields[name]
  ]
