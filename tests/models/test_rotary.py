"""The rotary backbone: angles, and norms before instead of after."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.models import attention, encoder, rotary

CONFIG = encoder.EncoderConfig(vocab_size=tiny.V, **rotary.VARIANTS["tiny"])


@jax.jit
def turned(x_BxLxHxS, positions_BxL):
  return rotary.rotate(
    x_BxLxHxS,
    *rotary.make_rotations(positions_BxL, x_BxLxHxS.shape[-1]),
  )


def vectors(seed, width=16):
  return jax.random.normal(jax.random.key(seed), (2, 6, 3, width))


POSITIONS = np.array([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 500]])


def test_a_rotation_is_a_product_of_complex_numbers():
  """Su et al. 2021, equation 34, a pair of units being a complex number."""
  x = np.asarray(vectors(0), np.float64)
  rates = 10_000.0 ** (-2 * np.arange(8) / 16)
  angle = POSITIONS[:, :, None, None] * rates
  want = (x[..., :8] + 1j * x[..., 8:]) * np.exp(1j * angle)
  got = np.asarray(turned(vectors(0), POSITIONS))
  np.testing.assert_allclose(got[..., :8], want.real, atol=1e-4)
  np.testing.assert_allclose(got[..., 8:], want.imag, atol=1e-4)


def test_scores_know_the_distance_and_not_the_place():
  query, key = vectors(1), vectors(2)
  scores = lambda far, here: np.einsum(
    "bqhs,bkhs->bhqk", turned(query, here + far), turned(key, here)
  )
  here = np.tile(np.arange(6), (2, 1))
  base = scores(0, here)
  np.testing.assert_allclose(scores(0, here + 41), base, atol=1e-4)
  assert np.abs(scores(1, here) - base).max() > 0.1


@pytest.mark.parametrize("width", [15, 1])
def test_the_odd_unit_of_a_head_is_not_turned(width):
  x = vectors(3, width)
  y = np.asarray(turned(x, POSITIONS))
  np.testing.assert_array_equal(y[..., -1], x[..., -1])
  assert (y[:, 1, :, :-1] != x[:, 1, :, :-1]).all()
  np.testing.assert_allclose(
    np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5
  )


def test_layers_that_add_nothing_leave_the_normalized_input():
  """Of pre-norm: the residual passes untouched; one norm ends the stack."""
  x_BxLxD = 3 + 2 * jax.random.normal(jax.random.key(0), (2, 5, CONFIG.width))
  config = encoder.EncoderConfig(
    vocab_size=tiny.V,
    **{**rotary.VARIANTS["tiny"], "embedding_size": CONFIG.width},
  )
  network = rotary.Encoder(config)
  documents_BxL = jnp.ones((2, 5), jnp.int32)
  init = lambda key: network.init(key, x_BxLxD, documents_BxL, None)
  params = jax.jit(init)(jax.random.key(1))
  silent = jax.tree_util.tree_map_with_path(
    lambda path, p: 0 * p if "_output" in jax.tree_util.keystr(path) else p,
    params,
  )
  run = jax.jit(lambda p: network.apply(p, x_BxLxD, documents_BxL, None))
  got = run(silent)
  x = np.asarray(x_BxLxD, np.float64)
  want = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
  np.testing.assert_allclose(got, want, atol=1e-5)
  assert np.abs(run(params) - got).max() > 1e-3


def seen():
  return attention.make_mask(attention.XLA, jnp.ones((2, 5), jnp.int32))


@jax.jit
def layer(params, x_BxLxD, positions_BxL):
  """One layer over rows of one document each, dropout off."""
  turns = rotary.make_rotations(positions_BxL, CONFIG.width // CONFIG.heads)
  return rotary.Layer(CONFIG).apply(params, x_BxLxD, None, 1, seen(), *turns)


def layer_arguments():
  """Wide random parameters, hidden states and positions."""
  x_BxLxD = jax.random.normal(jax.random.key(0), (2, 5, CONFIG.width))
  positions_BxL = jnp.tile(jnp.arange(5), (2, 1))
  turns = rotary.make_rotations(positions_BxL, CONFIG.width // CONFIG.heads)
  init = lambda key: rotary.Layer(CONFIG).init(
    key, x_BxLxD, None, 1, seen(), *turns
  )
  params = jax.tree.map(
    lambda p: 5 * p if p.ndim > 1 else p, jax.jit(init)(jax.random.key(1))
  )
  return params, x_BxLxD, positions_BxL


def test_a_layer_knows_distances_and_not_places():
  params, x_BxLxD, positions_BxL = layer_arguments()
  base = layer(params, x_BxLxD, positions_BxL)
  moved = layer(params, x_BxLxD, positions_BxL + 41)
  np.testing.assert_allclose(moved, base, atol=1e-4)
  spread = layer(params, x_BxLxD, 2 * positions_BxL)
  assert np.abs(spread - base).max() > 1e-2


def test_what_a_layer_adds_does_not_depend_on_the_size_of_its_input():
  """Both norms stand before what they feed."""
  params, x_BxLxD, positions_BxL = layer_arguments()
  # The other half says nothing, so that each is looked at alone.
  for other in ("ffn_output", "attention_output"):
    silence = lambda path, p, other=other: 0 * p if other in str(path) else p
    only = jax.tree_util.tree_map_with_path(silence, params)
    small = layer(only, x_BxLxD, positions_BxL) - x_BxLxD
    large = layer(only, 8 * x_BxLxD, positions_BxL) - 8 * x_BxLxD
    assert np.abs(small).max() > 1e-1
    np.testing.assert_allclose(large, small, atol=1e-4)
