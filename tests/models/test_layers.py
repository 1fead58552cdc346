"""Dense layers and gelu equal those of Flax and JAX, with gradients."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.models import layers
from truenegs_jax.runtime import cpu

INIT = nn.initializers.normal(0.5)


def gradients_and_output(module, dtype):
  """Computes both for the Dense layer of a module."""
  x = jax.random.normal(jax.random.key(0), (3, 5, 16), dtype)
  weight = jax.random.normal(jax.random.key(1), (3, 5, 8))
  layer = module.Dense(8, kernel_init=INIT, dtype=dtype)
  params = nn.Dense(8, kernel_init=INIT).init(jax.random.key(2), x)
  params["params"]["bias"] += 0.3

  def summed(params, x):
    y = layer.apply(params, x)
    return (y.astype(jnp.float32) * weight).sum(), y

  return jax.jit(jax.grad(summed, argnums=(0, 1), has_aux=True))(params, x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dense_layer_and_its_gradients_equal_flax(dtype):
  with cpu.lowering_for("cpu"):
    gradients, y = gradients_and_output(layers, dtype)
  expected_gradients, expected_y = gradients_and_output(nn, dtype)
  assert y.dtype == expected_y.dtype == dtype
  rtol = {"float32": 1e-6, "bfloat16": 0.02}[dtype]

  def assert_close(a, b):
    assert a.dtype == b.dtype
    atol = rtol * float(jnp.abs(b).max())
    np.testing.assert_allclose(np.float32(a), np.float32(b), rtol, atol)

  jax.tree.map(assert_close, (gradients, y), (expected_gradients, expected_y))


@pytest.mark.parametrize("has_onednn", [False, True])
@pytest.mark.parametrize("features", [2, 8])  # fewer than inputs, and more
def test_gradients_of_half_precision_are_summed_in_f32(
  monkeypatch, features, has_onednn
):
  monkeypatch.setattr(cpu, "has_onednn", lambda: has_onednn)
  # bfloat16 has no 4,100, and a sum stops growing after 2^8 equal terms.
  x = jnp.ones((4, 1025, 4), jnp.bfloat16)
  layer = layers.Dense(features, kernel_init=INIT, dtype="bfloat16")
  params = layer.init(jax.random.key(0), x)

  def loss(params):
    return layer.apply(params, x).astype(jnp.float32).sum()

  with cpu.lowering_for("cpu"):
    gradients = jax.grad(loss)(params)
  for leaf in jax.tree.leaves(gradients):
    assert leaf.dtype == jnp.float32
    rounding = 2.0**-8 if has_onednn else 0.0  # of the finished sum
    np.testing.assert_allclose(leaf, 4100.0, rounding)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gelu_and_its_gradient_are_exact(dtype):
  x = jnp.linspace(-6.0, 6.0, 4001).astype(dtype)
  with jax.enable_x64(True):
    exact = jnp.asarray(np.float64(x))
    gelu = functools.partial(jax.nn.gelu, approximate=False)
    expected = gelu(exact), jax.vmap(jax.grad(gelu))(exact)
    expected = [np.asarray(a) for a in expected]
  with cpu.lowering_for("cpu"):
    results = layers.gelu(x), jax.vmap(jax.grad(layers.gelu))(x)
  for a, b in zip(results, expected, strict=True):
    assert a.dtype == dtype
    error = {"float32": 1e-6, "bfloat16": 0.01}[dtype]
    np.testing.assert_allclose(np.float64(a), b, atol=error)
