"""ModernBERT's encoder: pre-norm, rotary positions, gated layers, windows.

A backbone (docs/how_to/add_backbone.md) exposes:

* `Embeddings(config)(inputs, keys_B, words_BxLxE=None)` -> `[B, L, E]` after a
  norm. The attribute `word_VxE` is the word table, of which `words_BxLxE` are
  rows, if already gathered. ELECTRA's networks share the embeddings and start
  with `encoder.project_to_width`.
* `Encoder(config)(embedded_BxLxE, documents_BxL, keys_B)` -> `[B, L, D]` of
  `config.dtype`. Tokens attend to their own document only.
* `VARIANTS`: name -> sizes, which are fields of `encoder.EncoderConfig`.
* `FIELDS`, optionally: its other fields that have another value than BERT's.

Dropout sites are numbers, unique in a network: 0 in the embeddings, and those
that `layers.run_layers` passes to each layer. Weight decay skips parameters
named `bias` or `scale`.

In shape suffixes, Z = S / 2 is the number of pairs of units of a head.

Sources: Warner et al. 2024, "Smarter, better, faster, longer"; transformers'
`modeling_modernbert.py`, whose numbers these are; Su et al. 2021, "RoFormer".
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from truenegs_jax.models import attention, encoder, layers
from truenegs_jax.runtime import rng

Array = jax.Array

# `base` and `large` as released; `small` and `medium` are Ettin's of 32 and 68
# million parameters (Weller et al. 2025).
VARIANTS = {
  "tiny": dict(embedding_size=32, width=32, layers=2, heads=2, ffn=48),
  "demo": dict(embedding_size=128, width=128, layers=4, heads=2, ffn=192),
  "shallow": dict(embedding_size=256, width=256, layers=2, heads=4, ffn=1024),
  "mini": dict(embedding_size=256, width=256, layers=4, heads=4, ffn=512),
  "small": dict(embedding_size=384, width=384, layers=10, heads=6, ffn=576),
  "medium": dict(embedding_size=512, width=512, layers=19, heads=8, ffn=768),
  "base": dict(embedding_size=768, width=768, layers=22, heads=12, ffn=1152),
  "large": dict(embedding_size=1024, width=1024, layers=28, heads=16, ffn=2624),
}
FIELDS = dict(bias=False, norm_epsilon=1e-5, pre_norm=True, projects=False)
FIELDS |= dict(window=64, global_every=3)

# Only the check of a run's config limits the length of a row (`max_positions`).
Embeddings = functools.partial(encoder.Embeddings, words_only=True)


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
    thetas = c.global_rope_theta, c.local_rope_theta
    contexts = [
      (
        attention.make_mask(c.attention, documents_BxL, window),
        *make_rotations(positions_BxL, c.width // c.heads, theta),
      )
      for window, theta in zip((0, c.window), thetas, strict=True)
    ]
    x_BxLxD = layers.run_layers(
      self,
      [
        functools.partial(Layer, is_first=i == 0, is_local=c.is_local(i))
        for i in range(c.layers)
      ],
      encoder.project_to_width(c, embedded_BxLxE),
      keys_B,
      *contexts,
      period=c.global_every,
    )
    return encoder.layer_norm(c, "final_norm")(x_BxLxD).astype(c.dtype)


class Layer(nn.Module):
  """Norm before self-attention and feed-forward; none on the residual."""

  config: encoder.EncoderConfig
  is_first: bool = False  # follows the norm of the embeddings
  is_local: bool = False

  @nn.compact
  def __call__(
    self,
    x_BxLxD: Array,
    keys_B: rng.Keys,
    first_site: int | Array,
    *contexts: tuple[attention.AttentionMask, Array, Array],
  ) -> Array:
    """Returns the next hidden states, `[B, L, D]` of `config.dtype`.

    `contexts` are masks and rotations of global and of local layers.
    """
    c = self.config
    mask, *rotations = contexts[self.is_local]

    def normalize(name: str) -> Array:
      return encoder.layer_norm(c, name)(x_BxLxD).astype(c.dtype)

    def write(units: Array, name: str) -> Array:
      init = c.output_initializer
      return encoder.dense(c, c.width, name, kernel_init=init)(units)

    input_BxLxD = x_BxLxD if self.is_first else normalize("attention_norm")
    query, key, value = (
      x.reshape(*x.shape[:2], c.heads, -1)
      for x in encoder.dense(c, c.width, "qkv", parts=3)(input_BxLxD)
    )
    mixed_BxLxHxS = attention.attend(
      rotate(query, *rotations),
      rotate(key, *rotations),
      value,
      mask,
      keys_B,
      rate=c.attention_dropout,
      site=first_site,
    )
    mixed_BxLxD = mixed_BxLxHxS.reshape(x_BxLxD.shape)
    x_BxLxD += rng.dropout(
      write(mixed_BxLxD, "attention_output"),
      keys_B,
      rate=c.attention_dropout,  # ModernBERT has one rate for both
      site=first_site + 1,
    )
    gated = encoder.dense(c, c.ffn, "ffn_gated", parts=2)
    gate_BxLxF, linear_BxLxF = gated(normalize("ffn_norm"))
    units_BxLxF = layers.gelu(gate_BxLxF) * linear_BxLxF
    units_BxLxF = rng.dropout(
      units_BxLxF, keys_B, rate=c.dropout, site=first_site + 2
    )
    return x_BxLxD + write(units_BxLxF, "ffn_output")


def make_rotations(
  positions_BxL: Array, width: int, theta: float
) -> tuple[Array, Array]:
  """Returns cosine and sine, f32 `[B, L, 1, Z]`, of the angle of each pair.

  Pair z at position p turns by p * theta^(-z / Z). The width S of a head gives
  Z = S / 2, rounded down.
  """
  pairs = width // 2
  # In f64: errors of the rates grow with the position.
  rates_Z = np.asarray(theta ** (-np.arange(pairs) / pairs), np.float32)
  angles_BxLx1xZ = positions_BxL[..., None, None] * rates_Z[None, None, None]
  return jnp.cos(angles_BxLx1xZ), jnp.sin(angles_BxLx1xZ)


def rotate(x_BxLxHxS: Array, cos_BxLx1xZ: Array, sin_BxLx1xZ: Array) -> Array:
  """Rotates pairs of units by angles that grow with the position, in f32.

  The dot product of two rotated vectors depends on the distance of their
  positions only. Unit i is paired with unit i + Z. If S is odd, the last unit
  does not change.
  """
  pairs = cos_BxLx1xZ.shape[-1]
  first, second, rest = jnp.split(x_BxLxHxS, (pairs, 2 * pairs), axis=-1)
  rotated = (
    first * cos_BxLx1xZ - second * sin_BxLx1xZ,
    first * sin_BxLx1xZ + second * cos_BxLx1xZ,
  )
  return jnp.concatenate((*rotated, rest), axis=-1).astype(x_BxLxHxS.dtype)
