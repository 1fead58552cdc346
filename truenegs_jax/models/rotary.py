"""A backbone in one file: pre-norm layers with rotary positions.

To write another backbone, copy this file, change what differs, and train it
with `--config.model.backbone=MODULE`. A backbone exposes:

* `Embeddings(config)(inputs, keys_B, words_BxLxE=None)` -> `[B, L, E]`,
  f32 or `config.dtype`, after a norm. `words_BxLxE` are rows of the word table,
  if already gathered; the attribute `word_VxE` is this table, which the output
  layer shares. ELECTRA's networks share the embeddings but not their width:
  embeddings are `embedding_size` wide, and each network starts with
  `encoder.project_to_width`.
* `Encoder(config)(embedded_BxLxE, documents_BxL, keys_B)` ->
  `[B, L, D]` of `config.dtype`. Tokens attend to their own document only.
* `VARIANTS`: name -> sizes, which are fields of `encoder.EncoderConfig`.
* `HUGGING_FACE = True`, only if weights/hf_names.py has names for it.

Dropout sites are numbers, unique in a network: 0 in the embeddings, and those
that `layers.run_layers` passes to each layer. `run_layers` also implements
`remat` and `scan`. Weight decay skips parameters named `bias` or `scale`.
tests/models/test_backbones.py tests each backbone of this folder.

In shape suffixes, Z = S / 2 is the number of pairs of units of a head.

Sources: Xiong et al. 2020, "On layer normalization in the transformer
architecture"; Su et al. 2021, "RoFormer", section 3.2.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.models import attention, encoder, layers
from truenegs_jax.runtime import rng

Array = jax.Array

VARIANTS = encoder.VARIANTS
ROTARY_BASE = 10_000.0  # RoFormer's: wavelengths of 2 pi to 10,000 * 2 pi

# Only the check of a run's config limits the length of a row (`max_positions`).
Embeddings = functools.partial(encoder.Embeddings, has_positions=False)


class Encoder(nn.Module):
  """A stack of pre-norm transformer layers, with a norm at its end."""

  config: encoder.EncoderConfig

  @nn.compact
  def __call__(
    self, embedded_BxLxE: Array, documents_BxL: Array, keys_B: rng.Keys
  ) -> Array:
    """Returns the normalized hidden states, `[B, L, D]` of `config.dtype`."""
    c = self.config
    positions_BxL = encoder.document_positions(documents_BxL)
    x_BxLxD = layers.run_layers(
      self,
      Layer,
      encoder.project_to_width(c, embedded_BxLxE),
      keys_B,
      attention.make_mask(c.attention, documents_BxL),
      *make_rotations(positions_BxL, c.width // c.heads),
    )
    return layers.layer_norm("final_norm")(x_BxLxD).astype(c.dtype)


class Layer(nn.Module):
  """Norm before self-attention and feed-forward; none on the residual."""

  config: encoder.EncoderConfig

  @nn.compact
  def __call__(
    self,
    x_BxLxD: Array,
    keys_B: rng.Keys,
    first_site: int | Array,
    mask: attention.AttentionMask,
    cos_BxLx1xZ: Array,
    sin_BxLx1xZ: Array,
  ) -> Array:
    """Returns the next hidden states, `[B, L, D]` of `config.dtype`."""
    c = self.config

    def normalize(name: str) -> Array:
      return layers.layer_norm(name)(x_BxLxD).astype(c.dtype)

    dropout = functools.partial(rng.dropout, keys_B=keys_B, rate=c.dropout)
    mixed_BxLxD = encoder.self_attention(
      c,
      normalize("attention_norm"),
      mask,
      keys_B,
      site=first_site,
      transform=lambda x_BxLxHxS: rotate(x_BxLxHxS, cos_BxLx1xZ, sin_BxLx1xZ),
    )
    x_BxLxD = x_BxLxD + dropout(mixed_BxLxD, site=first_site + 1)
    output_BxLxD = encoder.feed_forward(c, normalize("ffn_norm"))
    return x_BxLxD + dropout(output_BxLxD, site=first_site + 2)


def make_rotations(positions_BxL: Array, width: int) -> tuple[Array, Array]:
  """Returns cosine and sine, f32 `[B, L, 1, Z]`, of the angle of each pair.

  Pair z at position p turns by p * 10,000^(-z / Z). The width S of a head gives
  Z = S / 2, rounded down.
  """
  pairs = width // 2
  rates_Z = ROTARY_BASE ** (-jnp.arange(pairs, dtype=jnp.float32) / pairs)
  angles_BxLx1xZ = positions_BxL[..., None, None] * rates_Z[None, None, None]
  return jnp.cos(angles_BxLx1xZ), jnp.sin(angles_BxLx1xZ)


def rotate(x_BxLxHxS: Array, cos_BxLx1xZ: Array, sin_BxLx1xZ: Array) -> Array:
  """Rotates pairs of units by angles that grow with the position.

  The dot product of two rotated vectors depends on the distance of their
  positions only. Unit i is paired with unit i + Z; in the paper pairs are
  neighbours, which is only another order. If S is odd, the last unit does not
  change. Products are f32.
  """
  pairs = cos_BxLx1xZ.shape[-1]
  first, second, rest = jnp.split(x_BxLxHxS, (pairs, 2 * pairs), axis=-1)
  rotated = (
    first * cos_BxLx1xZ - second * sin_BxLx1xZ,
    first * sin_BxLx1xZ + second * cos_BxLx1xZ,
  )
  return jnp.concatenate((*rotated, rest), axis=-1).astype(x_BxLxHxS.dtype)
