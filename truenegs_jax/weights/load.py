"""Weights to start from, as parameters of a model."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from truenegs_jax.data.tokenizer import Tokenizer, load_tokenizer
from truenegs_jax.errors import InputError
from truenegs_jax.models import pretrain
from truenegs_jax.weights import fit, places
from truenegs_jax.weights.networks import Network

# Of the largest weight: the two copies of a pair's embeddings are one array.
ROUNDING = 1e-6
NAMED = 10  # new words that are said by name

Flat = dict[str, np.ndarray]  # by path


def load_params(
  init: str,
  model: pretrain.Model,
  *,
  tokenizer: Tokenizer,
  seed: int = 0,
  skip: str = "",
  complete: bool = False,
  say: Callable[[str], Any] = print,
) -> dict[str, Any]:
  """The parameters of a whole model, f32 arrays of numpy.

  Everything that headers say is checked before any weight is read. Of a pair,
  the shared embeddings are the discriminator's. What the weights lack, and may
  lack (`fit.HEADS`, a generator, rows that `skip` allows), is what a run from
  scratch with this seed would have.

  Args:
    init: what `places.find` takes.
    model: what the parameters are to fit, all of them.
    tokenizer: the run's. A vocabulary beside the weights has to be the same:
      the rows of a table say nothing of which words they are.
    skip: of `fit.SKIPS`, separated by commas. "words": rows are carried over by
      token; "positions": the first rows are.
    complete: nothing may be drawn at random, as befits a measurement.
    say: told what is downloaded, left out and drawn at random.

  Raises:
    InputError: as `places.find` and `fit.check`; another vocabulary; a pair
      whose embeddings differ; an output table that is not the word table;
      weights that are not finite; parts that are lacking, if `complete`.
  """
  skips = fit.parse_skip(skip)
  networks = places.find(init, tuple(model.roles), say=say)
  vocabs = check_words(networks, tokenizer, skip=skips)
  fit.check(networks, model, skip=skips)
  flat = _read_all(networks, fit.as_theirs(model, networks, skips), say)
  fresh = functools.cache(lambda: _fresh(model, seed))
  if "words" in skips:
    old = next(iter(vocabs.values())) or ()
    flat |= _carry_words(flat, fresh, tokenizer.vocab, old, say)
  if "positions" in skips:
    flat |= _carry_positions(flat, fresh, model, say)
  new = [name for name in fit.flat_shapes(model) if name not in flat]
  if new and complete:
    raise InputError(
      f"init: {init} has no {_parts(new)}; drawn at random there is nothing to"
      " measure in it. Give weights that have it."
    )
  if new:
    say(
      f"init: NOT in {init}, so drawn at random as from scratch: {_parts(new)}"
    )
  flat |= {name: fresh()[name] for name in new}
  return traverse_util.unflatten_dict(flat, sep="/")


def check_words(
  networks: Mapping[str, Network],
  tokenizer: Tokenizer,
  *,
  skip: Iterable[str] = (),
) -> dict[str, Sequence[str] | None]:
  """Refuses weights whose words, as far as known, are not the run's.

  Args:
    skip: of `fit.SKIPS`; with "words" they may be others.

  Returns:
    The vocabulary that lies beside the weights of each role, if one does.

  Raises:
    InputError: another vocabulary or treatment of case and accents; none, where
      rows are to be carried over by word.
  """
  return {
    role: _vocabulary(network, tokenizer, skip)
    for role, network in networks.items()
  }


def _vocabulary(
  network: Network, tokenizer: Tokenizer, skip: Iterable[str]
) -> Sequence[str] | None:
  """That of the weights, if it is known; InputError if it is not the run's."""
  if network.lowercase not in (None, tokenizer.lowercase):
    raise InputError(
      f"init: {network.place} lower-cases its text: {network.lowercase}, this"
      f" run: {tokenizer.lowercase}; its words would be others:"
      f" --config.data.lowercase={network.lowercase}."
    )
  if network.strip_accents not in (None, tokenizer.strip_accents):
    how = "strip" if network.strip_accents else "keep"
    raise InputError(
      f"init: {network.place} strips accents of its text:"
      f" {network.strip_accents}, this run: {tokenizer.strip_accents}; its"
      f" words would be others: --config.data.accents={how}."
    )
  path = network.vocabulary
  if path is None:
    if "words" in skip:
      raise InputError(
        f"init: {network.place} has no vocabulary beside it, so no row of it"
        " can be told by its word, as init_skip=words wants: put its vocab.txt"
        " there."
      )
    return None
  vocab = load_tokenizer(
    str(path),
    lowercase=tokenizer.lowercase,
    strip_accents=tokenizer.strip_accents,
  ).vocab
  if "words" not in skip and vocab != tokenizer.vocab:
    raise InputError(
      f"init: {path} is not the run's vocabulary, in which the rows of the word"
      " table would be other words; take that of the weights,"
      f" --config.data.vocab={path}, or carry rows over by word,"
      " --config.init_skip=words."
    )
  return vocab


def _read_all(
  networks: Mapping[str, Network],
  model: pretrain.Model,
  say: Callable[[str], Any],
) -> Flat:
  """The parameters of all networks; shared ones are the first's."""
  flat: Flat = {}
  for role, network in networks.items():
    read = _read(network, model, role, say)
    _check_same_embeddings(network.place, flat, read)
    flat = read | flat
  return flat


def _read(
  network: Network,
  model: pretrain.Model,
  role: str,
  say: Callable[[str], Any],
) -> Flat:
  """One network's parameters, of weights that were found to fit."""
  table = fit.present(network, model, role)
  flat = {ours: _array(network, ours, name) for ours, name in table.items()}
  for name, ours in network.tied.items():
    if name not in network.arrays.shapes or ours not in flat:
      continue
    worst = _largest_difference(network.arrays.read(name), flat[ours])
    if worst != 0:
      raise InputError(
        f"init: {network.place}: {name} differs from {table[ours]} by up to"
        f" {worst:.3g}; here the two are one array, so one of them would be"
        " lost."
      )
  if left := fit.left_out(network, model, role):
    say(
      f"init: {', '.join(left)} of {network.place} are left out; to carry them"
      " along: --config.model.pooler=True"
    )
  return flat


def _array(network: Network, ours: str, name: str) -> np.ndarray:
  """An array as ours is laid out, f32; InputError if it is not finite."""
  x = network.arrays.read(name).astype(np.float32)
  if not np.isfinite(x).all():
    raise InputError(
      f"init: {network.place}: {name} holds"
      f" {np.count_nonzero(~np.isfinite(x))} values that are not finite; the"
      " file is damaged or its run diverged."
    )
  turned = network.turned and ours.endswith("/kernel")
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


def _fresh(model: pretrain.Model, seed: int) -> Flat:
  """What a run from scratch starts with."""
  params = jax.jit(lambda: pretrain.init_params(model, jax.random.key(seed)))()
  return traverse_util.flatten_dict(jax.device_get(params), sep="/")


def _carry_words(
  flat: Flat,
  fresh: Callable[[], Flat],
  vocab: Sequence[str],
  old: Sequence[str],
  say: Callable[[str], Any],
) -> Flat:
  """Rows of the word table and of an output bias, by token."""
  place = {token: i for i, token in enumerate(old)}
  rows_V = np.array([place.get(token, -1) for token in vocab])
  new = [token for token, row in zip(vocab, rows_V, strict=True) if row < 0]
  if vocab == old:
    return {}
  kept = len(vocab) - len(new)
  named = ", ".join(new[:NAMED]) + (", ..." if len(new) > NAMED else "")
  say(
    f"init: {kept:,} of {len(vocab):,} words have the rows of the weights,"
    f" {len(place) - kept:,} of which are left out; new, drawn at random:"
    f" {len(new):,}{f' ({named})' if new else ''}"
  )
  names = ("embeddings/word", "bert_head/bias", "generator_head/bias")
  return {
    name: _rows(flat[name], rows_V, fresh()[name])
    for name in names
    if name in flat
  }


def _carry_positions(
  flat: Flat,
  fresh: Callable[[], Flat],
  model: pretrain.Model,
  say: Callable[[str], Any],
) -> Flat:
  """The first rows of the table of positions."""
  name, config = "embeddings/position", next(iter(model.roles.values()))
  size = config.max_positions
  if name not in flat or len(flat[name]) == size:
    return {}
  rows_P = np.arange(size)
  old = len(flat[name])
  if size > old:
    say(f"init: positions {old:,} to {size - 1:,} are new, drawn at random")
  else:
    say(f"init: positions {size:,} to {old - 1:,} are left out")
  rows_P = np.where(rows_P < old, rows_P, -1)
  return {name: _rows(flat[name], rows_P, fresh()[name])}


def _rows(x: np.ndarray, rows: np.ndarray, fresh: np.ndarray) -> np.ndarray:
  """The rows of `x` that `rows` names; -1 stands for a fresh one."""
  x_rows = x[np.maximum(rows, 0)]
  known = (rows >= 0).reshape(-1, *[1] * (x.ndim - 1))
  return np.where(known, x_rows, fresh)


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
