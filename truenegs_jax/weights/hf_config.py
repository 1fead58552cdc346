"""The fields of a network's config.json, by family.

fields = make_fields(config, "bert", "BertForMaskedLM", pad=0)
fields = read_fields(folder / "config.json")
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from truenegs_jax.models import encoder
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.runtime.files import parse_json, read_file
from truenegs_jax.weights import arrays as arrays_lib

# Fields that change the network's outputs, with the values that transformers
# uses if config.json leaves them out.
_SHARED_DEFAULTS: dict[str, float | str] = dict(
  vocab_size=30_522,
  num_hidden_layers=12,
  max_position_embeddings=512,
  type_vocab_size=2,
  hidden_act="gelu",
  layer_norm_eps=1e-12,
)
_DEFAULTS: dict[str, dict[str, float | str]] = {
  "electra": _SHARED_DEFAULTS
  | dict(
    embedding_size=128,
    hidden_size=256,
    num_attention_heads=4,
    intermediate_size=1024,
  ),
  "bert": _SHARED_DEFAULTS
  | dict(hidden_size=768, num_attention_heads=12, intermediate_size=3072),
  "modernbert": dict(
    vocab_size=50_368,
    num_hidden_layers=22,
    max_position_embeddings=8192,
    hidden_size=768,
    num_attention_heads=12,
    intermediate_size=1152,
    local_attention=128,
    global_attn_every_n_layers=3,
    norm_eps=1e-5,
    hidden_activation="gelu",
    classifier_activation="gelu",
    decoder_bias=True,
    **{f"{x}_bias": False for x in ("norm", "attention", "mlp", "classifier")},
  ),
}
_BERT_ONLY = (  # fields of BERT and ELECTRA that ModernBERT has not
  *("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"),
  *("type_vocab_size", "layer_norm_eps", "classifier_dropout"),
)
# Fields of a family that are never written; no other value is supported.
# ModernBERT has none: transformers ignores the "sans_pos" of Ettin and mmBERT.
_FIXED: dict[str, dict[str, Any]] = dict.fromkeys(
  _DEFAULTS, dict(position_embedding_type="absolute", is_decoder=False)
) | {"modernbert": {}}
MAX_SIZE = 10_000_000
# Keys of `model` -> kinds of layers in ModernBERT's config.json, global first.
THETAS = {
  "global_rope_theta": "full_attention",
  "local_rope_theta": "sliding_attention",
}
# Keys of `model` with sizes -> fields of config.json.
SIZE_FIELDS = {
  "embedding_size": "embedding_size",
  "width": "hidden_size",
  "layers": "num_hidden_layers",
  "heads": "num_attention_heads",
  "ffn": "intermediate_size",
  "type_vocab_size": "type_vocab_size",
}


def make_fields(
  config: encoder.EncoderConfig, family: str, architecture: str, *, pad: int
) -> dict[str, Any]:
  """Returns a complete `config.json` of a class of transformers."""
  fields = {
    "architectures": [architecture],
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
    "layer_norm_eps": config.norm_epsilon,
    "pad_token_id": pad,
    "classifier_dropout": None,
    "tie_word_embeddings": True,
    "dtype": "float32",
  }
  if family == "modernbert":
    shared = {x: y for x, y in fields.items() if x not in _BERT_ONLY}
    return _modern_fields(config) | shared
  if family == "electra":
    fields |= {
      "embedding_size": config.embedding_size,
      "summary_type": "first",
      "summary_use_proj": True,
      "summary_activation": "gelu",
      "summary_last_dropout": 0.1,
    }
  return fields


def _modern_fields(config: encoder.EncoderConfig) -> dict[str, Any]:
  """Returns the fields of ModernBERT only, for transformers v4.57 and v5."""
  thetas = {name: getattr(config, name) for name in THETAS}
  kinds = list(THETAS.values())
  return {
    **_DEFAULTS["modernbert"],
    "norm_eps": config.norm_epsilon,
    "local_attention": 2 * config.window,
    "global_attn_every_n_layers": config.global_every,
    "embedding_dropout": config.dropout,
    "mlp_dropout": config.dropout,
    "attention_dropout": config.attention_dropout,
    **thetas,
    "rope_parameters": {
      kind: {"rope_type": "default", "rope_theta": thetas[name]}
      for name, kind in THETAS.items()
    },
    "layer_types": [kinds[config.is_local(i)] for i in range(config.layers)],
    "classifier_pooling": "cls",
  }


def label_fields(labels: Sequence[str]) -> dict[str, Any]:
  """Returns the fields of a head of these labels."""
  return {
    "num_labels": len(labels),
    "id2label": {str(i): label for i, label in enumerate(labels)},
    "label2id": {label: i for i, label in enumerate(labels)},
  }


def read_fields(path: pathlib.Path) -> dict[str, Any]:
  """Reads a `config.json` and fills in the defaults of missing fields."""
  try:
    saved = parse_json(read_file(path))
  except (OSError, ValueError) as e:
    raise arrays_lib.read_error(path, e, "Use the original file.") from e
  family = saved.get("model_type")
  if not isinstance(family, str) or family not in _DEFAULTS:
    raise InputError(
      f"init: '{path}' has model_type={family!r}, but only"
      f" {', '.join(_DEFAULTS)} are supported. Use other weights."
    )
  defaults = _DEFAULTS[family]
  fields = defaults | _FIXED[family] | saved
  for name in (x for x in defaults if type(defaults[x]) is int):
    if type(fields[name]) is not int or not 1 <= fields[name] < MAX_SIZE:
      raise InputError(
        f"init: '{path}' has {name}={repr(fields[name])[:40]}, which is not a"
        " valid size. Use the config that belongs to the weights."
      )
  if family == "modernbert":
    fields |= _read_thetas(fields, path)
    pooling = fields.get("classifier_pooling", "cls")
    one_of(f"init: '{path}': classifier_pooling", pooling, ("cls", "mean"))
  return fields


def _read_thetas(
  fields: Mapping[str, Any], path: pathlib.Path
) -> dict[str, float]:
  """Returns the bases of rotary positions; v4.57 and v5 name them differently.

  InputError: layers or positions are not ModernBERT's.
  """
  kinds = list(THETAS.values())
  thetas = {}
  types = [kinds[i % 3 > 0] for i in range(fields["num_hidden_layers"])]
  if fields.get("layer_types") not in (None, types):
    raise InputError(
      f"init: '{path}' has layer_types with another order than ModernBERT's,"
      " where every third layer has full_attention. Use other weights."
    )
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


def field_mismatches(
  saved: Mapping[str, Any], expected: Mapping[str, Any]
) -> list[str]:
  """Returns one line for each of the `saved` fields that differ."""
  family = expected["model_type"]
  fields = {**expected, **_FIXED[family]}
  return [
    f"{name} is {saved[name]!r}, the model's is {fields[name]!r}"
    for name in _DEFAULTS[family] | _FIXED[family]
    if name in saved and saved[name] != fields[name]
  ]
