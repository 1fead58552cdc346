"""Dense layers and gelu equal those of Flax and JAX, with their gradients."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.models import layers

INIT = nn.initializers.normal(0.5)


def ours_and_flax(dtype):
  """Returns (gradients, output) of our layer and of Flax's, in this order."""
  x = jax.random.normal(jax.random.key(0), (3, 5, 16), dtype)
  weight = jax.random.normal(jax.random.key(1), (3, 5, 8))
  dense_layers = (
    layers.Dense(8, kernel_init=INIT, dtype=dtype),
    nn.Dense(8, kernel_init=INIT, dtype=dtype),
  )
  params = dense_layers[1].init(jax.random.key(2), x)
  params["params"]["bias"] += 0.3

  def evaluate(layer):
    def summed(params, x):
      y = layer.apply(params, x)
      return (y.astype(jnp.float32) * weight).sum(), y

    gradient = jax.jit(jax.grad(summed, argnums=(0, 1), has_aux=True))
    return gradient(params, x)

  return [evaluate(layer) for layer in dense_layers]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dense_layer_and_its_gradients_equal_flax(dtype):
  (gradients, y), (expected_gradients, expected_y) = ours_and_flax(dtype)
  assert y.dtype == expected_y.dtype == dtype
  tolerance = {"float32": 1e-6, "bfloat16": 0.02}[dtype]

  def assert_close(a, b):
    assert a.dtype == b.dtype
    np.testing.assert_allclose(
      np.asarray(a, np.float32),
      np.asarray(b, np.float32),
      rtol=tolerance,
      atol=tolerance * float(jnp.abs(b).max()),
    )

  jax.tree.map(assert_close, (gradients, y), (expected_gradients, expected_y))


def test_gradients_of_half_precision_are_summed_in_f32():
  # 2^12 equal terms: a bfloat16 sum stops growing after 2^8 of them.
  x = jnp.ones((4096, 4), jnp.bfloat16)
  layer = layers.Dense(2, kernel_init=INIT, dtype="bfloat16")
  params = layer.init(jax.random.key(0), x)

  def loss(params):
    return layer.apply(params, x).astype(jnp.float32).sum()

  for leaf in jax.tree.leaves(jax.grad(loss)(params)):
    assert leaf.dtype == jnp.float32
    np.testing.assert_array_equal(leaf, 4096.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gelu_and_its_gradient_are_exact(dtype):
  x = jnp.linspace(-6.0, 6.0, 4001).astype(dtype)
  with jax.enable_x64(True):
    exact = jnp.asarray(np.asarray(x, np.float64))
    exact_gelu = functools.partial(jax.nn.gelu, approximate=False)
    expected = exact_gelu(exact), jax.vmap(jax.grad(exact_gelu))(exact)
    expected = [np.asarray(a) for a in expected]
  results = layers.gelu(x), jax.vmap(jax.grad(layers.gelu))(x)
  for a, b in zip(results, expected, strict=True):
    assert a.dtype == dtype
    error = {"float32": 1e-6, "bfloat16": 0.01}[dtype]
    np.testing.assert_allclose(np.asarray(a, np.float64), b, atol=error)
