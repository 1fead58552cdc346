"""The fused kernels equal XLA's attention with the same draws.

They run in Pallas's interpreter, in the layout and tiles of both platforms.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.models import attention
from truenegs_jax.runtime import rng
from truenegs_jax.train import sharding

KEY = jax.random.key(0)


def make_flash(platform, mesh=None):
  return attention.Implementation("flash", mesh, True, platform)


def make_documents(length, size):
  """Numbers documents of `size` in 4 rows: full, padded, padding, one token."""
  ends_4x1 = np.array([[length], [length // 2 + 1], [0], [1]])
  index_L = np.arange(length)
  return jnp.asarray((index_L < ends_4x1) * (1 + index_L // size), jnp.int32)


@pytest.mark.parametrize(
  "platforms,on_mesh,length,heads,dtype,size,window,rate",
  [
    (("cuda",), True, 70, 4, "float32", 20, 9, 0.1),
    (("tpu",), False, 600, 1, "float32", 180, 100, 0.1),  # 5 blocks
    (("cuda", "tpu"), False, 33, 12, "bfloat16", 33, 0, 0.0),  # 1 block
  ],
)
def test_results_and_gradients_equal_xla(
  platforms, on_mesh, length, heads, dtype, size, window, rate
):
  """No length is that of a tile; the mesh divides rows and heads by 2."""
  mesh = None
  if on_mesh:
    spec = sharding.get_mesh_spec("fsdp_tp")
    mesh = sharding.make_mesh(spec, jax.devices()[:4])
  draw = np.random.default_rng(0)
  documents_BxL = make_documents(length, size)
  shape = (4, 4, length, heads, 16)
  arrays = jnp.asarray(draw.normal(size=shape), dtype)

  @jax.jit
  def run(arrays):
    *qkv, cotangent = arrays
    keys_B = rng.row_keys(KEY, 0, jnp.arange(4))

    def compute(implementation):
      mask = attention.make_mask(implementation, documents_BxL, window)
      result, vjp = jax.vjp(
        lambda *qkv: attention.attend(*qkv, mask, keys_B, rate=rate, site=3),
        *qkv,
      )
      return [x.astype(jnp.float32) for x in (result, *vjp(cotangent))]

    kernels = [make_flash(platform, mesh) for platform in platforms]
    return [compute(x) for x in (attention.XLA, *kernels)]

  expected, *results = run(arrays)
  tolerance = 1e-5 if dtype == "float32" else 0.02
  for result in results:
    for a, b in zip(result, expected, strict=True):
      largest = max(np.abs(b).max(), 0.1)
      np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


def test_a_kernel_works_with_accumulation_scan_and_remat():
  """train/step.py transposes a linearized pass; a scan traces the site."""
  x_BxLxHxS = jax.random.normal(KEY, (4, 5, 2, 16))
  keys_B = rng.row_keys(KEY, 0, jnp.arange(4))

  def differentiate(implementation):
    mask = attention.make_mask(implementation, make_documents(5, 3))

    @jax.checkpoint
    def layer(x, site):
      return attention.attend(x, x, x, mask, keys_B, rate=0.1, site=site), None

    def loss(x):
      return (jax.lax.scan(layer, x, jnp.arange(2))[0] ** 3).mean()

    _, jvp = jax.linearize(loss, x_BxLxHxS)
    return jax.linear_transpose(jvp, x_BxLxHxS)(jnp.ones(()))[0]

  kernel = make_flash("cuda")
  expected, result = jax.jit(
    lambda: [differentiate(x) for x in (attention.XLA, kernel)]
  )()
  largest = np.abs(expected).max()
  np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * largest)
