"""Loads weights into the parameters of a model, or a model of their size.

networks = Weights("released/electra").for_roles(model.roles)
params = load_params(match_weights(networks, model, tokenizer))
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from truenegs_jax.config.sections import FROM_WEIGHTS
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.data.vocabulary import ROLES
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights import hf_names, match
from truenegs_jax.weights.arrays import FLOATS
from truenegs_jax.weights.find import Report, Weights
from truenegs_jax.weights.hf_folder import Network

Flat = dict[str, np.ndarray]  # parameters by path
# Largest difference of a pair's two copies of the shared embeddings, relative
# to the largest weight.
ROUNDING = 1e-6
MODELS = ({"bert"}, {"discriminator"}, {"discriminator", "generator"})
# Arrays with a row for every word.
WORD_ARRAYS = ("embeddings/word", "bert_head/bias", "generator_head/bias")
KERNEL = "task_head/output/kernel"
BIAS = "task_head/output/bias"


class Pretrained(NamedTuple):
  """A model, its parameters (f32 numpy arrays) and its tokenizer.

  >>> loaded = load("runs/electra_demo")
  >>> loaded.params["embeddings"]["word"].shape  # V, E
  (38, 16)
  """

  model: pretrain.Model
  params: dict[str, Any]
  tokenizer: Tokenizer


def load(init: str, *, report: Report = print) -> Pretrained:
  """Loads BERT or an ELECTRA pair from a run, a checkpoint or an export.

  >>> model, params, tokenizer = load("runs/electra_demo")
  >>> [fill] = fill_masks(model, params, tokenizer, ["the [MASK] house"])
  >>> len(fill.tokens)
  5

  A discriminator alone gets a generator of one layer with random parameters,
  for `encode` and `detect_logits` only.

  Args:
    init: the workdir of a pre-training run (its newest checkpoint),
      WORKDIR/checkpoints/STEP, an export, a folder or a name on the Hugging
      Face hub of weights that transformers saved, or DISCRIMINATOR,GENERATOR.
    report: receives lines about downloads and about what is drawn at random.

  Raises:
    InputError: there are no such weights; a generator alone; no vocabulary, or
      one of another size; damaged weights.
    CheckpointError: a run that cannot be read.
  """
  model, matched = match_own_model(Weights(init, report), report)
  params = load_params(matched, report=report)
  return Pretrained(model, params, matched.tokenizer)


def match_own_model(
  weights: Weights, report: Report
) -> tuple[pretrain.Model, match.MatchedWeights]:
  """Makes a model of the weights' sizes; of one network, headers are read."""
  networks = weights.networks
  if set(networks) not in MODELS:
    raise InputError(
      f"init: {weights.init!r} holds only {' and '.join(networks)}. Pass BERT,"
      " a discriminator, or DISCRIMINATOR,GENERATOR."
    )
  kept = next(iter(networks.values()))
  tokenizer = kept.tokenizer
  padding = kept.fields["vocab_size"] - len(tokenizer.vocab)
  if padding > 0:
    report(f"init: dropped {padding:,} rows of padding.")
  fields = {
    **kept.values,
    "variant": FROM_WEIGHTS,
    "backbone": kept.backbone,
    "vocab_size": len(tokenizer.vocab),
  }
  model: pretrain.Model
  if kept.role == "bert":
    model = pretrain.make_bert(**fields)
    model = model.clone(pooler=kept.has_pooler)
  else:
    # A discriminator without a generator gets a small one.
    sizes: tuple[int, ...] = (kept.values["embedding_size"], 1, 1, 1)
    if "generator" in networks:
      sizes = networks["generator"].generator_sizes
    fields |= {"generator_sizes": sizes, "generator_multiplier": 1.0}
    model = pretrain.make_electra(**fields)
  model = model.clone(tokenizer=tokenizer)
  skip = "words" if padding else ""
  matched = match.match_weights(networks, model, tokenizer, init_skip=skip)
  flats = _read_networks(matched).values() if len(networks) > 1 else ()
  if flats and any(_list_differences(*flats)):
    model = model.clone(sharing="none")
    matched = dataclasses.replace(matched, model=model)
  return model, matched


def load_params(
  matched: match.MatchedWeights,
  *,
  seed: int = 0,
  complete: bool = False,
  report: Report = print,
) -> dict[str, Any]:
  """Returns all parameters of a model, as f32 numpy arrays.

  The shared embeddings of a pair are read from the discriminator, and those of
  a missing generator, too. Other parameters that the weights lack get the
  values with which a run from scratch with this seed would start. A fine-tuned
  model takes one network and, if it fits, the task head of the weights.

  Args:
    complete: whether to refuse incomplete weights, for measurements.
    report: receives lines about what is left out or drawn at random.

  Raises InputError for embeddings that are shared or tied, but differ, and for
  weights that are not finite; CheckpointError for an unreadable run.
  """
  for line in matched.left_out_lines():
    report(line)
  flats = _read_networks(matched)
  if matched.task:
    for role, network in matched.networks.items():
      flats[role] |= _convert_task_head(
        flats[role], network, matched.task, report
      )
  flat = _join_networks(matched, flats)
  for network in matched.networks.values():
    network.arrays.release()
  init_params = functools.cache(
    lambda: traverse_util.flatten_dict(
      draw_params(matched.model, seed), sep="/"
    )
  )
  if "words" in matched.skip:
    flat |= _carry_words(matched, flat, init_params, report)
  _report_missing(matched, report, complete=complete)
  flat |= {path: init_params()[path] for path in matched.missing}
  return traverse_util.unflatten_dict(flat, sep="/")


def draw_params(model: hf_names.Model, seed: int) -> dict[str, Any]:
  """Returns the parameters with which a run from scratch starts, as numpy."""
  init = jax.jit(lambda: pretrain.init_params(model, jax.random.key(seed)))
  return jax.device_get(init())


def _join_networks(
  matched: match.MatchedWeights, flats: Mapping[str, Flat]
) -> Flat:
  """Joins networks; what they share is the first one's, or must be equal."""
  kept = next(iter(flats.values()))
  masked = flats.get("generator", {})
  sharing = getattr(matched.model, "sharing", "full")
  if sharing == "full":
    for name, difference in _list_differences(kept, masked):
      raise InputError(
        f"init: {matched.networks['generator'].location} does not share the"
        f" discriminator's embeddings. {name} differs by up to"
        f" {difference:.3g}. Pass two networks that were trained together, or"
        " only the discriminator. Its generator then starts from scratch. To"
        " keep both, set --config.model.sharing=disentangled."
      )
    return masked | kept
  flat = kept | masked
  own = pretrain.OWN[sharing]
  for path in [x for x in kept if x.startswith("embeddings/")]:
    is_sum = sharing == "disentangled" and "/norm/" not in path
    flat[f"{own}/{path}"] = kept[path] - flat[path] if is_sum else kept[path]
  return flat


def _list_differences(a: Flat, b: Flat) -> Iterator[tuple[str, float]]:
  """Lists the arrays of both that differ, by how much; rounding may differ."""
  for name in a.keys() & b.keys():
    difference = _largest_difference(a[name], b[name])
    if difference > ROUNDING * np.abs(a[name]).max():
      yield name, difference


def _read_networks(matched: match.MatchedWeights) -> dict[str, Flat]:
  """Reads the arrays of all networks, by role and path."""
  return {
    role: _read_network(network, matched.names[role], matched.model)
    for role, network in matched.networks.items()
  }


def _read_network(
  network: Network, names: Mapping[str, str], model: hf_names.Model
) -> Flat:
  """Reads the arrays of a network by path; tied copies must be equal."""
  shapes = hf_names.flat_shapes(model)
  loaded = network.arrays.load()
  tied = {x: loaded[x] for x in network.tied if x in loaded}
  flat = {}
  for path, name in names.items():
    x = _convert(network, path, name, loaded.pop(name))
    if shapes[path].ndim > 2:  # parts of one product
      x = x.reshape(shapes[path].shape)
    flat[path] = x
  has_head = any(path.startswith(f"{network.role}_head/") for path in names)
  for name, copy in tied.items():
    path = network.tied[name]
    if not has_head or path not in flat:
      continue
    difference = _largest_difference(copy, flat[path])
    if difference != 0:
      raise InputError(
        f"init: {name} of {network.location} differs from {names[path]} by up"
        f" to {difference:.3g}. Here the two are one array, so one of them"
        " would be lost. Use weights with tied embeddings."
      )
  return flat


def _convert(
  network: Network, path: str, name: str, x: np.ndarray
) -> np.ndarray:
  """Returns an array as f32 in our layout; InputError if it is not finite."""
  if x.dtype.name not in FLOATS:
    raise InputError(
      f"init: {name} of {network.location} is of type {x.dtype}, not"
      f" {', '.join(FLOATS)}. Use other weights."
    )
  x = x.astype(np.float32, copy=False)
  if not np.isfinite(x).all():
    raise InputError(
      f"init: {name} of {network.location} holds"
      f" {np.count_nonzero(~np.isfinite(x)):,} values that are not finite. The"
      " file is damaged, or its run diverged. Use other weights."
    )
  is_transposed = not network.is_ours and path.endswith("/kernel")
  return np.ascontiguousarray(x.T if is_transposed else x)


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float:
  return float(np.abs(np.float32(a) - np.float32(b)).max())


def _convert_task_head(
  flat: Mapping[str, np.ndarray],
  network: Network,
  task: task_lib.Task,
  report: Report,
) -> Flat:
  """Converts a head's last layer, `[D, C]` and `[C]`, to a task's convention.

  Classes are put in the order of the task if both have the same names; if not,
  the assumed order is reported. Our head is trained on (score - offset) /
  scale, while Hugging Face's gives the score itself.
  """
  if task.kind == task_lib.SPANS or KERNEL not in flat:
    return {}
  kernel_DxC = flat[KERNEL]
  bias_C = flat[BIAS]
  if task.kind == task_lib.SCORE:
    offset, scale = task.scale
    return {KERNEL: kernel_DxC / scale, BIAS: (bias_C - offset) / scale}
  saved = [name.casefold() for name in match.read_labels(network.fields)]
  expected = [name.casefold() for name in task.labels]
  if sorted(saved) != sorted(expected) or len(set(saved)) < len(saved):
    report(
      f"init: assuming that the classes of {network.location}"
      f" ({match.list_names(saved)}) are {match.list_names(expected)}, in this"
      " order."
    )
    return {}
  order = [*map(saved.index, expected)]
  return {KERNEL: kernel_DxC[:, order], BIAS: bias_C[order]}


def _carry_words(
  matched: match.MatchedWeights,
  flat: Flat,
  init_params: Callable[[], Flat],
  report: Report,
) -> Flat:
  """Returns `WORD_ARRAYS` with the rows in the order of the run's V words.

  New words get those of `init_params`, of a run from scratch, `[V, ...]`. The
  tables in `flat` may have more rows than words: padding to a round number.
  """
  num_rows = len(flat[WORD_ARRAYS[0]])
  vocab = matched.tokenizer.vocab
  network = next(iter(matched.networks.values()))
  row_of = _list_rows(network.tokenizer, matched.tokenizer)
  rows_V = np.array([row_of.get(token, -1) for token in vocab])
  new = [token for token in vocab if token not in row_of]
  kept = len(vocab) - len(new)
  if new or kept < num_rows:
    listed = f" ({match.list_names(new)})" if new else ""
    report(
      f"init: copied the rows of {kept:,} of {len(vocab):,} words. Dropped"
      f" {num_rows - kept:,} rows. Words drawn at random: {len(new):,}{listed}."
    )
  carried = {}
  is_known_V = rows_V >= 0
  for name in flat:
    if name.endswith(WORD_ARRAYS):
      carried[name] = init_params()[name].copy()
      carried[name][is_known_V] = flat[name][rows_V[is_known_V]]
  return carried


def _list_rows(saved: Tokenizer, tokenizer: Tokenizer) -> dict[str, int]:
  """Returns the row of the weights for each token of a run that they know.

  "the" is a word in BERT's vocabulary, and a piece that continues one in
  byte-level BPE. So between the two, only special tokens are the same.
  """
  if bool(saved.definition) == bool(tokenizer.definition):
    return {token: i for i, token in enumerate(saved.vocab)}
  pairs = ((getattr(x, role) for x in (tokenizer, saved)) for role in ROLES)
  return {tokenizer.vocab[new]: row for new, row in pairs if min(new, row) >= 0}


def _report_missing(
  matched: match.MatchedWeights, report: Report, *, complete: bool
) -> None:
  """Reports missing parameters; raises InputError if `complete`."""
  paths = matched.missing
  if complete and paths:
    raise InputError(
      f"init: {matched.location} lacks {_list_modules(paths)}, which would be"
      " drawn at random. Pass complete weights."
    )
  shapes = hf_names.flat_shapes(matched.model)
  head = [path for path in shapes if path.startswith(hf_names.TASK_HEAD)]
  other = [path for path in paths if path not in head]
  if other:
    modules = _list_modules(other)
    report(f"init: NOT in {matched.location}, so DRAWN AT RANDOM: {modules}.")
  if len(other) < len(paths):
    part = "" if set(head) <= set(paths) else "last layer of the "
    report(f"init: the {part}task head starts from scratch.")


def _list_modules(paths: Sequence[str]) -> str:
  """Lists the modules of parameters: "bert, pooled/pooler"."""
  parts = [path.split("/") for path in paths]
  names = ("/".join(p[:2]) if p[0] == "pooled" else p[0] for p in parts)
  return ", ".join(dict.fromkeys(names))
