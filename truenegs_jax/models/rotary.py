"""A backbone in one file: pre-norm layers, rotary positions, no position table.

How to write another: copy this file, change what differs, and train it with
`--config.model.backbone=<file name>`. What a backbone has to expose:

* `Embeddings(config)(inputs, dropout_keys_B, words_BxLxE=None)`, f32 or
  `config.dtype` `[B, L, E]`, of given rows of the word table if any; its
  attribute `word_VxE` is that table, which the output is tied to. Networks of
  other widths share it (ELECTRA's generator), so it knows only
  `config.embedding_size` and ends in a norm. `project_to_width` is next.
* `Encoder(config)(embedded_BxLxE, documents_BxL, dropout_keys_B)`,
  `config.dtype` `[B, L, D]`. Tokens look at their own document alone.
* `VARIANTS`: size name -> fields of `encoder.EncoderConfig`.
* `HUGGING_FACE = True`, only where weights/formats has names for it.

Dropout sites are numbers, unique in a network: 0 is the embeddings', a layer
has those that `layers.run_layers` gives it, which also sees to `remat` and
`scan`. Parameters named `bias` or `scale` are not decayed, all others are.
tests/models/test_registry.py tests every backbone of this folder.

Z counts the pairs of units of a head, S / 2.

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
ROTARY_BASE = 10_000.0  # RoFormer's: wavelengths from 2 pi up to 10,000 * 2 pi


# Nothing limits the length of a row: `config.max_positions` is only what the
# run's config is checked against.
Embeddings = functools.partial(encoder.Embeddings, has_positions=False)


class Encoder(nn.Module):
  """A stack of pre-norm transformer layers and the norm that pre-norm needs."""

  config: encoder.EncoderConfig

  @nn.compact
  def __call__(
    self,
    embedded_BxLxE: Array,
    documents_BxL: Array,
    dropout_keys_B: Array | None,
  ) -> Array:
    """Returns the normalized hidden states `[B, L, D]`, of `config.dtype`."""
    c = self.config
    positions_BxL = encoder.document_positions(documents_BxL)
    x_BxLxD = layers.run_layers(
      self,
      Layer,
      encoder.project_to_width(c, embedded_BxLxE),
      dropout_keys_B,
      attention.make_mask(c.attention, documents_BxL),
      *rotations(positions_BxL, c.width // c.heads),
    )
    return layers.layer_norm("final_norm")(x_BxLxD).astype(c.dtype)


class Layer(nn.Module):
  """Norm before self-attention and feed-forward; none on the residual."""

  config: encoder.EncoderConfig

  @nn.compact
  def __call__(
    self,
    x_BxLxD: Array,
    dropout_keys_B: Array | None,
    first_site: int | Array,
    mask: attention.AttentionMask,
    cos_BxLx1xZ: Array,
    sin_BxLx1xZ: Array,
  ) -> Array:
    """Returns hidden states `[B, L, D]`, of `config.dtype`."""
    c = self.config
    norm = lambda name: layers.layer_norm(name)(x_BxLxD).astype(c.dtype)
    drop = lambda x, site: rng.dropout(
      x, dropout_keys_B, rate=c.dropout, site=first_site + site
    )
    mixed_BxLxD = encoder.self_attention(
      c,
      norm("attention_norm"),
      mask,
      dropout_keys_B,
      site=first_site,
      turn=lambda x_BxLxHxS: rotate(x_BxLxHxS, cos_BxLx1xZ, sin_BxLx1xZ),
    )
    x_BxLxD = x_BxLxD + drop(mixed_BxLxD, 1)
    return x_BxLxD + drop(encoder.feed_forward(c, norm("ffn_norm")), 2)


def rotations(positions_BxL: Array, width: int) -> tuple[Array, Array]:
  """Cosine and sine of the angle of each pair of units of a head.

  Args:
    positions_BxL: from 0 on, in each document anew.
    width: units of a head, S; Z = S / 2 pairs, rounded down.

  Returns:
    two f32 arrays `[B, L, 1, Z]`.
  """
  pairs = width // 2
  rates_Z = ROTARY_BASE ** (-jnp.arange(pairs, dtype=jnp.float32) / pairs)
  angles_BxLx1xZ = positions_BxL[..., None, None] * rates_Z[None, None, None]
  return jnp.cos(angles_BxLx1xZ), jnp.sin(angles_BxLx1xZ)


def rotate(x_BxLxHxS: Array, cos_BxLx1xZ: Array, sin_BxLx1xZ: Array) -> Array:
  """Turns pairs of units by angles that grow with the position.

  The scalar product of two turned vectors depends on how far apart they are,
  and not on where. Unit i is paired with unit i + Z, not with its neighbour as
  in the paper: the same but for the order of a head's units. Where S is odd the
  last unit stays as it is. Products are f32.
  """
  pairs = cos_BxLx1xZ.shape[-1]
  first, second, rest = jnp.split(x_BxLxHxS, (pairs, 2 * pairs), axis=-1)
  turned_BxLxHxS = jnp.concatenate(
    (
      first * cos_BxLx1xZ - second * sin_BxLx1xZ,
      first * sin_BxLx1xZ + second * cos_BxLx1xZ,
      rest,
    ),
    axis=-1,
  )
  return turned_BxLxHxS.astype(x_BxLxHxS.dtype)
