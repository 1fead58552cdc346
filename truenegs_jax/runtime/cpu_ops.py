"""Operations in a form that is fast on CPUs.

Callers check `cpu.is_enabled` and have a plain form for all other platforms,
whose results differ only by rounding.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

Array = jax.Array

QUARTERS = 4
MIN_SCORES = 2**18  # fewer are not worth a longer compilation


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def affine(
  dtype: jnp.dtype, x: Array, kernel_DxF: Array, bias_F: Array
) -> Array:
  """Computes x @ kernel + bias in `dtype`, `[..., F]`.

  Gradients of the f32 parameters are summed in f32. All matrix products have
  two axes, since XLA is slow with more on a CPU.
  """
  flat_MxD = _flat(x.astype(dtype))
  y_MxF = flat_MxD @ kernel_DxF.astype(dtype) + bias_F.astype(dtype)[None]
  return y_MxF.reshape(*x.shape[:-1], -1)


def _affine_forward(dtype, x, kernel_DxF, bias_F):
  return affine(dtype, x, kernel_DxF, bias_F), (x, kernel_DxF)


def _affine_backward(dtype, residuals, dy):
  x, kernel_DxF = residuals
  dy_MxF = _flat(dy)
  dx_MxD = dy_MxF @ kernel_DxF.astype(dtype).T
  dkernel_DxF = jnp.matmul(
    _flat(x.astype(dtype)).T, dy_MxF, preferred_element_type=jnp.float32
  )
  dbias_F = dy_MxF.sum(axis=0, dtype=jnp.float32)
  return dx_MxD.reshape(x.shape).astype(x.dtype), dkernel_DxF, dbias_F


affine.defvjp(_affine_forward, _affine_backward)


def gelu(x: Array) -> Array:
  """Computes the exact gelu in f32 by erf, which is twice as fast as erfc.

  erfc is more accurate only far below zero, where gelu is negligible.
  """
  return x * (0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5))))


def map_row_quarters(
  fn: Callable[..., Array], *arrays: Array | None, num_scores: int
) -> Array:
  """Applies a function of a batch to a quarter of its rows at a time.

  On a CPU, XLA computes a batched product on one core but independent products
  in parallel, and the scores of a quarter fit into the caches.

  Args:
    fn: maps arrays `[B, ...]` to one such array.
    *arrays: the arguments; at least one is not None.
    num_scores: attention scores of the batch; below MIN_SCORES the batch is not
      split.
  """
  num_rows = next(len(x) for x in arrays if x is not None)
  num_parts = min(QUARTERS, num_rows) if num_scores >= MIN_SCORES else 1
  split = [
    [None] * num_parts if x is None else jnp.array_split(x, num_parts)
    for x in arrays
  ]
  return jnp.concatenate([fn(*part) for part in zip(*split, strict=True)])


def _flat(x: Array) -> Array:
  """Merges all axes but the last into one, M."""
  return x.reshape(-1, x.shape[-1])
