"""Loads a model with its parameters and tokenizer, of the size of its weights.

model, params, tokenizer = load("runs/electra_demo")
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from truenegs_jax.data.tokens.tokenizer import Tokenizer, load_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.formats.network import Network
from truenegs_jax.weights.init import check_fit, config_sizes, match_vocabulary
from truenegs_jax.weights.init.load import load_params

MODELS = ({"bert"}, {"discriminator"}, {"discriminator", "generator"})
# Sizes of the generator of a discriminator without one.
DUMMY_GENERATOR = "embedding_size={} width=1 layers=1 heads=1 ffn=1"
RATES = {  # fields of EncoderConfig -> fields of Hugging Face's config.json
  "dropout": "hidden_dropout_prob",
  "attention_dropout": "attention_probs_dropout_prob",
  "initializer_range": "initializer_range",
}


class Pretrained(NamedTuple):
  """A model, its parameters (f32 numpy arrays) and its tokenizer.

  >>> loaded = load("runs/electra_demo")
  >>> loaded.params["embeddings"]["word"].shape  # V, E
  (38, 16)
  """

  model: pretrain.Model
  params: dict[str, Any]
  tokenizer: Tokenizer


def load(
  init: str, *, vocab: str = "", report: Callable[[str], object] = print
) -> Pretrained:
  """Loads BERT or an ELECTRA pair from a run, a checkpoint or an export.

  >>> model, params, tokenizer = load("runs/electra_demo")
  >>> [fill] = fill_masks(model, params, tokenizer, ["the [MASK] house"])
  >>> len(fill.tokens)
  5

  A discriminator alone gets a generator of width 1 with random parameters, for
  `encode` and `detect_logits` only.

  Args:
    init: the workdir of a pre-training run (its newest checkpoint),
      WORKDIR/checkpoints/STEP, an export, a folder or a name on the Hugging
      Face hub of weights that transformers saved, Google's TF1 checkpoint, or
      DISCRIMINATOR,GENERATOR.
    vocab: the vocabulary file of weights that come without one.
    report: receives lines about downloads and about what is drawn at random.

  Raises:
    InputError: there are no such weights; a generator alone; no vocabulary, or
      one of another size; as `load_params`.
    CheckpointError: a run that cannot be read.
  """
  weights = Weights(init, report)
  model, tokenizer, skip = build_model(weights, vocab, report)
  params = load_params(
    weights, model, tokenizer=tokenizer, skip=skip, report=report
  )
  return Pretrained(model, params, tokenizer)


def build_model(
  weights: Weights, vocab: str, report: Callable[[str], object]
) -> tuple[pretrain.Model, Tokenizer, str]:
  """Builds model and tokenizer of weights; only headers are read.

  Returns:
    Model, tokenizer, and `skip` for `load_params`, which drops padding rows.
  """
  networks = weights.networks
  if set(networks) not in MODELS:
    raise InputError(
      f"init: {weights.init!r} holds only {' and '.join(networks)}. Pass BERT,"
      " a discriminator, or DISCRIMINATOR,GENERATOR."
    )
  kept = next(iter(networks.values()))
  tokenizer = _load_tokenizer(kept, vocab)
  padding = kept.fields["vocab_size"] - len(tokenizer.vocab)
  if padding < 0 or (padding and not kept.vocabulary):
    raise InputError(
      f"init: {kept.location} has {kept.fields['vocab_size']:,} words, but the"
      f" vocabulary '{vocab or kept.vocabulary}' has {len(tokenizer.vocab):,}."
      " Pass the vocabulary of the weights: --vocab=FILE."
    )
  if padding:
    report(f"init: dropped {padding:,} rows of padding.")
  model = _make_model(networks, vocab_size=len(tokenizer.vocab), report=report)
  return model, tokenizer, "words" if padding else ""


def _make_model(
  networks: Mapping[str, Network],
  *,
  vocab_size: int,
  report: Callable[[str], object],
) -> pretrain.Model:
  """Makes the model of the weights; `load_params` checks it later."""
  kept = next(iter(networks.values()))
  fields: dict[str, Any] = {
    "vocab_size": vocab_size,
    "variant": config_sizes.read_variant(kept, report),
    "backbone": kept.backbone,
    "max_positions": kept.fields["max_position_embeddings"],
  }
  for name, saved_name in RATES.items():
    rate = kept.fields.get(saved_name)
    if isinstance(rate, int | float) and 0 <= rate <= 1:
      fields[name] = rate
  if kept.role == "bert":
    model = pretrain.make_bert(**fields)
    return model.clone(
      pooler=bool(check_fit.unused_pooler_names(kept, model, "bert"))
    )
  if "generator" in networks:
    generator = config_sizes.read_variant(networks["generator"], report)
  else:
    generator = DUMMY_GENERATOR.format(kept.fields["embedding_size"])
  return pretrain.make_electra(
    generator_multiplier=1.0, generator_variant=generator, **fields
  )


def _load_tokenizer(network: Network, vocab: str) -> Tokenizer:
  """Loads the tokenizer; the vocabulary decides an unknown case."""
  saved = network.vocabulary
  if not (vocab or saved):
    raise InputError(
      f"init: {network.location} has no vocabulary file. Pass --vocab=FILE."
    )
  if vocab and saved:
    raise InputError(
      f"init: {network.location} has its own vocabulary, '{saved}'. Remove"
      f" --vocab={vocab}."
    )
  load_with = functools.partial(
    load_tokenizer, vocab or str(saved), strip_accents=network.strip_accents
  )
  tokenizer = load_with(lowercase=network.lowercase is not False)
  if network.lowercase is None and match_vocabulary.is_cased(tokenizer.vocab):
    return load_with(lowercase=False)
  return tokenizer
