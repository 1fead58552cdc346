"""Loads weights into the parameters of a model, or a model of their size.

networks = Weights("released/electra").for_roles(model.roles)
params = load_params(match_weights(networks, model, tokenizer))
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from truenegs_jax.data.tokenizer import ROLES, Tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights import hf_names
from truenegs_jax.weights.find import Report, Weights
from truenegs_jax.weights.match import (
  MatchedWeights,
  list_names,
  match_own_model,
)

FLOATS = ("float32", "float16", "bfloat16")  # types of arrays that are read
# Largest difference of a pair's two copies of the shared embeddings, relative
# to the largest weight.
ROUNDING = 1e-6
# Arrays with a row for every word.
WORD_ARRAYS = ("embeddings/word", "bert_head/bias", "generator_head/bias")
KERNEL = "task_head/output/kernel"
BIAS = "task_head/output/bias"
Flat = dict[str, np.ndarray]  # parameters by path


class Pretrained(NamedTuple):
  """A model, its parameters (f32 numpy arrays) and its tokenizer.

  >>> loaded = load("runs/demo")
  >>> loaded.params["embeddings"]["word"].shape  # V, E
  (38, 16)
  """

  model: pretrain.Model
  params: dict[str, Any]
  tokenizer: Tokenizer


def load(init: str, *, report: Report = print) -> Pretrained:
  """Loads BERT or an ELECTRA pair from a run, a checkpoint or an export.

  >>> model, params, tokenizer = load("runs/demo")
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
  loaded, matched = load_own_model(Weights(init, report))
  report_missing(matched, matched.missing, report)
  return loaded


def load_own_model(weights: Weights) -> tuple[Pretrained, MatchedWeights]:
  """Makes a model of the weights' sizes, and loads its parameters.

  The two networks of a pair share embeddings if those are the same.
  """
  model, matched = match_own_model(weights.networks)
  flats = _read_networks(matched)
  if len(flats) > 1 and any(_list_differences(*flats.values())):
    model = model.clone(sharing="none")
    matched = dataclasses.replace(matched, model=model)
  params = _make_params(matched, flats, 0, weights.report)
  return Pretrained(model, params, matched.tokenizer), matched


def load_params(
  matched: MatchedWeights,
  *,
  seed: int = 0,
  complete: bool = False,
  unread: str = "",
  task: task_lib.Task | None = None,
  report: Report = print,
) -> dict[str, Any]:
  """Returns all parameters of a model, as f32 numpy arrays.

  The shared embeddings of a pair are read from the discriminator, and those of
  a missing generator, too. Other parameters that the weights lack get the
  values with which a run from scratch with this seed would start. A fine-tuned
  model takes one network and, if it fits, the task head of the weights.

  Args:
    complete: whether to refuse incomplete weights, for measurements.
    unread: the beginning of names that are then not needed, or "".
    task: of a fine-tuned model, for the scale of its scores.
    report: receives lines about what is left out or drawn at random.

  Raises InputError for embeddings that are shared or tied, but differ, and for
  weights that are not finite; CheckpointError for an unreadable run.
  """
  needed = [x for x in matched.missing if not (unread and x.startswith(unread))]
  if complete and needed:
    raise InputError(
      f"init: {matched.location} lacks {list_modules(needed)}, which would be"
      " drawn at random. Pass complete weights."
    )
  flats = _read_networks(matched)
  for flat in flats.values():
    _unscale_head(flat, task)
  params = _make_params(matched, flats, seed, report)
  report_missing(matched, matched.missing, report)
  return params


def draw_params(model: hf_names.Model, seed: int) -> dict[str, Any]:
  """Returns the parameters with which a run from scratch starts, as numpy."""
  init = jax.jit(lambda: pretrain.init_params(model, jax.random.key(seed)))
  return jax.device_get(init())


def _make_params(
  matched: MatchedWeights, flats: dict[str, Flat], seed: int, report: Report
) -> dict[str, Any]:
  """Joins networks, and draws what they lack; reports what it did."""
  for line in matched.lines:
    report(line)
  flat = _join_networks(matched, flats)
  init_params = functools.cache(
    lambda: traverse_util.flatten_dict(
      draw_params(matched.model, seed), sep="/"
    )
  )
  if "words" in matched.skip:
    flat |= _carry_words(matched, flat, init_params, report)
  flat |= {path: init_params()[path] for path in matched.missing}
  return traverse_util.unflatten_dict(flat, sep="/")


def _join_networks(matched: MatchedWeights, flats: Mapping[str, Flat]) -> Flat:
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
        " only the discriminator, whose generator then starts from scratch. To"
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
  for name in sorted(a.keys() & b.keys()):
    difference = float(np.abs(a[name] - b[name]).max())
    if difference > ROUNDING * np.abs(a[name]).max():
      yield name, difference


def _read_networks(matched: MatchedWeights) -> dict[str, Flat]:
  """Reads the arrays of all networks, by role and path, as f32.

  Those of words have the rows of the weights. InputError: one is not finite.
  """
  shapes = hf_names.flat_shapes(matched.model)
  flats: dict[str, Flat] = {}
  for role, network in matched.networks.items():
    loaded = network.load()
    _check_tied(loaded, matched, role)
    flats[role] = {}
    for path, name in matched.names[role].items():
      x = loaded.pop(name)
      is_float = x.dtype.name in FLOATS
      x = x.astype(np.float32, copy=False)
      num_bad = np.count_nonzero(~np.isfinite(x)) if is_float else x.size
      if num_bad:
        raise InputError(
          f"init: {name} of {network.location} holds {num_bad:,} values that"
          " are not finite floats. The file is damaged, or its run diverged."
          " Use other weights."
        )
      flats[role][path] = hf_names.from_huggingface(x, path, shapes[path].shape)
  return flats


def _check_tied(
  loaded: Mapping[str, np.ndarray], matched: MatchedWeights, role: str
) -> None:
  """Raises InputError if an output layer is not its tied embeddings."""
  table = matched.names[role]
  bias = f"{role}_head/bias"
  for name in hf_names.network_names(matched.model, role).tied:
    if bias not in table or name not in loaded:
      continue
    other = table["embeddings/word" if name.endswith("weight") else bias]
    a, b = (loaded[x].astype(np.float32) for x in (other, name))
    if a.shape != b.shape or any(_list_differences({"": a}, {"": b})):
      raise InputError(
        f"init: {matched.networks[role].location} is not tied: {name} differs"
        f" from {other}, and this model has one array for both. Use other"
        " weights; a pre-training may start with another head by"
        " --config.init_skip=head."
      )


def _unscale_head(flat: Flat, task: task_lib.Task | None) -> None:
  """Makes a head of scores one of (score - offset) / scale, as ours are."""
  if task and task.kind == task_lib.SCORE and KERNEL in flat:
    offset, scale = task.scale
    flat[KERNEL] = flat[KERNEL] / scale
    flat[BIAS] = (flat[BIAS] - offset) / scale


def _carry_words(
  matched: MatchedWeights,
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
    listed = f" ({list_names(new)})" if new else ""
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


def report_missing(
  matched: MatchedWeights, missing: Sequence[str], report: Report
) -> None:
  """Reports modules with `missing` parameters, if there are any."""
  if missing:
    modules = list_modules(missing)
    report(f"init: NOT in {matched.location}, so DRAWN AT RANDOM: {modules}.")


def list_modules(paths: Iterable[str]) -> str:
  """Lists the modules of parameters: "bert, pooled/pooler"."""
  names = []
  for path in paths:
    module, part, *_ = path.split("/")
    is_head = module in ("pooled", "task_head")
    names.append(f"{module}/{part}" if is_head else module)
  return ", ".join(dict.fromkeys(names))
