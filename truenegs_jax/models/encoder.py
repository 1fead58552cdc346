"""The BERT and ELECTRA encoder: embedding block and post-norm transformer.

A backbone is a file like this one: it exposes `Embeddings`, `Encoder` and
`VARIANTS`, and is looked up by its module name (`config.model.backbone`);
`rotary.py` explains how to write another with the parts of this file.

  inputs = {"tokens": [B, L], "types": [B, L], "documents": [B, L]}  int32

`documents` numbers the documents of a row 1, 2, ...; 0 is padding. Attention
stays inside a document and positions restart with it.
"""

import dataclasses
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.models import attention as attention_lib
from truenegs_jax.models import layers
from truenegs_jax.runtime import rng

Array = jax.Array
Inputs = Mapping[str, Array]

HUGGING_FACE = True  # weights/formats has names for these parameters

HEAD_WIDTH = 64  # of every released size


DTYPES = ("float32", "bfloat16")  # of activations


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
  """Size and regularization of one network, and how its layers are run.

  `remat`, `scan` and `attention` change neither the tree of the parameters nor
  a number beyond its rounding, only memory and time (`layers.run_layers`).
  """

  vocab_size: int
  embedding_size: int
  width: int
  layers: int
  heads: int
  ffn: int
  max_positions: int = 512
  type_vocab_size: int = 2
  dropout: float = 0.1
  attention_dropout: float = 0.1
  initializer_range: float = 0.02
  dtype: str = "float32"
  remat: str = "none"
  scan: bool = False
  attention: attention_lib.Implementation = attention_lib.XLA

  def __post_init__(self):
    layers.check_remat(self.remat)

  @property
  def initializer(self):
    """BERT's: normal, cut at two deviations and, as in TF1, not rescaled."""
    return nn.initializers.truncated_normal(self.initializer_range)


# Sizes of the released models (Clark et al. 2020, tables 6 and 8; Devlin et al.
# 2019; Wang et al. 2020: 6 layers, 384 wide); `demo` and `tiny` are ours, for a
# laptop and for tests, `narrow` to try readings.
VARIANTS: dict[str, dict[str, int]] = {
  "tiny": dict(embedding_size=16, width=32, layers=2, heads=2, ffn=64),
  "demo": dict(embedding_size=128, width=128, layers=2, heads=2, ffn=512),
  "narrow": dict(embedding_size=64, width=64, layers=4, heads=2, ffn=256),
  "small": dict(embedding_size=128, width=256, layers=12, heads=4, ffn=1024),
  "minilm": dict(embedding_size=384, width=384, layers=6, heads=12, ffn=1536),
  "base": dict(embedding_size=768, width=768, layers=12, heads=12, ffn=3072),
  "large": dict(embedding_size=1024, width=1024, layers=24, heads=16, ffn=4096),
}


def scale_config(config: EncoderConfig, multiplier: float) -> EncoderConfig:
  """The generator's size: the width is scaled, heads and ffn follow from it.

  ELECTRA's rule (`run_pretraining.py:get_generator_config`): heads of 64 units,
  a feed-forward layer of 4 widths, as many layers and the same embeddings.
  """
  width = round(config.width * multiplier)
  heads = max(1, width // HEAD_WIDTH)
  return dataclasses.replace(config, width=width, heads=heads, ffn=4 * width)


class Embeddings(nn.Module):
  """Word + token-type + position tables, then layer norm, then dropout.

  ELECTRA's generator and discriminator share all of it, the norm included.
  """

  config: EncoderConfig
  has_positions: bool = True

  def setup(self):
    c = self.config
    table = lambda name, rows: self.param(
      name, c.initializer, (rows, c.embedding_size)
    )
    self.word_VxE = table("word", c.vocab_size)
    if self.has_positions:
      self.position_PxE = table("position", c.max_positions)
    self.type_TxE = table("type", c.type_vocab_size)
    self.norm = layers.layer_norm()

  def __call__(
    self,
    inputs: Inputs,
    dropout_keys_B: Array | None,
    words_BxLxE: Array | None = None,
  ) -> Array:
    """Returns `[B, L, E]`, of `config.dtype`.

    `words_BxLxE`: rows of the word table, if they were gathered before. One
    gather for all that needs rows of it has one scatter for its gradient.
    """
    if words_BxLxE is None:
      words_BxLxE = self.word_VxE[inputs["tokens"]]
    positions_BxL = document_positions(inputs["documents"])
    x_BxLxE = words_BxLxE + self.type_TxE[inputs["types"]]
    if self.has_positions:
      x_BxLxE += self.position_PxE[positions_BxL]
    return rng.dropout(
      self.norm(x_BxLxE).astype(self.config.dtype),
      dropout_keys_B,
      rate=self.config.dropout,
      site=0,
    )


class Encoder(nn.Module):
  """A stack of post-norm transformer layers over embedded tokens."""

  config: EncoderConfig

  @nn.compact
  def __call__(
    self,
    embedded_BxLxE: Array,
    documents_BxL: Array,
    dropout_keys_B: Array | None,
  ) -> Array:
    """Returns the last layer's hidden states `[B, L, D]`, of `config.dtype`."""
    x_BxLxD = project_to_width(self.config, embedded_BxLxE)
    mask = attention_lib.make_mask(self.config.attention, documents_BxL)
    return layers.run_layers(self, Layer, x_BxLxD, dropout_keys_B, mask)


class Layer(nn.Module):
  """Self-attention and feed-forward, each followed by residual and norm."""

  config: EncoderConfig

  @nn.compact
  def __call__(
    self,
    x_BxLxD: Array,
    dropout_keys_B: Array | None,
    first_site: int | Array,
    mask: attention_lib.AttentionMask,
  ) -> Array:
    """Returns hidden states `[B, L, D]`, of `config.dtype`."""
    c = self.config
    drop = lambda x, site: rng.dropout(
      x, dropout_keys_B, rate=c.dropout, site=first_site + site
    )
    mixed_BxLxD = self_attention(
      c, x_BxLxD, mask, dropout_keys_B, site=first_site
    )
    x_BxLxD = layers.layer_norm("attention_norm")(
      x_BxLxD + drop(mixed_BxLxD, 1)
    )
    x_BxLxD = x_BxLxD.astype(c.dtype)
    output_BxLxD = feed_forward(c, x_BxLxD)
    x_BxLxD = layers.layer_norm("ffn_norm")(x_BxLxD + drop(output_BxLxD, 2))
    return x_BxLxD.astype(c.dtype)


def project_to_width(config: EncoderConfig, embedded_BxLxE: Array) -> Array:
  """Embeddings as wide as the network; the calling module owns `project`.

  Each network of a pair has its own, since they share the embeddings. There is
  none where the widths are the same.
  """
  if config.embedding_size == config.width:
    return embedded_BxLxE
  # ELECTRA leaves this layer to TF's default initializer.
  project = layers.Dense(
    config.width,
    kernel_init=nn.initializers.glorot_uniform(),
    dtype=config.dtype,
    name="project",
  )
  return project(embedded_BxLxE)


def self_attention(
  config: EncoderConfig,
  x_BxLxD: Array,
  mask: attention_lib.AttentionMask,
  dropout_keys_B: Array | None,
  *,
  site: int | Array,
  turn: Callable[[Array], Array] = lambda x: x,
) -> Array:
  """All heads' attention, mixed by a dense layer, `[B, L, D]`.

  The calling module owns `query`, `key`, `value` and `attention_output`. `turn`
  is applied to queries and keys, `[B, L, H, S]`.
  """
  c = config
  split = lambda x: x.reshape(*x.shape[:2], c.heads, -1)
  mixed_BxLxHxS = attention_lib.attend(
    turn(split(_dense(c, c.width, "query")(x_BxLxD))),
    turn(split(_dense(c, c.width, "key")(x_BxLxD))),
    split(_dense(c, c.width, "value")(x_BxLxD)),
    mask,
    dropout_keys_B,
    rate=c.attention_dropout,
    site=site,
  )
  mixed_BxLxD = mixed_BxLxHxS.reshape(x_BxLxD.shape)
  return _dense(c, c.width, "attention_output")(mixed_BxLxD)


def feed_forward(config: EncoderConfig, x_BxLxD: Array) -> Array:
  """Dense, gelu, dense; the calling module owns `ffn_input`, `ffn_output`."""
  hidden_BxLxF = layers.gelu(_dense(config, config.ffn, "ffn_input")(x_BxLxD))
  return _dense(config, config.width, "ffn_output")(hidden_BxLxF)


def document_positions(documents_BxL: Array) -> Array:
  """Position of each token inside its own document, from 0."""
  index_L = jnp.arange(documents_BxL.shape[1], dtype=jnp.int32)
  before_BxL = jnp.pad(documents_BxL[:, :-1], ((0, 0), (1, 0)))
  starts_BxL = jnp.where(documents_BxL != before_BxL, index_L[None], 0)
  return index_L[None] - jax.lax.cummax(starts_BxL, axis=1)


def _dense(config: EncoderConfig, features: int, name: str) -> layers.Dense:
  return layers.Dense(
    features, kernel_init=config.initializer, dtype=config.dtype, name=name
  )
