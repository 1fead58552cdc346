"""Weights to start from, as parameters of a model."""

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

# Of the largest weight: the two copies of a pair's embeddings are one array.
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
  report: Callable[[str], Any] = print,
) -> dict[str, Any]:
  """The parameters of a whole model, f32 arrays of numpy.

  Everything that headers tell is checked before any weight is read. Of a pair,
  the shared embeddings are the discriminator's. What the weights lack, and may
  lack (`fit.HEADS`, a generator, rows that `skip` allows), is what a run from
  scratch with this seed would have. A model of a task takes one network and,
  if there is one that fits, the task's head.

  Args:
    weights: what to load.
    model: what the parameters are to fit, all of them.
    tokenizer: the run's. A vocabulary beside the weights has to be the same:
      the rows of a table tell nothing of which words they are.
    skip: of `fit.SKIPS`, separated by commas. "words": rows are carried over by
      token; "positions": the first rows are; "head": a task's is drawn anew.
    task: of a model of a task: in which order its classes are, and what its
      scores are divided by; Hugging Face's heads give scores as they are.
    complete: nothing may be drawn at random, as befits a measurement.
    report: told what is left out and drawn at random.

  Raises:
    InputError: as `Weights.for_roles` and `check_fit.check_networks`; another
      vocabulary; a pair whose embeddings differ; an output table that is not
      the word table;
      weights that are not finite; parts that are lacking, if `complete`; the
      head of another task.
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
      f"init: NO vocabulary lies beside {weights.init}: whether its words are"
      " those of the run, nobody can tell"
    )
  flat = _read_all(
    networks,
    check_fit.with_their_table_sizes(model, networks, skips),
    task,
    report,
  )
  for network in networks.values():
    network.arrays.release()
  fresh = functools.cache(lambda: _fresh(model, seed))
  if "words" in skips:
    old = next(iter(vocabs.values())) or ()
    flat |= match_vocabulary.carry_words(
      flat, fresh, tokenizer.vocab, old, report
    )
  if "positions" in skips:
    size = next(iter(model.roles.values())).max_positions
    flat |= match_vocabulary.carry_positions(flat, fresh, size, report)
  new = [name for name in check_fit.flat_shapes(model) if name not in flat]
  _say_drawn(weights.init, new, report, complete=complete)
  flat |= {name: fresh()[name] for name in new}
  return traverse_util.unflatten_dict(flat, sep="/")


def _read_all(
  networks: Mapping[str, Network],
  model: hf_names.Model,
  task: task_lib.Task | None,
  report: Callable[[str], Any],
) -> Flat:
  """The parameters of all networks; shared ones are the first's."""
  flat: Flat = {}
  for role, network in networks.items():
    read = _read(network, model, role, report)
    if task:
      read |= head_transfer.convert_task_head(read, network, task, report)
    _check_same_embeddings(network.location, flat, read)
    flat = read | flat
  return flat


def _read(
  network: Network,
  model: hf_names.Model,
  role: str,
  report: Callable[[str], Any],
) -> Flat:
  """One network's parameters, of weights that were found to fit."""
  table = check_fit.loadable_names(network, model, role)
  flat = {ours: _array(network, ours, name) for ours, name in table.items()}
  for name, ours in network.tied.items():
    if name not in network.arrays.shapes or ours not in flat:
      continue
    worst = _largest_difference(network.arrays.read(name), flat[ours])
    if worst != 0:
      raise InputError(
        f"init: {network.location}: {name} differs from {table[ours]} by up to"
        f" {worst:.3g}; here the two are one array, so one of them would be"
        " lost."
      )
  if left := check_fit.unused_pooler_names(network, model, role):
    report(
      f"init: {', '.join(left)} of {network.location} are left out; to carry"
      " them along: --config.model.pooler=True"
    )
  return flat


def _array(network: Network, ours: str, name: str) -> np.ndarray:
  """An array as ours is laid out, f32; InputError if it is not finite."""
  x = network.arrays.read(name).astype(np.float32, copy=False)
  if not np.isfinite(x).all():
    raise InputError(
      f"init: {network.location}: {name} holds"
      f" {np.count_nonzero(~np.isfinite(x))} values that are not finite; the"
      " file is damaged or its run diverged."
    )
  turned = network.transposed_kernels and ours.endswith("/kernel")
  return np.ascontiguousarray(x.T if turned else x)


def _check_same_embeddings(place: str, first: Flat, second: Flat) -> None:
  """The two networks of a pair were trained on one embedding block."""
  for name in first.keys() & second.keys():
    worst = _largest_difference(first[name], second[name])
    if worst > ROUNDING * np.abs(first[name]).max():
      raise InputError(
        f"init: {place}: discriminator and generator do not share their"
        f" embeddings: {name} differs by up to {worst:.3g}. Give two networks"
        " that were trained together, or the discriminator alone: its generator"
        " then starts from scratch."
      )


def _fresh(model: hf_names.Model, seed: int) -> Flat:
  """The parameters that a run from scratch starts with."""
  params = jax.jit(lambda: pretrain.init_params(model, jax.random.key(seed)))()
  return traverse_util.flatten_dict(jax.device_get(params), sep="/")


def _say_drawn(
  init: str,
  names: Sequence[str],
  report: Callable[[str], Any],
  *,
  complete: bool,
) -> None:
  """Says what is drawn at random; that a task's head is, is no surprise."""
  if complete and names:
    raise InputError(
      f"{_drawn(init, names)}. Give weights that have it, to be measured."
    )
  if lost := [
    name for name in names if not name.startswith(head_transfer.HEAD)
  ]:
    report(_drawn(init, lost))
  if len(lost) < len(names):
    report("init: the head of the task starts from scratch")


def _drawn(init: str, names: Sequence[str]) -> str:
  return f"init: NOT in {init}, so DRAWN AT RANDOM: {_parts(names)}"


def _parts(names: Sequence[str]) -> str:
  """The parts of a model that these parameters make up, for a person."""
  modules = (name.split("/") for name in names)
  return ", ".join(
    dict.fromkeys(
      "/".join(module[:2]) if module[0] == "pooled" else module[0]
      for module in modules
    )
  )


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float:
  return float(np.abs(np.float32(a) - np.float32(b)).max())
