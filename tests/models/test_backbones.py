"""Properties of every backbone among the files of models/."""

import dataclasses
import functools
import importlib
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax import models
from truenegs_jax.models import encoder
from truenegs_jax.runtime import rng as rng_lib

FIELDS = ("tokens", "types", "documents")
FOLDER = pathlib.Path(models.__file__).parent


def find_backbones():
  """Returns name -> module for the backbones in models/."""
  backbones = {}
  for name in sorted(path.stem for path in FOLDER.glob("[a-z]*.py")):
    module = importlib.import_module(f"truenegs_jax.models.{name}")
    if all(hasattr(module, required) for required in encoder.REQUIRED_NAMES):
      backbones[name] = module
  return backbones


BACKBONES = find_backbones()


@pytest.fixture(params=BACKBONES)
def backbone(request):
  return BACKBONES[request.param]


def make_config(backbone, **overrides):
  """Builds the tiny variant: layers of 32 units."""
  fields = {**getattr(backbone, "FIELDS", {}), **backbone.VARIANTS["tiny"]}
  fields |= {"max_positions": 64, **overrides}
  return encoder.EncoderConfig(vocab_size=tiny.V, **fields)


def make_inputs(seed, rows=2, length=tiny.L):
  batch = tiny.make_batch(seed, rows, length)
  return {name: jnp.asarray(batch[name]) for name in FIELDS}


def make_keys(rows=2):
  return rng_lib.row_keys(jax.random.key(7), 0, jnp.arange(rows))


def init(backbone, config):
  """Draws initial parameters of embedding block and network."""
  inputs = {name: jnp.zeros((1, 2), jnp.int32) for name in FIELDS}
  first, second = jax.random.split(jax.random.key(0))
  embeddings = backbone.Embeddings(config)
  x, a = embeddings.init_with_output(first, inputs, None)
  b = backbone.Encoder(config).init(second, x, inputs["documents"], None)
  return {"embeddings": a["params"], "network": b["params"]}


initial = functools.cache(jax.jit(init, static_argnums=(0, 1)))


@functools.cache
def wide_params(backbone, config):
  """Scales initial parameters up, so that attention has an effect."""
  return jax.tree.map(
    lambda p: 5 * p if p.ndim > 1 else p, initial(backbone, config)
  )


def forward(backbone, config, params, inputs, keys_B=None):
  """Computes the hidden states `[B, L, D]`."""
  embeddings, network = backbone.Embeddings(config), backbone.Encoder(config)
  x = embeddings.apply({"params": params["embeddings"]}, inputs, keys_B)
  variables = {"params": params["network"]}
  return network.apply(variables, x, inputs["documents"], keys_B)


run = jax.jit(forward, static_argnums=(0, 1))


def encode(backbone, inputs, keys_B=None, **overrides):
  """Runs `forward` with `wide_params`."""
  config = make_config(backbone, **overrides)
  params = wide_params(backbone, make_config(backbone))
  return np.asarray(run(backbone, config, params, inputs, keys_B))


def test_packed_documents_equal_separate_rows(backbone):
  rng = np.random.default_rng(0)
  lengths = (7, 10, 4)
  documents = [rng.integers(5, tiny.V, n) for n in lengths]
  types = [np.minimum(np.arange(n) // 5, 1) for n in lengths]

  def row(*arrays):
    pad = (0, tiny.L - len(arrays[0]))
    return {
      name: jnp.asarray(np.pad(x, pad)[None], jnp.int32)
      for name, x in zip(FIELDS, arrays, strict=True)
    }

  numbers = np.repeat([1, 2, 3], lengths)
  packed_row = row(np.concatenate(documents), np.concatenate(types), numbers)
  [packed] = encode(backbone, packed_row)
  expected = []
  for n, *arrays in zip(lengths, documents, types, strict=True):
    [separate] = encode(backbone, row(*arrays, np.ones(n)))
    expected.append(separate[:n])
  expected = np.concatenate(expected)
  np.testing.assert_allclose(packed[:21], expected, rtol=1e-5, atol=1e-5)


def test_each_dropout_rate_has_an_effect(backbone):
  inputs = make_inputs(3)
  without_dropout = encode(backbone, inputs)
  for rates in (dict(dropout=0.0), dict(attention_dropout=0.0)):
    with_dropout = encode(backbone, inputs, make_keys(), **rates)
    assert np.abs(with_dropout - without_dropout).max() > 1e-4, rates
  none = dict(dropout=0.0, attention_dropout=0.0)
  zero_rates = encode(backbone, inputs, make_keys(), **none)
  np.testing.assert_array_equal(zero_rates, without_dropout)


def test_half_precision_stays_close_to_single(backbone):
  inputs = make_inputs(4, rows=8)
  probe = np.asarray(jax.random.normal(jax.random.key(1), (32,)))

  def score(**kw):
    return encode(backbone, inputs, **kw).astype("f4") @ probe

  half, single = score(dtype="bfloat16"), score()
  assert np.any(half != single)
  losses = [np.logaddexp(0, x).mean() for x in (half, single)]
  assert losses[0] == pytest.approx(losses[1], rel=2e-2)
  # Half precision keeps 8 bits.
  assert np.abs(half - single).mean() < 5e-2 * np.abs(single).mean()


def loop_sizes(backbone):
  """Returns sizes with two rounds of different layers, if they differ."""
  differs = "global_every" in getattr(backbone, "FIELDS", {})
  return {"layers": 5, "global_every": 2} if differs else {}


def make_loss(backbone, **overrides):
  """Returns (params, inputs, keys_B) -> loss of a random direction."""
  config = make_config(backbone, **loop_sizes(backbone), **overrides)
  probe_D = jax.random.normal(jax.random.key(1), (config.width,))

  def loss(params, inputs, keys_B):
    hidden_BxLxD = forward(backbone, config, params, inputs, keys_B)
    return jax.nn.softplus(hidden_BxLxD @ probe_D).mean()

  return loss


def loss_arguments(backbone):
  return (
    wide_params(backbone, make_config(backbone, **loop_sizes(backbone))),
    make_inputs(5, rows=8),
    make_keys(8),
  )


@functools.cache
def plain_loss_and_gradient(backbone):
  loss = make_loss(backbone)
  return jax.jit(jax.value_and_grad(loss))(*loss_arguments(backbone))


@pytest.mark.parametrize(
  ("backbone", "mode"),
  [
    ("encoder", dict(remat="full")),
    ("encoder", dict(scan=True)),
    *[(name, dict(remat="dots", scan=True)) for name in BACKBONES],
  ],
  indirect=["backbone"],
  ids=str,
)
def test_remat_and_scan_do_not_change_loss_or_gradients(backbone, mode):
  value, grads = plain_loss_and_gradient(backbone)
  loss = jax.jit(jax.value_and_grad(make_loss(backbone, **mode)))
  other_value, other_grads = loss(*loss_arguments(backbone))
  assert float(other_value) == pytest.approx(float(value), rel=1e-6)
  largest = max(np.abs(x).max() for x in jax.tree.leaves(grads))
  assert largest > 0
  close = functools.partial(
    np.testing.assert_allclose, rtol=0, atol=1e-6 * largest
  )
  jax.tree.map(close, other_grads, grads)


def test_a_first_layer_that_differs_is_not_part_of_a_loop_of_single_layers():
  modern = BACKBONES["modern"]
  config = make_config(modern, layers=3, global_every=1)
  params = wide_params(modern, config)
  looped = dataclasses.replace(config, scan=True)
  hidden, other = (
    jax.jit(functools.partial(forward, modern, x))(
      params, make_inputs(5), make_keys()
    )
    for x in (config, looped)
  )
  np.testing.assert_allclose(other, hidden, rtol=1e-5, atol=1e-6)
