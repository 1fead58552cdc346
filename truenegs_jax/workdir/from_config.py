"""Builds the model and the tokenizer that a config describes."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.configs.common_keys import KeyRule
from truenegs_jax.data.tokens import tokenizer as tokenizer_lib
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError, one_of

# Keys of the section `model` that ELECTRA and BERT share.
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
  """Builds ELECTRA's two networks or BERT."""
  fields = {name: c.model[name] for name in MODEL_KEYS}
  fields["temperature"] = c.negatives.temperature
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


def build_tokenizer(c: ConfigDict, path: str) -> tokenizer_lib.Tokenizer:
  """Loads the vocabulary at `path` with the options of `c.data`."""
  strip_accents = tokenizer_lib.ACCENTS[c.data.accents]
  return tokenizer_lib.load_tokenizer(
    path, lowercase=c.data.lowercase, strip_accents=strip_accents
  )


def check_values(
  values: Mapping[str, Any],
  keys: Mapping[str, KeyRule],
  registries: Mapping[str, Iterable[str]],
) -> None:
  """Raises InputError for a number out of range or an unknown choice.

  Args:
    values: by full keys. Keys without a value are skipped.
    keys: the rules.
    registries: names that may grow at run time, instead of a rule's choices.
  """
  for name in [name for name in keys if name in values]:
    rule, value = keys[name], values[name]
    if rule.low is not None and (
      not rule.low <= value <= rule.high or math.isinf(value)  # NaN too
    ):
      raise InputError(
        f"{name}={value} is out of range. It must be finite,"
        f" {rule.range_in_words()}."
      )
    choices = registries.get(name, rule.choices)
    for choice in value if isinstance(value, tuple) else (value,):
      if choices:
        one_of(name, choice, choices)
