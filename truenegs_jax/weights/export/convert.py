"""Weights of any kind that `config.init` takes, exported without training.

export_weights("uncased_L-12_H-768_A-12", output)  # Google's, as unpacked
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from truenegs_jax.data.tokens.tokenizer import Tokenizer, load_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.export import model_card, pretrained
from truenegs_jax.weights.formats import hf_folder, hf_names
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
class ConvertedWeights:
  """Weights as ours; `roles` are the networks that there were."""

  params: dict[str, Any]
  model: pretrain.Model
  tokenizer: Tokenizer
  roles: tuple[str, ...]
  origin: model_card.ModelOrigin


def export_weights(
  init: str,
  output: pathlib.Path,
  *,
  vocab: str = "",
  dtype: str = "float32",
  report: Callable[[str], Any] = print,
) -> pretrained.ExportResult:
  """Converts weights that `config.init` takes; nothing is trained.

  Args:
    init: a value of `config.init`; not a run of ours, whose card says more.
    output, dtype: as in `pretrained.export_model`.
    vocab, report: as in `read_weights`.

  Raises:
    InputError: as `read_weights` and `pretrained.export_model`.
    CheckpointError, NonFiniteError, DiskError, TrueNegsError: as above.
  """
  _check_apart(init, pretrained.check_replaceable(output))  # first of all
  converted = read_weights(init, vocab=vocab, report=report)
  return pretrained.export_model(
    converted.params,
    converted.model,
    converted.tokenizer,
    output,
    origin=converted.origin,
    roles=converted.roles,
    dtype=dtype,
  )


def _check_apart(init: str, output: pathlib.Path) -> None:
  """Refuses to write where weights are read from: they would be replaced."""
  for part in (init, *init.split(",")):
    place = pathlib.Path(os.path.realpath(os.path.expanduser(part.strip())))
    if not part.strip() or not place.exists():
      continue
    if output in (place, *place.parents) or place in output.parents:
      raise InputError(
        f"output {output} would lie in what is converted, {place}, or replace"
        " it; give another --output."
      )


def read_weights(
  init: str, *, vocab: str = "", report: Callable[[str], Any] = print
) -> ConvertedWeights:
  """Reads weights of any size, with a pooler if they have one.

  Args:
    init: a value of `config.init`.
    vocab: their vocabulary, where none lies beside them.
    report: told what is downloaded, and which heads are drawn at random.

  Raises:
    InputError: as `load.load_params`; a generator alone; no vocabulary; a
      backbone that Hugging Face does not know.
  """
  weights = Weights(init, report)
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
      f"init: {kept.location} has {kept.fields['vocab_size']} words, and the"
      f" vocabulary {vocab or kept.vocabulary} {len(tokenizer.vocab)}; give"
      " theirs: --vocab=FILE."
    )
  if padding:
    report(f"init: {padding:,} rows that no word has, of padding, are left out")
  model = _model(networks, vocab_size=len(tokenizer.vocab), report=report)
  hf_folder.check_backbone(model)
  # What it would say of a generator that is not written is of no use.
  params = load.load_params(
    weights,
    model,
    tokenizer=tokenizer,
    skip="words" if padding else "",
    report=lambda line: None,
  )
  fresh = {
    role: _fresh(network, model, role) for role, network in networks.items()
  }
  for role, names in fresh.items():
    if names:
      report(
        f"init: NOT in {networks[role].location}, so DRAWN AT RANDOM: {names}"
      )
  line = f"* Converted, not trained, by truenegs_jax from: `{init}`"
  origin = model_card.ModelOrigin(line, trained=False, random_parts=fresh)
  return ConvertedWeights(params, model, tokenizer, tuple(networks), origin)


def _model(
  networks: Mapping[str, Network],
  *,
  vocab_size: int,
  report: Callable[[str], Any],
) -> pretrain.Model:
  """The model of the weights; `check_fit.check_networks` verifies it later."""
  kept = next(iter(networks.values()))
  fields: dict[str, Any] = {
    ours: x
    for ours, theirs in RATES.items()
    if isinstance(x := kept.fields.get(theirs), int | float) and 0 <= x <= 1
  }
  fields |= {
    "vocab_size": vocab_size,
    "variant": config_sizes.read_variant(kept, report),
    "backbone": kept.backbone,
    "max_positions": kept.fields["max_position_embeddings"],
  }
  if kept.role == "bert":
    model = pretrain.make_bert(**fields)
    return model.clone(
      pooler=bool(check_fit.unused_pooler_names(kept, model, "bert"))
    )
  return pretrain.make_pair(
    generator_multiplier=1.0,
    generator_variant=config_sizes.read_variant(networks["generator"], report)
    if "generator" in networks
    else STAND_IN.format(kept.fields["embedding_size"]),
    **fields,
  )


def _tokenizer(network: Network, vocab: str) -> Tokenizer:
  """The vocabulary, and how the text has to be made that it is of."""
  beside = network.vocabulary
  if not (vocab or beside):
    raise InputError(
      f"init: {network.location} has no vocabulary beside it; give it:"
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
    check_fit.loadable_names(network, model, role)
  )
  theirs = hf_names.name_table(model, role)
  return ", ".join(sorted({theirs[n].rpartition(".")[0] for n in lacking}))
