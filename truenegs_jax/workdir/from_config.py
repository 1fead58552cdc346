"""Builds the model and the tokenizer that a config describes."""

import pathlib

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


def placeholder_tokenizer(c: ConfigDict) -> tuple[tokenizer_lib.Tokenizer, str]:
  """Returns a tokenizer with the run's vocabulary size, and its origin."""
  path = pathlib.Path(c.data.vocab).expanduser()
  paths = (path, path / "vocab.txt", path / "tokenizer.json")
  file = next(filter(pathlib.Path.is_file, paths), None)
  if c.data.vocab != "train" and file:
    return build_tokenizer(c, str(file)), f"the size of '{file}'"
  num_words = c.data.vocab_size - len(tokenizer_lib.SPECIALS)
  vocab = [*tokenizer_lib.SPECIALS, *(f"word{i}" for i in range(num_words))]
  tokenizer = tokenizer_lib.make_tokenizer(vocab, lowercase=True)
  return tokenizer, "the size in data.vocab_size"
