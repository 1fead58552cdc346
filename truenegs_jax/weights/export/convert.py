"""Exports weights in any format of `config.init` without training.

export_weights("uncased_L-12_H-768_A-12", output)  # Google's BERT, as unpacked
"""

import functools
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from truenegs_jax.data.tokens.tokenizer import Tokenizer, load_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.export import model_card, pretrained, public_names
from truenegs_jax.weights.formats import hf_folder, hf_names
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.formats.network import Network
from truenegs_jax.weights.init import (
  check_fit,
  config_sizes,
  load,
  match_vocabulary,
)

EXPORTABLE = ({"bert"}, {"discriminator"}, {"discriminator", "generator"})
# Sizes of the generator of a discriminator without one; it is not written.
DUMMY_GENERATOR = "embedding_size={} width=1 layers=1 heads=1 ffn=1"
RATES = {  # fields of EncoderConfig that fine-tuning reads from config.json
  "dropout": "hidden_dropout_prob",
  "attention_dropout": "attention_probs_dropout_prob",
  "initializer_range": "initializer_range",
}


def export_weights(
  init: str,
  output: pathlib.Path,
  *,
  vocab: str = "",
  dtype: str = "float32",
  report: Callable[[str], object] = print,
) -> pretrained.ExportResult:
  """Converts weights of any size, with a pooler if they have one.

  Args:
    init: a value of `config.init`. Export a run with
      `export_run.export_workdir`, whose model card says more.
    output, dtype: as in `pretrained.export_model`.
    vocab: the vocabulary file of weights that come without one.
    report: receives lines about downloads and about heads drawn at random.

  Raises:
    InputError: `output` and `init` overlap; a generator alone; no vocabulary,
      or one of another size; as `load.load_params` and
      `pretrained.export_model`.
    CheckpointError, NonFiniteError, DiskError, TrueNegsError: as these.
  """
  # Checked first, as reading the weights may take long.
  _check_apart(init, pretrained.check_replaceable(output))
  weights = Weights(init, report)
  networks = weights.networks
  if set(networks) not in EXPORTABLE:
    raise InputError(
      f"init: {init!r} holds only {' and '.join(networks)}. Pass BERT, a"
      " discriminator, or DISCRIMINATOR,GENERATOR."
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
  hf_folder.check_backbone(model)
  params = load.load_params(
    weights,
    model,
    tokenizer=tokenizer,
    skip="words" if padding else "",
    report=lambda line: None,  # would name a generator that is not written
  )
  origin = model_card.ModelOrigin(
    "* Converted, not trained, by truenegs_jax from:"
    f" `{public_names.hide_folders(init)}`",
    metadata=public_names.read_metadata(init),
    random_modules=_find_random_modules(networks, model, report),
  )
  return pretrained.export_model(
    params,
    model,
    tokenizer,
    output,
    origin=origin,
    roles=tuple(networks),
    dtype=dtype,
  )


def _check_apart(init: str, output: pathlib.Path) -> None:
  """Refuses an output that contains, or is inside, the weights."""
  for location in map(str.strip, (init, *init.split(","))):
    path = pathlib.Path(os.path.realpath(os.path.expanduser(location)))
    overlaps = output in (path, *path.parents) or path in output.parents
    if location and path.exists() and overlaps:
      raise InputError(
        f"output='{output}' overlaps with the weights to convert, '{path}'."
        " Choose another --output."
      )


def _make_model(
  networks: Mapping[str, Network],
  *,
  vocab_size: int,
  report: Callable[[str], object],
) -> pretrain.Model:
  """Makes the model of the weights; `load.load_params` checks it later."""
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
  return pretrain.make_pair(
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


def _find_random_modules(
  networks: Mapping[str, Network],
  model: pretrain.Model,
  report: Callable[[str], object],
) -> dict[str, str]:
  """Reports and returns Hugging Face's names of missing modules, by role."""
  random_modules = {}
  for role, network in networks.items():
    loadable = check_fit.loadable_names(network, model, role)
    missing = set(network.name_table(model, role)) - set(loadable)
    table = hf_names.name_table(model, role)
    modules = sorted({table[path].rpartition(".")[0] for path in missing})
    random_modules[role] = names = ", ".join(modules)
    if names:
      report(f"init: NOT in {network.location}, so DRAWN AT RANDOM: {names}.")
  return random_modules
