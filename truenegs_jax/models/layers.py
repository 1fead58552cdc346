"""How a stack of equal layers is run: what it keeps, and whether as a loop."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.runtime import cpu, cpu_ops
from truenegs_jax.runtime.errors import InputError

Array = jax.Array

LAYER_NORM_EPSILON = 1e-12  # TF1's layer_norm, BERT and ELECTRA as released


class Dense(nn.Dense):
  """`flax.linen.Dense` with a bias and f32 parameters, for inputs `[..., D]`.

  On a CPU the products and their gradients are those of `cpu_ops.affine`.
  """

  @nn.compact
  def __call__(self, inputs: Array) -> Array:
    """Returns `[..., features]`, of `dtype`."""
    if not cpu.is_enabled():
      return super().__call__(inputs)
    shape = inputs.shape[-1], self.features
    kernel_DxF = self.param("kernel", self.kernel_init, shape)
    bias_F = self.param("bias", self.bias_init, shape[1:])
    return cpu_ops.affine(jnp.dtype(self.dtype), inputs, kernel_DxF, bias_F)


def gelu(x: Array) -> Array:
  """The exact (erf) form: ELECTRA's and Hugging Face's, not BERT's tanh one."""
  if cpu.is_enabled() and x.dtype == jnp.float32:
    return cpu_ops.gelu(x)
  return jax.nn.gelu(x, approximate=False)


def layer_norm(name: str | None = None) -> nn.LayerNorm:
  """Layer normalization as released; its output is f32, whatever goes in."""
  return nn.LayerNorm(
    epsilon=LAYER_NORM_EPSILON,
    use_fast_variance=False,  # E[x^2] - E[x]^2 loses small variances
    dtype=jnp.float32,
    name=name,
  )


SITES_PER_LAYER = 3  # attention weights, attention output, feed-forward output

# What is kept of a layer for the backward pass, beside its input.
REMAT = {
  "none": None,  # whatever the backward pass asks for
  # What dense layers gave, but not the scores: L^2 of them a head and row.
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "full": jax.checkpoint_policies.nothing_saveable,
}


def check_remat(name: str) -> None:
  """Raises an InputError that lists the known names unless it is one."""
  if name not in REMAT:
    known = ", ".join(REMAT)
    raise InputError(f"model.remat {name!r} is unknown; known: {known}.")


def run_layers(
  network: Any,
  layer: Callable[..., nn.Module],
  x_BxLxD: Array,
  dropout_keys_B: Array | None,
  *shared: Any,
) -> Array:
  """Runs the layers `layer_0`, `layer_1`, ... of a network one after another.

  With `remat` little is kept of a layer and the backward pass computes the rest
  once more (Chen et al. 2016, "Training deep nets with sublinear memory cost").
  With `scan` the layers are a loop over their stacked parameters: one layer is
  compiled instead of N, for a copy of the parameters and of their gradient.

  Args:
    network: the module whose compact method calls; its `config` says how many
      layers, `remat` and `scan`.
    layer: `layer(config)(x_BxLxD, dropout_keys_B, first_site, *shared)` is the
      next `x_BxLxD`. `first_site`, an integer or a scalar array, is the first
      of the SITES_PER_LAYER numbers of its dropout sites.
    x_BxLxD: what the first layer is given.
    dropout_keys_B: None turns dropout off.
    *shared: trees of arrays that every layer sees alike (a mask, positions).
  """
  c = network.config
  sites = [1 + SITES_PER_LAYER * i for i in range(c.layers)]  # 0: embeddings
  if network.is_initializing() or (c.remat == "none" and not c.scan):
    for i, site in enumerate(sites):
      run = layer(c, name=f"layer_{i}")
      x_BxLxD = run(x_BxLxD, dropout_keys_B, site, *shared)
    return x_BxLxD

  # A layer as a function of its parameters: flax's own scan would keep all of
  # them stacked, and checkpoints and exports would have to know of it.
  def body(x_BxLxD, params_and_site):
    params, site = params_and_site
    next_BxLxD = layer(c, parent=None).apply(
      {"params": params}, x_BxLxD, dropout_keys_B, site, *shared
    )
    return next_BxLxD, None

  if c.remat != "none":
    # Outside of a loop XLA would merge the second computation with the first.
    body = jax.checkpoint(body, policy=REMAT[c.remat], prevent_cse=not c.scan)
  layers = [network.variables["params"][f"layer_{i}"] for i in range(c.layers)]
  steps = list(zip(layers, map(jnp.int32, sites), strict=True))
  if c.scan:
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *steps)
    return jax.lax.scan(body, x_BxLxD, stacked)[0]
  for step in steps:
    x_BxLxD, _ = body(x_BxLxD, step)
  return x_BxLxD
