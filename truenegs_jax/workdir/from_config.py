"""From a config to its model and vocabulary."""

import math
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.configs.common_keys import TINY, KeyRule
from truenegs_jax.data.tokens.tokenizer import (
  ACCENTS,
  Tokenizer,
  load_tokenizer,
)
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError

# Of both kinds of models, as the section `model` names them.
MODEL_KEYS = (
  "variant",
  "backbone",
  "max_positions",
  "dropout",
  "attention_dropout",
  "initializer_range",
  "dtype",
  "remat",
  "scan",
)


def build_model(c: ConfigDict, *, vocab_size: int) -> pretrain.Model:
  """ELECTRA's pair or BERT, as a config describes them."""
  fields = {name: c.model[name] for name in MODEL_KEYS}
  if c.objective == "electra":
    return pretrain.make_pair(
      vocab_size=vocab_size,
      generator_multiplier=c.generator.multiplier,
      generator_variant=c.generator.variant,
      **fields,
    )
  return pretrain.make_bert(
    vocab_size=vocab_size, pooler=c.model.pooler, **fields
  )


def build_tokenizer(c: ConfigDict, path: str) -> Tokenizer:
  """Loads a vocabulary as `c.data` has it."""
  return load_tokenizer(
    path,
    lowercase=c.data.lowercase,
    strip_accents=ACCENTS[c.data.accents],
  )


def check_ranges(
  values: Mapping[str, Any], keys: Mapping[str, KeyRule]
) -> None:
  """Refuses numbers that are out of their range.

  Args:
    values: of a config, by their full keys.
    keys: the rules; what has none, or no value, is left out.
  """
  for name, key in keys.items():
    if key.low is None or name not in values:
      continue
    value = values[name]
    if not key.low <= value <= key.high or math.isinf(value):  # NaN too
      least = "more than 0" if key.low == TINY else f"at least {key.low}"
      most = f" and at most {key.high}" if key.high < math.inf else ""
      raise InputError(f"{name} is {value}; it must be finite, {least}{most}.")
