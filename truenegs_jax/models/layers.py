"""Layers that networks share, and how a stack of them is run."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.runtime import cpu, cpu_ops, rng

Array = jax.Array

LAYER_NORM_EPSILON = 1e-12  # TF1's default, in released BERT and ELECTRA


class Dense(nn.Dense):
  """`flax.linen.Dense` with f32 parameters and a faster product on CPUs."""

  @nn.compact
  def __call__(self, inputs: Array) -> Array:
    """Maps `[..., D]` to `[..., features]` of `dtype`."""
    if not cpu.is_enabled():
      return super().__call__(inputs)
    shape = inputs.shape[-1], self.features
    kernel_DxF = self.param("kernel", self.kernel_init, shape)
    bias_F = self.param("bias", self.bias_init, shape[1:])
    return cpu_ops.affine(jnp.dtype(self.dtype), inputs, kernel_DxF, bias_F)


def gelu(x: Array) -> Array:
  """Computes x * Phi(x), as ELECTRA and Hugging Face; BERT's code uses tanh."""
  if cpu.is_enabled() and x.dtype == jnp.float32:
    return cpu_ops.gelu(x)
  return jax.nn.gelu(x, approximate=False)


def layer_norm(name: str | None = None) -> nn.LayerNorm:
  """Returns BERT's layer normalization; its output is always f32."""
  return nn.LayerNorm(
    epsilon=LAYER_NORM_EPSILON,
    use_fast_variance=False,  # E[x^2] - E[x]^2 loses small variances
    dtype=jnp.float32,
    name=name,
  )


SITES_PER_LAYER = 3  # attention weights, attention output, feed-forward output

# What a layer keeps for the backward pass besides its input.
REMAT = {
  "none": None,  # all that the backward pass needs
  # Outputs of dense layers, but not the scores, L^2 per head and row.
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "full": jax.checkpoint_policies.nothing_saveable,
}


def run_layers(
  network: nn.Module,
  layer: Callable[..., nn.Module],
  x_BxLxD: Array,
  keys_B: rng.Keys,
  *shared: object,
) -> Array:
  """Runs the layers `layer_0`, `layer_1`, ... of a network in sequence.

  With `remat` a layer keeps little, and the backward pass computes the rest
  again (Chen et al. 2016, "Training deep nets with sublinear memory cost").
  With `scan` the layers are a loop over their stacked parameters: XLA compiles
  one layer instead of N, but the parameters and their gradient are copied.

  Args:
    network: the module whose compact method is running. Its `config` has the
      number of `layers`, `remat` and `scan`.
    layer: `layer(config)(x_BxLxD, keys_B, first_site, *shared)` returns the
      next `x_BxLxD`. `first_site`, an integer or a scalar array, is the first
      of its SITES_PER_LAYER dropout sites.
    x_BxLxD: input of the first layer; the result is the last one's output.
    keys_B: as in `rng.dropout`.
    *shared: trees of arrays that are the same for all layers (the mask).
  """
  c = network.config
  # Site 0 is that of the embeddings.
  sites = [1 + SITES_PER_LAYER * i for i in range(c.layers)]
  if network.is_initializing() or (c.remat == "none" and not c.scan):
    for i, site in enumerate(sites):
      x_BxLxD = layer(c, name=f"layer_{i}")(x_BxLxD, keys_B, site, *shared)
    return x_BxLxD

  # A layer as a function of its parameters. Flax's scan would stack them in
  # checkpoints and exports too.
  def body(x_BxLxD, params_and_site):
    params, site = params_and_site
    next_BxLxD = layer(c, parent=None).apply(
      {"params": params}, x_BxLxD, keys_B, site, *shared
    )
    return next_BxLxD, None

  if c.remat != "none":
    # Outside a loop, XLA would merge the second computation with the first.
    body = jax.checkpoint(body, policy=REMAT[c.remat], prevent_cse=not c.scan)
  layers = [network.variables["params"][f"layer_{i}"] for i in range(c.layers)]
  steps = list(zip(layers, map(jnp.int32, sites), strict=True))
  if c.scan:
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *steps)
    return jax.lax.scan(body, x_BxLxD, stacked)[0]
  for step in steps:
    x_BxLxD, _ = body(x_BxLxD, step)
  return x_BxLxD
