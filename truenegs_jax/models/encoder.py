"""The BERT and ELECTRA encoder: embedding block and post-norm transformer.

It is a backbone: a module that exposes `Embeddings`, `Encoder` and `VARIANTS`
and is looked up by its name (`config.model.backbone`). `rotary.py` explains how
to write another one.

Networks take `inputs = {"tokens", "types", "documents"}`, each int32 `[B, L]`.
`documents` numbers the documents of a row from 1; 0 is padding. Attention stays
inside a document, and positions restart with it.
"""

import dataclasses
import functools
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
HEAD_WIDTH = 64  # in all released sizes
DTYPES = ("float32", "bfloat16")  # of activations


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
  """Sizes and regularization of one network, and how its layers are run.

  `remat`, `scan` (see `layers.run_layers`) and `attention` change memory and
  time only: parameters are the same, and results are up to rounding.
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
    """BERT's normal distribution, cut at 2 deviations and not rescaled."""
    return nn.initializers.truncated_normal(self.initializer_range)


# `small`, `base` and `large` as released (Clark et al. 2020, tables 6 and 8;
# Devlin et al. 2019), `minilm` by Wang et al. 2020. `tiny` is for tests, `demo`
# for a laptop, `narrow` to compare readings.
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
  """Scales the width of a network; heads and ffn follow from it.

  ELECTRA derives its generator so (`run_pretraining.py:get_generator_config`):
  heads of 64 units, a feed-forward layer of 4 widths, and the discriminator's
  number of layers and embeddings.
  """
  width = round(config.width * multiplier)
  heads = max(1, width // HEAD_WIDTH)
  return dataclasses.replace(config, width=width, heads=heads, ffn=4 * width)


class Embeddings(nn.Module):
  """Dropout(LayerNorm(word + token type + position)).

  ELECTRA's generator and discriminator share all of it, with the norm.
  """

  config: EncoderConfig
  has_positions: bool = True

  def setup(self):
    c = self.config

    def make_table(name: str, rows: int) -> Array:
      return self.param(name, c.initializer, (rows, c.embedding_size))

    self.word_VxE = make_table("word", c.vocab_size)
    if self.has_positions:
      self.position_PxE = make_table("position", c.max_positions)
    self.type_TxE = make_table("type", c.type_vocab_size)
    self.norm = layers.layer_norm()

  def __call__(
    self,
    inputs: Inputs,
    dropout_keys_B: Array | None,
    words_BxLxE: Array | None = None,
  ) -> Array:
    """Embeds tokens, `[B, L, E]` of `config.dtype`.

    `words_BxLxE` are the tokens' rows of the word table, if the caller has
    gathered them: a single gather has a single scatter as its gradient.
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
    """Returns the last hidden states, `[B, L, D]` of `config.dtype`."""
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
    """Returns the next hidden states, `[B, L, D]` of `config.dtype`."""
    c = self.config
    dropout = functools.partial(
      rng.dropout, keys_B=dropout_keys_B, rate=c.dropout
    )
    mixed_BxLxD = self_attention(
      c, x_BxLxD, mask, dropout_keys_B, site=first_site
    )
    x_BxLxD = layers.layer_norm("attention_norm")(
      x_BxLxD + dropout(mixed_BxLxD, site=first_site + 1)
    )
    x_BxLxD = x_BxLxD.astype(c.dtype)
    output_BxLxD = feed_forward(c, x_BxLxD)
    x_BxLxD = layers.layer_norm("ffn_norm")(
      x_BxLxD + dropout(output_BxLxD, site=first_site + 2)
    )
    return x_BxLxD.astype(c.dtype)


def project_to_width(config: EncoderConfig, embedded_BxLxE: Array) -> Array:
  """Projects embeddings to the width of a network, if they differ.

  The calling module owns the layer `project`, since the networks of a pair
  share the embeddings but not their widths.
  """
  if config.embedding_size == config.width:
    return embedded_BxLxE
  # ELECTRA uses TF's default initializer here.
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
  transform: Callable[[Array], Array] = lambda x: x,
) -> Array:
  """Computes multi-head self-attention, `[B, L, D]`.

  The calling module owns the layers `query`, `key`, `value` and
  `attention_output`. `transform` is applied to queries and keys, `[B, L, H, S]`
  each.
  """
  c = config

  def project_heads(name: str) -> Array:
    units_BxLxD = _dense(c, c.width, name)(x_BxLxD)
    return units_BxLxD.reshape(*x_BxLxD.shape[:2], c.heads, -1)

  mixed_BxLxHxS = attention_lib.attend(
    transform(project_heads("query")),
    transform(project_heads("key")),
    project_heads("value"),
    mask,
    dropout_keys_B,
    rate=c.attention_dropout,
    site=site,
  )
  mixed_BxLxD = mixed_BxLxHxS.reshape(x_BxLxD.shape)
  return _dense(c, c.width, "attention_output")(mixed_BxLxD)


def feed_forward(config: EncoderConfig, x_BxLxD: Array) -> Array:
  """Computes dense, gelu, dense: the caller's `ffn_input` and `ffn_output`."""
  hidden_BxLxF = layers.gelu(_dense(config, config.ffn, "ffn_input")(x_BxLxD))
  return _dense(config, config.width, "ffn_output")(hidden_BxLxF)


def document_positions(documents_BxL: Array) -> Array:
  """Returns the position of each token in its document, int32 from 0."""
  index_L = jnp.arange(documents_BxL.shape[1], dtype=jnp.int32)
  before_BxL = jnp.pad(documents_BxL[:, :-1], ((0, 0), (1, 0)))
  starts_BxL = jnp.where(documents_BxL != before_BxL, index_L[None], 0)
  return index_L[None] - jax.lax.cummax(starts_BxL, axis=1)


def _dense(config: EncoderConfig, features: int, name: str) -> layers.Dense:
  return layers.Dense(
    features, kernel_init=config.initializer, dtype=config.dtype, name=name
  )
