"""The rotary backbone: rotations, and pre-norm layers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.models import attention, encoder, rotary

CONFIG = encoder.EncoderConfig(vocab_size=tiny.V, **rotary.VARIANTS["tiny"])


@jax.jit
def rotate(x_BxLxHxS, positions_BxL):
  rotations = rotary.make_rotations(positions_BxL, x_BxLxHxS.shape[-1])
  return rotary.rotate(x_BxLxHxS, *rotations)


def make_vectors(seed, width=16):
  return jax.random.normal(jax.random.key(seed), (2, 6, 3, width))


POSITIONS = np.array([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 500]])


def test_a_rotation_equals_a_product_of_complex_numbers():
  """Su et al. 2021, equation 34, with a pair of units as a complex number."""
  x = np.asarray(make_vectors(0), np.float64)
  rates = 10_000.0 ** (-2 * np.arange(8) / 16)
  angle = POSITIONS[:, :, None, None] * rates
  expected = (x[..., :8] + 1j * x[..., 8:]) * np.exp(1j * angle)
  output = np.asarray(rotate(make_vectors(0), POSITIONS))
  np.testing.assert_allclose(output[..., :8], expected.real, atol=1e-4)
  np.testing.assert_allclose(output[..., 8:], expected.imag, atol=1e-4)


@pytest.mark.parametrize("width", [15, 1])
def test_the_odd_unit_of_a_head_is_not_rotated(width):
  x = make_vectors(3, width)
  y = np.asarray(rotate(x, POSITIONS))
  np.testing.assert_array_equal(y[..., -1], x[..., -1])
  assert (y[:, 1, :, :-1] != x[:, 1, :, :-1]).all()
  np.testing.assert_allclose(
    np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5
  )


def test_layers_without_output_return_the_normalized_input():
  """The residual is not normalized, and one norm ends the stack."""
  x_BxLxD = 3 + 2 * jax.random.normal(jax.random.key(0), (2, 5, CONFIG.width))
  config = dataclasses.replace(CONFIG, embedding_size=CONFIG.width)
  network = rotary.Encoder(config)
  documents_BxL = jnp.ones((2, 5), jnp.int32)
  init = jax.jit(network.init)
  params = init(jax.random.key(1), x_BxLxD, documents_BxL, None)
  silent = jax.tree_util.tree_map_with_path(
    lambda path, p: 0 * p if "_output" in jax.tree_util.keystr(path) else p,
    params,
  )
  run = jax.jit(lambda p: network.apply(p, x_BxLxD, documents_BxL, None))
  output = run(silent)
  x = np.asarray(x_BxLxD, np.float64)
  expected = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
  np.testing.assert_allclose(output, expected, atol=1e-5)
  assert np.abs(run(params) - output).max() > 1e-3


def make_mask():
  return attention.make_mask(attention.XLA, jnp.ones((2, 5), jnp.int32))


@jax.jit
def apply_layer(params, x_BxLxD, positions_BxL):
  """Applies a layer to rows of one document each, without dropout."""
  rotations = rotary.make_rotations(positions_BxL, CONFIG.width // CONFIG.heads)
  return rotary.Layer(CONFIG).apply(
    params, x_BxLxD, None, 1, make_mask(), *rotations
  )


def layer_arguments():
  """Wide random parameters, hidden states and positions."""
  x_BxLxD = jax.random.normal(jax.random.key(0), (2, 5, CONFIG.width))
  positions_BxL = jnp.tile(jnp.arange(5), (2, 1))
  rotations = rotary.make_rotations(positions_BxL, CONFIG.width // CONFIG.heads)
  params = jax.jit(rotary.Layer(CONFIG).init)(
    jax.random.key(1), x_BxLxD, None, 1, make_mask(), *rotations
  )
  params = jax.tree.map(lambda p: 5 * p if p.ndim > 1 else p, params)
  return params, x_BxLxD, positions_BxL


def test_a_layer_depends_on_distances_only():
  params, x_BxLxD, positions_BxL = layer_arguments()
  base = apply_layer(params, x_BxLxD, positions_BxL)
  moved = apply_layer(params, x_BxLxD, positions_BxL + 41)
  np.testing.assert_allclose(moved, base, atol=1e-4)
  spread = apply_layer(params, x_BxLxD, 2 * positions_BxL)
  assert np.abs(spread - base).max() > 1e-2


def test_what_a_layer_adds_does_not_depend_on_the_scale_of_its_input():
  """A norm precedes each sublayer."""
  params, x_BxLxD, positions_BxL = layer_arguments()
  # Each sublayer is tested alone; the other one's output is set to zero.
  for other in ("ffn_output", "attention_output"):
    only = jax.tree_util.tree_map_with_path(
      lambda path, p, other=other: 0 * p if other in str(path) else p, params
    )
    small = apply_layer(only, x_BxLxD, positions_BxL) - x_BxLxD
    large = apply_layer(only, 8 * x_BxLxD, positions_BxL) - 8 * x_BxLxD
    assert np.abs(small).max() > 1e-1
    np.testing.assert_allclose(large, small, atol=1e-4)
