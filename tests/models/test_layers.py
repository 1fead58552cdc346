"""The small layers are what flax and jax have, and so are their gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.models import layers

INIT = nn.initializers.normal(0.5)


def both(dtype):
  """(values, gradients) of ours and of flax's, from the same parameters."""
  x = jax.random.normal(jax.random.key(0), (3, 5, 16), dtype)
  weight = jax.random.normal(jax.random.key(1), (3, 5, 8))
  made = (
    layers.Dense(8, kernel_init=INIT, dtype=dtype),
    nn.Dense(8, kernel_init=INIT, dtype=dtype),
  )
  params = made[1].init(jax.random.key(2), x)
  params["params"]["bias"] += 0.3

  def loss(layer):
    def summed(params, x):
      y = layer.apply(params, x)
      return (y.astype(jnp.float32) * weight).sum(), y

    gradient = jax.jit(jax.grad(summed, argnums=(0, 1), has_aux=True))
    return gradient(params, x)

  return [loss(layer) for layer in made]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dense_layer_is_flaxs_with_its_gradients(dtype):
  (gradients, y), (want_gradients, want_y) = both(dtype)
  assert y.dtype == want_y.dtype == dtype
  tolerance = {"float32": 1e-6, "bfloat16": 0.02}[dtype]
  same = lambda a, b: np.testing.assert_allclose(
    np.asarray(a, np.float32),
    np.asarray(b, np.float32),
    rtol=tolerance,
    atol=tolerance * float(jnp.abs(b).max()),
  )
  jax.tree.map(same, (gradients, y), (want_gradients, want_y))
  dtypes = lambda tree: jax.tree.map(lambda x: x.dtype, tree)
  assert dtypes(gradients) == dtypes(want_gradients)


def test_gradients_of_half_precision_are_summed_in_full():
  # 2^12 equal terms: in bfloat16 a sum stops to grow at 2^8 of them.
  x = jnp.ones((4096, 4), jnp.bfloat16)
  layer = layers.Dense(2, kernel_init=INIT, dtype="bfloat16")
  params = layer.init(jax.random.key(0), x)
  loss = lambda params: layer.apply(params, x).astype(jnp.float32).sum()
  for leaf in jax.tree.leaves(jax.grad(loss)(params)):
    assert leaf.dtype == jnp.float32
    np.testing.assert_array_equal(leaf, 4096.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gelu_is_the_exact_one_with_its_slope(dtype):
  x = jnp.linspace(-6.0, 6.0, 4001).astype(dtype)
  with jax.enable_x64(True):
    exact = jnp.asarray(np.asarray(x, np.float64))
    plain = lambda x: jax.nn.gelu(x, approximate=False)
    want = plain(exact), jax.vmap(jax.grad(plain))(exact)
    want = [np.asarray(a) for a in want]
  got = layers.gelu(x), jax.vmap(jax.grad(layers.gelu))(x)
  for a, b in zip(got, want, strict=True):
    assert a.dtype == dtype
    error = {"float32": 1e-6, "bfloat16": 0.01}[dtype]
    np.testing.assert_allclose(np.asarray(a, np.float64), b, atol=error)
