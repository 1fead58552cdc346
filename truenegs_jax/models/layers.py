"""Layers that networks share, and how a stack of them is run."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.runtime import cpu, rng

Array = jax.Array


class Dense(nn.Dense):
  """`flax.linen.Dense` with f32 parameters and a faster product on CPUs.

  With `parts` it is as many layers without biases, in one product: its kernel
  is `[D, parts, features]`, of which a mesh splits each part.
  """

  parts: int = 0

  @nn.compact
  def __call__(self, inputs: Array) -> Any:
    """Maps `[..., D]` to `[..., features]` of `dtype`, or a list of parts."""
    if not self.parts and not cpu.is_enabled():
      return super().__call__(inputs)
    axes = (self.parts, self.features) if self.parts else (self.features,)
    kernel = self.param("kernel", self.kernel_init, (inputs.shape[-1], *axes))
    bias_F = None
    if self.use_bias and not self.parts:
      bias_F = self.param("bias", self.bias_init, axes)
    dtype = jnp.dtype(self.dtype)
    if not self.parts:
      return _affine(dtype, inputs, kernel, bias_F)
    if cpu.is_enabled():  # gradients of parts are slow to join
      parts = (kernel[:, i] for i in range(self.parts))
      return [_affine(dtype, inputs, part, None) for part in parts]
    y = jnp.tensordot(inputs.astype(dtype), kernel.astype(dtype), 1)
    return [y[..., i, :] for i in range(self.parts)]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _affine(
  dtype: jnp.dtype, x: Array, kernel_DxF: Array, bias_F: Array | None
) -> Array:
  """Computes x @ kernel + bias in `dtype`, `[..., F]`.

  Gradients of the f32 parameters are f32. All matrix products have two axes,
  since XLA is slow with more on a CPU.
  """
  flat_MxD = _flat(x.astype(dtype))
  y_MxF = flat_MxD @ kernel_DxF.astype(dtype)
  if bias_F is not None:
    y_MxF += bias_F.astype(dtype)[None]
  return y_MxF.reshape(*x.shape[:-1], -1)


def _affine_forward(dtype, x, kernel_DxF, bias_F):
  return _affine(dtype, x, kernel_DxF, bias_F), (x, kernel_DxF, bias_F)


def _affine_backward(dtype, residuals, dy):
  x, kernel_DxF, bias_F = residuals
  dy_MxF = _flat(dy)
  dx_MxD = dy_MxF @ kernel_DxF.astype(dtype).T
  multiply = functools.partial(
    jnp.matmul, preferred_element_type=cpu.product_dtype(dtype)
  )
  x_MxD = _flat(x.astype(dtype))
  if x_MxD.shape[1] > dy_MxF.shape[1]:
    # XLA sums over rows faster if the result has more columns than rows. The
    # barrier keeps it from turning this into the other product.
    dkernel_FxD = multiply(dy_MxF.T, x_MxD)
    dkernel_DxF = jax.lax.optimization_barrier(dkernel_FxD).T
  else:
    dkernel_DxF = multiply(x_MxD.T, dy_MxF)
  dbias_F = None
  if bias_F is not None:
    dbias_F = dy_MxF.sum(axis=0, dtype=jnp.float32)
  dkernel_DxF = dkernel_DxF.astype(jnp.float32)
  return dx_MxD.reshape(x.shape).astype(x.dtype), dkernel_DxF, dbias_F


_affine.defvjp(_affine_forward, _affine_backward)


def _flat(x: Array) -> Array:
  """Merges all axes but the last into one, M."""
  return x.reshape(-1, x.shape[-1])


def gelu(x: Array) -> Array:
  """Computes x * Phi(x), as ELECTRA and Hugging Face; BERT's code uses tanh."""
  if cpu.is_enabled():
    # Twice as fast as erfc, which is better only where gelu is negligible.
    x_f32 = x.astype(jnp.float32)
    y = x_f32 * (0.5 * (1.0 + jax.lax.erf(x_f32 * math.sqrt(0.5))))
    return y.astype(x.dtype)
  return jax.nn.gelu(x, approximate=False)


SITES_PER_LAYER = 3  # attention weights, attention output, feed-forward output

# What a layer keeps for the backward pass besides its input.
REMAT = {
  "none": None,  # all that the backward pass needs
  # Outputs of dense layers, but not the scores, L^2 per head and row.
  # A fused kernel names its output and normalizers "attention".
  "dots": jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    jax.checkpoint_policies.save_only_these_names("attention"),
  ),
  "full": jax.checkpoint_policies.nothing_saveable,
}


def run_layers(
  network: nn.Module,
  layer: Callable[..., nn.Module] | Sequence[Callable[..., nn.Module]],
  x_BxLxD: Array,
  keys_B: rng.Keys,
  *shared: object,
  period: int = 1,
) -> Array:
  """Runs the layers `layer_0`, `layer_1`, ... of a network in sequence.

  With `remat` a layer keeps little, and the backward pass computes the rest
  again (Chen et al. 2016). With `scan` the layers are a loop over their stacked
  parameters: XLA compiles one layer instead of N, but parameters and gradients
  are copied.

  Args:
    network: the module whose compact method is running.
    layer: `layer(config)(x_BxLxD, keys_B, first_site, *shared)` returns the
      next `x_BxLxD`. `first_site` is the first of its SITES_PER_LAYER dropout
      sites. If layers differ, a list of all.
    x_BxLxD: input of the first layer; the result is the last one's output.
    keys_B: of dropout, one per row.
    *shared: trees of arrays that are the same for all layers (the mask).
    period: layers of one round of the loop. The first round of a list of
      layers, which may differ, is not part of it.
  """
  c = network.config
  kinds = layer if isinstance(layer, Sequence) else [layer] * c.layers
  # Site 0 is that of the embeddings.
  sites = [1 + SITES_PER_LAYER * i for i in range(c.layers)]
  if network.is_initializing() or (c.remat == "none" and not c.scan):
    for i, (make, site) in enumerate(zip(kinds, sites, strict=True)):
      x_BxLxD = make(c, name=f"layer_{i}")(x_BxLxD, keys_B, site, *shared)
    return x_BxLxD

  # A layer as a function of its parameters. Flax's scan would stack them in
  # checkpoints and exports too.
  def apply(make, x_BxLxD, params, site):
    variables = {"params": params}
    module = make(c, parent=None)
    return module.apply(variables, x_BxLxD, keys_B, site, *shared)

  def run(kinds, x_BxLxD, steps):
    for make, (params, site) in zip(kinds, steps, strict=True):
      x_BxLxD = run_layer(make, x_BxLxD, params, site)
    return x_BxLxD, None

  run_layer = apply
  if c.remat != "none":
    # Outside a loop, XLA would merge the second computation with the first.
    run_layer = jax.checkpoint(
      apply, policy=REMAT[c.remat], prevent_cse=not c.scan, static_argnums=0
    )
  layers = [network.variables["params"][f"layer_{i}"] for i in range(c.layers)]
  steps = list(zip(layers, map(jnp.int32, sites), strict=True))
  first = c.layers
  if c.scan:
    is_list = isinstance(layer, Sequence)
    first = (c.layers % period or period) if is_list else 0
  x_BxLxD, _ = run(kinds[:first], x_BxLxD, steps[:first])
  if rounds := [steps[i : i + period] for i in range(first, c.layers, period)]:
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rounds)
    body = functools.partial(run, kinds[first : first + period])
    x_BxLxD, _ = jax.lax.scan(body, x_BxLxD, stacked)
  return x_BxLxD
