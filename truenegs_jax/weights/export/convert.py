"""Weights of any kind that `config.init` takes, made ready to be exported.

found = read("uncased_L-12_H-768_A-12")  # Google's, as unpacked
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from truenegs_jax.data.tokens.tokenizer import Tokenizer, load_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.export import model_card
from truenegs_jax.weights.formats import hf_config, hf_names
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.formats.network import Network
from truenegs_jax.weights.init import (
  check_fit,
  config_sizes,
  load,
  match_vocabulary,
)

WHOLE = ({"bert"}, {"discriminator"}, {"discriminator", "generator"})
# In place of a generator that is not there, and that is not written.
STAND_IN = "embedding_size={} width=1 layers=1 heads=1 ffn=1"
RATES = {  # fields of EncoderConfig that fine-tuning takes over
  "dropout": "hidden_dropout_prob",
  "attention_dropout": "attention_probs_dropout_prob",
  "initializer_range": "initializer_range",
}


@dataclasses.dataclass(frozen=True)
class Converted:
  """Weights as ours; `roles` are the networks that there were."""

  params: dict[str, Any]
  model: pretrain.Model
  tokenizer: Tokenizer
  roles: tuple[str, ...]
  about: model_card.Conversion


def read(
  init: str, *, vocab: str = "", say: Callable[[str], Any] = print
) -> Converted:
  """Reads weights of any size, with a pooler if they have one.

  Args:
    init: a value of `config.init`.
    vocab: their vocabulary, where none lies beside them.
    say: told what is downloaded, and which heads are drawn at random.

  Raises:
    InputError: as `load.load_params`; a generator alone; no vocabulary; a
      backbone that Hugging Face does not know.
  """
  weights = Weights(init, say)
  networks = weights.networks
  if set(networks) not in WHOLE:
    raise InputError(
      f"init: {init} holds {' and '.join(networks)} alone; give BERT, a"
      " discriminator, or DISCRIMINATOR,GENERATOR."
    )
  kept = next(iter(networks.values()))
  tokenizer = _tokenizer(kept, vocab)
  padding = kept.fields["vocab_size"] - len(tokenizer.vocab)
  if padding < 0 or (padding and not kept.vocabulary):
    raise InputError(
      f"init: {kept.place} has {kept.fields['vocab_size']} words, and the"
      f" vocabulary {vocab or kept.vocabulary} {len(tokenizer.vocab)}; give"
      " theirs: --vocab=FILE."
    )
  if padding:
    say(f"init: {padding:,} rows that no word has, of padding, are left out")
  model = _model(networks, vocab_size=len(tokenizer.vocab), say=say)
  hf_config.check_backbone(model)
  # What it would say of a generator that is not written is of no use.
  params = load.load_params(
    weights,
    model,
    tokenizer=tokenizer,
    skip="words" if padding else "",
    say=lambda line: None,
  )
  fresh = {
    role: _fresh(network, model, role) for role, network in networks.items()
  }
  for role, names in fresh.items():
    if names:
      say(f"init: NOT in {networks[role].place}, so DRAWN AT RANDOM: {names}")
  about = model_card.Conversion(init, fresh)
  return Converted(params, model, tokenizer, tuple(networks), about)


def _model(
  networks: Mapping[str, Network],
  *,
  vocab_size: int,
  say: Callable[[str], Any],
) -> pretrain.Model:
  """What the weights are of; `fit.check` sees later that they are."""
  kept = next(iter(networks.values()))
  fields: dict[str, Any] = {
    ours: x
    for ours, theirs in RATES.items()
    if isinstance(x := kept.fields.get(theirs), int | float) and 0 <= x <= 1
  }
  fields |= {
    "vocab_size": vocab_size,
    "variant": config_sizes.variant_of(kept, say),
    "backbone": kept.backbone,
    "max_positions": kept.fields["max_position_embeddings"],
  }
  if kept.role == "bert":
    model = pretrain.make_bert(**fields)
    return model.clone(pooler=bool(check_fit.left_out(kept, model, "bert")))
  return pretrain.make_pair(
    generator_multiplier=1.0,
    generator_variant=config_sizes.variant_of(networks["generator"], say)
    if "generator" in networks
    else STAND_IN.format(kept.fields["embedding_size"]),
    **fields,
  )


def _tokenizer(network: Network, vocab: str) -> Tokenizer:
  """The vocabulary, and how the text has to be made that it is of."""
  beside = network.vocabulary
  if not (vocab or beside):
    raise InputError(
      f"init: {network.place} has no vocabulary beside it; give it:"
      " --vocab=FILE."
    )
  if vocab and beside:
    raise InputError(
      f"init: {beside} lies beside the weights and is theirs; leave out"
      f" --vocab={vocab}."
    )
  load_as = lambda lowercase: load_tokenizer(
    vocab or str(beside),
    lowercase=lowercase,
    strip_accents=network.strip_accents,
  )
  if network.lowercase is not None:
    return load_as(network.lowercase)
  tokenizer = load_as(True)
  return (
    load_as(False) if match_vocabulary.is_cased(tokenizer.vocab) else tokenizer
  )


def _fresh(network: Network, model: pretrain.Model, role: str) -> str:
  """Names, as Hugging Face has them, of the parts that the weights lack."""
  lacking = set(network.name_table(model, role)) - set(
    check_fit.present(network, model, role)
  )
  theirs = hf_names.name_table(model, role)
  return ", ".join(sorted({theirs[n].rpartition(".")[0] for n in lacking}))
