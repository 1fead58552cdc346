"""Loads weights into the parameters of a model."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights.formats import hf_names
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.formats.network import Network
from truenegs_jax.weights.init import check_fit, head_transfer, match_vocabulary
from truenegs_jax.weights.init.match_vocabulary import Flat

# Largest difference of a pair's two copies of the shared embeddings, relative
# to the largest weight.
ROUNDING = 1e-6


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
    skip: values of `check_fit.SKIPS`, separated by commas. "words" copies rows
      word by word, "positions" copies only the first rows, "head" draws a new
      task head.
    complete: whether to refuse incomplete weights, for measurements.
    task: of a fine-tuned model; gives the order of classes and the scale of
      scores, see `head_transfer.convert_task_head`.
    report: receives lines about what is dropped or drawn at random.

  Raises:
    InputError: another vocabulary; a pair with different embeddings; output
      embeddings that are not the word embeddings; weights that are not finite;
      missing parameters, if `complete`; the head of another task; as
      `Weights.for_roles` and `check_fit.check_networks`.
  """
  skips = check_fit.parse_skip(skip)
  networks = weights.for_roles(tuple(model.roles))
  vocabs = match_vocabulary.check_vocabularies(networks, tokenizer, skip=skips)
  networks = head_transfer.drop_unused_heads(
    networks, model, skip=skips, task=task
  )
  check_fit.check_networks(networks, model, skip=skips)
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
    _check_same_embeddings(network.location, all_params, params)
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


def _check_same_embeddings(location: str, first: Flat, second: Flat) -> None:
  """Checks that the networks of a pair were trained with shared embeddings."""
  for name in first.keys() & second.keys():
    difference = _largest_difference(first[name], second[name])
    if difference > ROUNDING * np.abs(first[name]).max():
      raise InputError(
        f"init: {location} does not share the discriminator's embeddings."
        f" {name} differs by up to {difference:.3g}. Pass two networks that"
        " were trained together, or only the discriminator. Its generator then"
        " starts from scratch."
      )


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


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float:
  return float(np.abs(np.float32(a) - np.float32(b)).max())
