"""From a config to its model and vocabulary."""

from ml_collections import ConfigDict

from truenegs_jax.data.tokens.tokenizer import (
  ACCENTS,
  Tokenizer,
  load_tokenizer,
)
from truenegs_jax.models import pretrain

# Of both kinds of models, as the section `model` names them.
FIELDS = (
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
  fields = {name: c.model[name] for name in FIELDS}
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


def vocabulary_of(c: ConfigDict, path: str) -> Tokenizer:
  """Loads a vocabulary as `c.data` has it."""
  return load_tokenizer(
    path,
    lowercase=c.data.lowercase,
    strip_accents=ACCENTS[c.data.accents],
  )
