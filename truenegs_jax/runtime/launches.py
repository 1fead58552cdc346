"""Merges operations on arrays of equal shape into few launches on GPUs.

XLA merges operations of equal shape that read the same array, however small,
but not those that only read the same scalar. So they get an array to read.
Elsewhere these functions change nothing.
"""

import jax
import jax.numpy as jnp

from truenegs_jax.runtime import cpu


def tie(x: jax.Array) -> jax.Array:
  """Returns a scalar whose users XLA merges by their shapes on GPUs."""
  if not cpu.is_gpu():
    return x
  return jax.lax.optimization_barrier(jnp.stack([x, x]))[0]


def merge(x: jax.Array) -> jax.Array:
  """Multiplies by 1, as an array that others read, too, on GPUs."""
  return x * tie(jnp.ones((), x.dtype)) if cpu.is_gpu() else x


def cast(param: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Casts a parameter, on GPUs together with others of its shape."""
  return (param if param.dtype == dtype else merge(param)).astype(dtype)
