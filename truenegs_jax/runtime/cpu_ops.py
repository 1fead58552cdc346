"""Operations in the form that is fast on a CPU.

Callers check `cpu.is_enabled` and have a plain form for all other platforms,
with the same result but for its rounding.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array

QUARTERS = 4
MIN_SCORES = 2**18  # scores; of fewer, quarters would take longer to compile


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def affine(dtype: Any, x: Array, kernel_DxF: Array, bias_F: Array) -> Array:
  """x @ kernel + bias in `dtype`, `[..., F]`.

  The gradient of the parameters, which are f32, is summed in f32. Its products
  are of two axes each: XLA is slow with others on a CPU.
  """
  flat_MxD = _flat(x.astype(dtype))
  y_MxF = flat_MxD @ kernel_DxF.astype(dtype) + bias_F.astype(dtype)[None]
  return y_MxF.reshape(*x.shape[:-1], -1)


def _affine_forward(dtype, x, kernel_DxF, bias_F):
  return affine(dtype, x, kernel_DxF, bias_F), (x, kernel_DxF)


def _affine_backward(dtype, saved, dy):
  x, kernel_DxF = saved
  dy_MxF = _flat(dy)
  product = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)
  dx_MxD = dy_MxF @ kernel_DxF.astype(dtype).T
  return (
    dx_MxD.reshape(x.shape).astype(x.dtype),
    product(_flat(x.astype(dtype)).T, dy_MxF),
    dy_MxF.sum(axis=0, dtype=jnp.float32),
  )


affine.defvjp(_affine_forward, _affine_backward)


def gelu(x: Array) -> Array:
  """The exact gelu of f32, by erf: erfc takes a CPU twice as long.

  erfc is better far below zero, where in f32 nothing is left of x anyway.
  """
  return x * (0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5))))


def map_row_quarters(
  fn: Callable[..., Array], *arrays: Array | None, scores: int
) -> Array:
  """`fn(*arrays)` of a quarter of the rows at a time.

  XLA runs a batched product on one core of a CPU, but products that do not
  depend on one another side by side; and a quarter's scores stay in the caches.

  Args:
    fn: from arrays `[B, ...]` to one.
    *arrays: at least one is not None.
    scores: that attention computes in all; few are not worth it.
  """
  rows = next(len(x) for x in arrays if x is not None)
  num = min(QUARTERS, rows) if scores >= MIN_SCORES else 1
  split = lambda x: [None] * num if x is None else jnp.array_split(x, num)
  parts = zip(*map(split, arrays), strict=True)
  return jnp.concatenate([fn(*part) for part in parts])


def _flat(x: Array) -> Array:
  """All but the last axis as one, M."""
  return x.reshape(-1, x.shape[-1])
