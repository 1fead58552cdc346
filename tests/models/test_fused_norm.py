"""The fused norms equal the layers that they replace, with the same draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.models import attention, fused_norm, layers
from truenegs_jax.runtime import rng
from truenegs_jax.train import sharding

EPSILON = 1e-3


@pytest.mark.parametrize(
  ("on_mesh", "dtype", "rate", "length", "width"),
  [
    (True, "float32", 0.1, 128, 96),  # 2 programs of 2 steps, 128 columns
    (False, "bfloat16", 0.0, 7, 16),
  ],
)
def test_results_and_gradients_equal_the_layers(
  on_mesh, dtype, rate, length, width
):
  """In a loop that traces the site and computes each step again."""
  mesh = None
  if on_mesh:
    spec = sharding.get_mesh_spec("fsdp_tp")
    mesh = sharding.make_mesh(spec, jax.devices()[:4])
  how = attention.Implementation("flash", mesh, True, "cuda")
  settings = fused_norm.Settings(EPSILON, rate, how)
  draw = np.random.default_rng(0)
  keys_B = rng.row_keys(jax.random.key(0), 0, jnp.arange(2))
  x, units, cotangent = (
    jnp.asarray(draw.normal(size=(2, length, width)), dtype) for _ in range(3)
  )
  vectors = tuple(jnp.asarray(draw.normal(size=(3, width)), "float32"))

  def plain(settings, x, units, vectors, keys_B, site):
    units += vectors[0].astype(units.dtype)[None, None]
    x += rng.dropout(units, keys_B, rate=rate, site=site)
    norm = dict(zip(("scale", "bias"), vectors[1:], strict=True))
    layer = layers.LayerNorm(epsilon=EPSILON, use_fast_variance=False)
    return layer.apply({"params": norm}, x).astype(x.dtype)

  def run(normalize_sum):
    def repeat(x, units, vectors):
      @jax.checkpoint
      def step(x, site):
        return normalize_sum(settings, x, units, vectors, keys_B, site), None

      return jax.lax.scan(step, x, jnp.arange(2))[0]

    result, vjp = jax.vjp(repeat, x, units, vectors)
    return jax.tree.leaves((result, vjp(cotangent)))

  results, expected = jax.jit(
    lambda: (run(fused_norm.normalize_sum), run(plain))
  )()
  tolerance = {"float32": 2e-6, "bfloat16": 0.03}[dtype]
  for a, b in zip(results, expected, strict=True):
    assert a.dtype == b.dtype
    a, b = np.float32(a), np.float32(b)
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * abs(b).max())
