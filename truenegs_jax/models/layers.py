"""The small layers of every network: dense, gelu, layer norm.

They are what flax and jax have, with the same parameters. The dense layer has a
gradient of its own: left to itself XLA gives each product that takes what went
in, or the gradient that comes back, a transposed copy with all that led to it
computed once more. On a CPU that is a sixth of a training step.
"""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

Array = jax.Array

LAYER_NORM_EPSILON = 1e-12  # TF1's layer_norm, BERT and ELECTRA as released


class Dense(nn.Module):
  """`flax.linen.Dense` with a bias, for inputs `[..., D]`.

  Products are made of `dtype`, which is also the result's; the gradient of the
  f32 parameters is summed up in f32.
  """

  features: int
  kernel_init: Any
  dtype: str

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Returns `[..., features]`."""
    shape = x.shape[-1], self.features
    kernel_DxF = self.param("kernel", self.kernel_init, shape)
    bias_F = self.param("bias", nn.initializers.zeros, shape[1:])
    return affine(jnp.dtype(self.dtype), x, kernel_DxF, bias_F)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def affine(dtype: Any, x: Array, kernel_DxF: Array, bias_F: Array) -> Array:
  """x @ kernel + bias in `dtype`, `[..., F]`."""
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
  """The exact (erf) form: ELECTRA's and Hugging Face's, not BERT's tanh one."""
  if x.dtype != jnp.float32:
    return jax.nn.gelu(x, approximate=False)
  # erfc costs a CPU twice as much. It is better far below zero, where in f32
  # nothing is left of x anyway.
  return x * (0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5))))


def layer_norm(name: str | None = None) -> nn.LayerNorm:
  """Layer normalization as released; its output is f32, whatever goes in."""
  return nn.LayerNorm(
    epsilon=LAYER_NORM_EPSILON,
    use_fast_variance=False,  # E[x^2] - E[x]^2 loses small variances
    dtype=jnp.float32,
    name=name,
  )


def _flat(x: Array) -> Array:
  """All but the last axis as one, M."""
  return x.reshape(-1, x.shape[-1])
