"""Builds the model and the tokenizer that a config describes."""

from ml_collections import ConfigDict

from truenegs_jax.data.tokens import tokenizer as tokenizer_lib
from truenegs_jax.models import pretrain

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
    return pretrain.make_electra(
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
