"""The BERT and ELECTRA encoder: embedding block and post-norm transformer.

It is a backbone: a module of this folder, which a run chooses by its name
(`config.model.backbone`). `modern.py` explains how to write another one.

Networks take `inputs = {"tokens", "types", "documents"}`, each int32 `[B, L]`.
`documents` numbers the documents of a row from 1; 0 is padding. Attention stays
inside a document, and positions restart with it.
"""

import dataclasses
import functools
import importlib
import pkgutil
import types
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax import models
from truenegs_jax.config.sections import FROM_WEIGHTS
from truenegs_jax.models import attention as attention_lib
from truenegs_jax.models import layers
from truenegs_jax.runtime import rng
from truenegs_jax.runtime.errors import InputError, one_of

Array = jax.Array
Inputs = Mapping[str, Array]
Model = TypeVar("Model", bound=nn.Module)

HEAD_WIDTH = 64  # in all released sizes
REQUIRED_NAMES = ("Embeddings", "Encoder", "VARIANTS")  # of a backbone


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
  """Sizes and regularization of one network, and how its layers are run.

  `remat`, `scan` and `attention` change memory and time, but neither the
  parameters nor, except for rounding, the results.
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
  global_rope_theta: float = 160_000.0  # of rotary positions: ModernBERT's
  local_rope_theta: float = 10_000.0
  # Set by FIELDS of a backbone, whose heads follow them, too.
  bias: bool = True  # in dense layers and norms; outputs of heads have one
  norm_epsilon: float = 1e-12  # TF1's default, in released BERT and ELECTRA
  pre_norm: bool = False  # outputs start smaller; all heads have a norm
  window: int = 0  # largest distance that attention of local layers reaches
  global_every: int = 1  # layers 0, n, 2 n, ... are not local
  projects: bool = True  # whether embeddings may have another width

  @property
  def initializer(self):
    """BERT's normal distribution, cut at 2 deviations and not rescaled."""
    return nn.initializers.truncated_normal(self.initializer_range)

  @property
  def output_initializer(self):
    """Initializer of what a layer adds to the residual, and of heads' layers.

    Without a norm after each sum, L layers of two sums add up to 2 L.
    """
    scale = (2 * self.layers) ** -0.5 if self.pre_norm else 1.0
    return nn.initializers.truncated_normal(self.initializer_range * scale)

  def is_local(self, layer: int) -> bool:
    """Returns whether a token of a layer attends to its window only."""
    return layer % self.global_every > 0


# `small`, `base` and `large` as released (Clark et al. 2020, tables 6 and 8;
# Devlin et al. 2019), `minilm` by Wang et al. 2020. `tiny` is for tests, `demo`
# for a laptop, `shallow` and `mini` for the hours of a CPU, `narrow` to compare
# objectives.
VARIANTS: dict[str, dict[str, int]] = {
  "tiny": dict(embedding_size=16, width=32, layers=2, heads=2, ffn=64),
  "demo": dict(embedding_size=128, width=128, layers=2, heads=2, ffn=512),
  "narrow": dict(embedding_size=64, width=64, layers=4, heads=2, ffn=256),
  "shallow": dict(embedding_size=256, width=256, layers=2, heads=4, ffn=1024),
  "mini": dict(embedding_size=128, width=256, layers=4, heads=4, ffn=1024),
  "small": dict(embedding_size=128, width=256, layers=12, heads=4, ffn=1024),
  "minilm": dict(embedding_size=384, width=384, layers=6, heads=12, ffn=1536),
  "base": dict(embedding_size=768, width=768, layers=12, heads=12, ffn=3072),
  "large": dict(embedding_size=1024, width=1024, layers=24, heads=16, ffn=4096),
}


def load_backbone(name: str) -> types.ModuleType:
  """Imports a module of `models.__path__`, or raises an InputError."""
  backbone: Any = None
  if name in {module.name for module in pkgutil.iter_modules(models.__path__)}:
    backbone = importlib.import_module(f"truenegs_jax.models.{name}")
  if not all(hasattr(backbone, required) for required in REQUIRED_NAMES):
    raise InputError(
      f"model.backbone={name!r} is not a backbone. Choose encoder, modern or"
      " another file of truenegs_jax/models that defines"
      f" {', '.join(REQUIRED_NAMES)}."
    )
  return backbone


def backbone_fields(name: str) -> Mapping[str, Any]:
  """Returns the fields of `EncoderConfig` that a backbone sets, if any."""
  return getattr(load_backbone(name), "FIELDS", {})


def make_network_config(
  backbone: str, variant: str, fields: Mapping[str, Any]
) -> EncoderConfig:
  """Builds a network's config: the sizes of a variant, updated by `fields`.

  The variant "init" has no sizes.
  """
  variants = {**load_backbone(backbone).VARIANTS, FROM_WEIGHTS: {}}
  one_of("model.variant", variant, variants)
  own = {**backbone_fields(backbone), **variants[variant], **fields}
  return _check_heads("model", EncoderConfig(**own))


def make_generator_config(
  discriminator: EncoderConfig,
  *,
  multiplier: float,
  sizes: Sequence[int],
) -> EncoderConfig:
  """Builds the config of a generator for a discriminator.

  `sizes` are width, layers, heads and ffn. One that is 0 is derived: the width
  is scaled by `multiplier`; heads have 64 units and ffn is 4 widths, as in
  ELECTRA (`run_pretraining.py:get_generator_config`). If the backbone does not
  project embeddings, layers are halved, as in DeBERTaV3, and no others change.
  """
  if len(sizes) != 4:
    raise InputError(
      f"generator.sizes={sizes!r} are not width, layers, heads and inner width."
      " Give four numbers, such as --config.generator.sizes=0,6,0,0."
    )
  kept = discriminator
  width, layers, heads, ffn = sizes
  width = width or round(kept.width * multiplier)
  if kept.projects:
    layers = layers or kept.layers
    heads = heads or max(1, width // HEAD_WIDTH)
    ffn = ffn or 4 * width
  else:
    layers = layers or max(1, round(kept.layers / 2))
  generator = dataclasses.replace(
    kept,
    width=width,
    layers=layers,
    heads=heads or kept.heads,
    ffn=ffn or kept.ffn,
  )
  return _check_heads("generator", generator)


def _check_heads(network: str, config: EncoderConfig) -> EncoderConfig:
  """Returns the config, or raises InputError if its width does not fit."""
  c = config
  if c.width != c.embedding_size and not c.projects:
    raise InputError(
      f"{network}: width={c.width} is not embedding_size={c.embedding_size},"
      " but this model.backbone has no projection. Set"
      " --config.generator.multiplier=1, or equal sizes."
    )
  if c.width < 1 or c.width % c.heads:
    raise InputError(
      f"{network}: {c.heads} heads do not divide a width of {c.width}. Choose"
      " another width, number of heads or generator.multiplier."
    )
  return c


def replace_configs(model: Model, **changed: Any) -> Model:
  """Returns a copy of a model with changed fields in all network configs."""
  configs: dict[str, Any] = {
    name: dataclasses.replace(config, **changed)
    for name, config in vars(model).items()
    if isinstance(config, EncoderConfig)
  }
  return model.clone(**configs)


class Embeddings(nn.Module):
  """Dropout(LayerNorm(word + token type + position)), shared by a pair."""

  config: EncoderConfig
  words_only: bool = False

  def setup(self):
    c = self.config

    def make_table(name: str, rows: int) -> Array:
      return self.param(name, c.initializer, (rows, c.embedding_size))

    self.word_VxE = make_table("word", c.vocab_size)
    if not self.words_only:
      self.position_PxE = make_table("position", c.max_positions)
      self.type_TxE = make_table("type", c.type_vocab_size)
    self.norm = layer_norm(c)

  def __call__(
    self, inputs: Inputs, keys_B: rng.Keys, words_BxLxE: Array | None = None
  ) -> Array:
    """Returns the embedded tokens, `[B, L, E]` of `config.dtype`.

    `words_BxLxE` are the tokens' rows of the word table, if already gathered.
    """
    c = self.config
    if words_BxLxE is None:
      words_BxLxE = self.word_VxE[inputs["tokens"]]
    x_BxLxE = words_BxLxE
    if not self.words_only:
      x_BxLxE += self.type_TxE[inputs["types"]]
      x_BxLxE += self.position_PxE[document_positions(inputs["documents"])]
    x_BxLxE = self.norm(x_BxLxE).astype(c.dtype)
    return rng.dropout(x_BxLxE, keys_B, rate=c.dropout, site=0)


class Encoder(nn.Module):
  """A stack of post-norm transformer layers over embedded tokens."""

  config: EncoderConfig

  @nn.compact
  def __call__(
    self, embedded_BxLxE: Array, documents_BxL: Array, keys_B: rng.Keys
  ) -> Array:
    """Returns the last hidden states, `[B, L, D]` of `config.dtype`."""
    x_BxLxD = project_to_width(self.config, embedded_BxLxE)
    mask = attention_lib.make_mask(self.config.attention, documents_BxL)
    return layers.run_layers(self, Layer, x_BxLxD, keys_B, mask)


class Layer(nn.Module):
  """Self-attention and feed-forward, each followed by residual and norm."""

  config: EncoderConfig

  @nn.compact
  def __call__(
    self,
    x_BxLxD: Array,
    keys_B: rng.Keys,
    first_site: int | Array,
    mask: attention_lib.AttentionMask,
  ) -> Array:
    """Returns the next hidden states, `[B, L, D]` of `config.dtype`."""
    c = self.config

    def add(x: Array, units: Array, name: str, site: int | Array) -> Array:
      """Computes norm(x + dropout(dense(units)))."""
      units = dense(c, c.width, f"{name}_output")(units)
      x = x + rng.dropout(units, keys_B, rate=c.dropout, site=site)
      return layer_norm(c, f"{name}_norm")(x).astype(c.dtype)

    mixed_BxLxD = self_attention(c, x_BxLxD, mask, keys_B, site=first_site)
    x_BxLxD = add(x_BxLxD, mixed_BxLxD, "attention", first_site + 1)
    hidden_BxLxF = layers.gelu(dense(c, c.ffn, "ffn_input")(x_BxLxD))
    return add(x_BxLxD, hidden_BxLxF, "ffn", first_site + 2)


def project_to_width(config: EncoderConfig, embedded_BxLxE: Array) -> Array:
  """Projects embeddings to a network's width; the caller owns `project`."""
  if config.embedding_size == config.width:
    return embedded_BxLxE
  init = nn.initializers.glorot_uniform()  # TF's default, kept by ELECTRA
  return layers.Dense(
    config.width, kernel_init=init, dtype=config.dtype, name="project"
  )(embedded_BxLxE)


def self_attention(
  config: EncoderConfig,
  x_BxLxD: Array,
  mask: attention_lib.AttentionMask,
  keys_B: rng.Keys,
  *,
  site: int | Array,
) -> Array:
  """Computes multi-head self-attention, `[B, L, D]`.

  The calling module owns the layers `query`, `key` and `value`.
  """

  def project_heads(name: str) -> Array:
    units_BxLxD = dense(config, config.width, name)(x_BxLxD)
    return units_BxLxD.reshape(*x_BxLxD.shape[:2], config.heads, -1)

  mixed_BxLxHxS = attention_lib.attend(
    project_heads("query"),
    project_heads("key"),
    project_heads("value"),
    mask,
    keys_B,
    rate=config.attention_dropout,
    site=site,
  )
  return mixed_BxLxHxS.reshape(x_BxLxD.shape)


def document_positions(documents_BxL: Array) -> Array:
  """Returns the position of each token in its document, int32 from 0."""
  index_L = jnp.arange(documents_BxL.shape[1], dtype=jnp.int32)
  before_BxL = jnp.pad(documents_BxL[:, :-1], ((0, 0), (1, 0)))
  starts_BxL = jnp.where(documents_BxL != before_BxL, index_L[None], 0)
  return index_L[None] - jax.lax.cummax(starts_BxL, axis=1)


def dense(
  config: EncoderConfig, features: int, name: str | None = None, **fields: Any
) -> layers.Dense:
  """Returns a dense layer; `fields` are those of `layers.Dense`."""
  own: dict[str, Any] = dict(use_bias=config.bias, dtype=config.dtype)
  own["kernel_init"] = config.initializer
  return layers.Dense(features, name=name, **own | fields)


def layer_norm(config: EncoderConfig, name: str | None = None) -> nn.LayerNorm:
  """Returns a layer normalization; its output is always f32."""
  return nn.LayerNorm(
    epsilon=config.norm_epsilon,
    use_bias=config.bias,
    use_fast_variance=False,  # E[x^2] - E[x]^2 loses small variances
    dtype=jnp.float32,
    name=name,
  )


def head_units(config: EncoderConfig, x: Array) -> Array:
  """Computes gelu(dense(x)) of a head; with a norm if the network is pre-norm.

  The calling module owns the layers `dense` and `norm`.
  """
  init = config.output_initializer
  layer = dense(config, config.width, "dense", kernel_init=init, dtype=x.dtype)
  units = layers.gelu(layer(x))
  return layer_norm(config, "norm")(units) if config.pre_norm else units


def classifier_initializer(
  config: EncoderConfig, otherwise: nn.initializers.Initializer
) -> nn.initializers.Initializer:
  """Returns a last layer's initializer: ModernBERT's in pre-norm networks."""
  if not config.pre_norm:
    return otherwise
  return nn.initializers.truncated_normal(config.width**-0.5)


class Pooler(nn.Module):
  """BERT's pooler, tanh(dense([CLS])), and its next-sentence classifier.

  Pre-training carries them from a released checkpoint to the export.
  """

  config: EncoderConfig
  next_sentence: bool = False

  @nn.compact
  def __call__(self, hidden_BxLxD: Array) -> Array:
    """Returns f32 `[B, D]`, or logits `[B, 2]`: next or random sentence."""
    c = self.config
    dense = functools.partial(
      nn.Dense, kernel_init=c.initializer, dtype=jnp.float32
    )
    first_BxD = hidden_BxLxD[:, 0].astype(jnp.float32)
    pooled_BxD = jnp.tanh(dense(c.width, name="pooler")(first_BxD))
    if not self.next_sentence:
      return pooled_BxD
    return dense(2, name="next_sentence")(pooled_BxD)
