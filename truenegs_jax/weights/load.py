"""Loads weights into the parameters of a model, or a model of their size.

model, params, tokenizer = load("runs/electra_demo")
params = load_params(Weights("released/electra"), model, tokenizer=tokenizer)
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from truenegs_jax.data.tokens.tokenizer import Tokenizer, load_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights import (
  check_fit,
  head_transfer,
  hf_names,
  match_vocabulary,
)
from truenegs_jax.weights.find import Weights
from truenegs_jax.weights.match_vocabulary import Flat
from truenegs_jax.weights.network import Network

# Largest difference of a pair's two copies of the shared embeddings, relative
# to the largest weight.
ROUNDING = 1e-6
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
      Face hub of weights that transformers saved, or DISCRIMINATOR,GENERATOR.
    vocab: the vocabulary file of weights that come without one.
    report: receives lines about downloads and about what is drawn at random.

  Raises:
    InputError: there are no such weights; a generator alone; no vocabulary, or
      one of another size; damaged weights.
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
  model = _make_model(networks, vocab_size=len(tokenizer.vocab))
  return model, tokenizer, "words" if padding else ""


def _make_model(
  networks: Mapping[str, Network], *, vocab_size: int
) -> pretrain.Model:
  """Makes the model of the weights; `load_params` checks it later."""
  kept = next(iter(networks.values()))
  fields: dict[str, Any] = {
    "vocab_size": vocab_size,
    "variant": kept.variant,
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
    generator = networks["generator"].variant
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


def load_params(
  weights: Weights,
  model: hf_names.Model,
  *,
  tokenizer: Tokenizer,
  seed: int = 0,
  skip: str = "",
  complete: bool = False,
  task: task_lib.Task | None = None,
  report: Callable[[str], object] = print,
) -> dict[str, Any]:
  """Returns all parameters of a model, as f32 numpy arrays.

  All headers are checked before an array is read. The shared embeddings of a
  pair are read from the discriminator. Parameters that the weights may not have
  (`check_fit.HEADS`, a generator, rows that `skip` names) get the values with
  which a run from scratch with this seed would start. A fine-tuned model takes
  one network and, if it fits, the task head of the weights.

  Args:
    tokenizer: the run's. A vocabulary next to the weights must be the same,
      because embeddings do not store their words.
    seed: of the values that are drawn at random.
    skip: names separated by commas. "words" copies rows word by word,
      "positions" copies only the first rows, "head" draws a new task head.
    complete: whether to refuse incomplete weights, for measurements.
    task: of a fine-tuned model; gives the order of classes and the scale of
      scores.
    report: receives lines about what is dropped or drawn at random.

  Raises:
    InputError: the weights do not fit; another vocabulary; a pair with
      different embeddings; output embeddings that are not the word embeddings;
      weights that are not finite; missing parameters, if `complete`; the head
      of another task.
    CheckpointError: a run that cannot be read.
  """
  skips = match_vocabulary.parse_skip(skip)
  networks = weights.for_roles(tuple(model.roles))
  vocabs = match_vocabulary.check_vocabularies(networks, tokenizer, skip=skips)
  networks = check_fit.check_networks(networks, model, skip=skips, task=task)
  if None in vocabs.values():
    report(
      f"init: {weights.init!r} has NO vocabulary file. Whether its vocabulary"
      " is the run's is unknown."
    )
  resized = check_fit.resize_embeddings(model, networks, skips)
  flat = _read_networks(networks, resized, task, report)
  for network in networks.values():
    network.arrays.release()
  init_params = functools.cache(
    lambda: traverse_util.flatten_dict(draw_params(model, seed), sep="/")
  )
  if "words" in skips:
    old_vocab = next(iter(vocabs.values())) or ()
    flat |= match_vocabulary.carry_words(
      flat, init_params, tokenizer.vocab, old_vocab, report
    )
  if "positions" in skips:
    size = next(iter(model.roles.values())).max_positions
    flat |= match_vocabulary.carry_positions(flat, init_params, size, report)
  missing = [name for name in check_fit.flat_shapes(model) if name not in flat]
  _report_missing(weights.init, missing, report, complete=complete)
  flat |= {name: init_params()[name] for name in missing}
  return traverse_util.unflatten_dict(flat, sep="/")


def _read_networks(
  networks: Mapping[str, Network],
  model: hf_names.Model,
  task: task_lib.Task | None,
  report: Callable[[str], object],
) -> Flat:
  """Reads the parameters of all networks; the first has the shared ones."""
  all_params: Flat = {}
  for role, network in networks.items():
    params = _read_network(network, model, role, report)
    if task:
      params |= head_transfer.convert_task_head(params, network, task, report)
    for name in all_params.keys() & params.keys():
      difference = _largest_difference(all_params[name], params[name])
      if difference > ROUNDING * np.abs(all_params[name]).max():
        raise InputError(
          f"init: {network.location} does not share the discriminator's"
          f" embeddings. {name} differs by up to {difference:.3g}. Pass two"
          " networks that were trained together, or only the discriminator. Its"
          " generator then starts from scratch."
        )
    all_params = params | all_params
  return all_params


def _read_network(
  network: Network,
  model: hf_names.Model,
  role: str,
  report: Callable[[str], object],
) -> Flat:
  """Reads the parameters of a network that fits the model."""
  table = check_fit.loadable_names(network, model, role)
  flat = {
    path: _read_array(network, path, name) for path, name in table.items()
  }
  for name, path in network.tied.items():
    if name not in network.arrays.shapes or path not in flat:
      continue
    difference = _largest_difference(network.arrays.read(name), flat[path])
    if difference != 0:
      raise InputError(
        f"init: {name} of {network.location} differs from {table[path]} by up"
        f" to {difference:.3g}. Here the two are one array, so one of them"
        " would be lost. Use weights with tied embeddings."
      )
  if unused := check_fit.unused_pooler_names(network, model, role):
    report(
      f"init: dropped {', '.join(unused)} of {network.location}. To keep them,"
      " set --config.model.pooler=True."
    )
  return flat


def _read_array(network: Network, path: str, name: str) -> np.ndarray:
  """Reads an array as f32 in our layout; InputError if it is not finite."""
  x = network.arrays.read(name).astype(np.float32, copy=False)
  if not np.isfinite(x).all():
    raise InputError(
      f"init: {name} of {network.location} holds"
      f" {np.count_nonzero(~np.isfinite(x)):,} values that are not finite. The"
      " file is damaged, or its run diverged. Use other weights."
    )
  is_transposed = network.transposed_kernels and path.endswith("/kernel")
  return np.ascontiguousarray(x.T if is_transposed else x)


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float:
  return float(np.abs(np.float32(a) - np.float32(b)).max())


def draw_params(model: hf_names.Model, seed: int) -> dict[str, Any]:
  """Returns the parameters with which a run from scratch starts, as numpy."""
  init = jax.jit(lambda: pretrain.init_params(model, jax.random.key(seed)))
  return jax.device_get(init())


def _report_missing(
  init: str,
  paths: Sequence[str],
  report: Callable[[str], object],
  *,
  complete: bool,
) -> None:
  """Reports missing parameters; raises InputError if `complete`."""
  if complete and paths:
    raise InputError(
      f"init: {init!r} lacks {_list_modules(paths)}, which would be drawn at"
      " random. Pass complete weights."
    )
  other = [path for path in paths if not path.startswith(head_transfer.HEAD)]
  if other:
    report(
      f"init: NOT in {init!r}, so DRAWN AT RANDOM: {_list_modules(other)}."
    )
  if len(other) < len(paths):
    report("init: the task head starts from scratch.")


def _list_modules(paths: Sequence[str]) -> str:
  """Lists the modules of parameters: "bert, pooled/pooler"."""
  parts = [path.split("/") for path in paths]
  names = ("/".join(p[:2]) if p[0] == "pooled" else p[0] for p in parts)
  return ", ".join(dict.fromkeys(names))
