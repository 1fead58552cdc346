"""The models of pre-training: ELECTRA's pair of networks, and BERT.

  pair = make_electra(vocab_size=30_522, variant="small",
                   generator_multiplier=1 / 4)
  params = init_params(pair, key)
  logits_BxKxV = pair.apply({"params": params}, inputs, positions_BxK, keys_B,
                            method="generate_logits")

`roles` of a model are its networks, by their names in parameters and exports.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.models import encoder, layers
from truenegs_jax.runtime import rng

Array = jax.Array

CARRIED = ("pooled",)  # parameters that pre-training does not change
# Parameters of the discriminator's own embeddings, by `ElectraPair.sharing`.
OWN = {"disentangled": "discriminator_delta", "none": "discriminator_own"}


class MlmHead(nn.Module):
  """The head of BERT's masked language model and of ELECTRA's generator.

  The logits are vectors word^T + `bias_V`, of LayerNorm(gelu(dense(x))).
  """

  config: encoder.EncoderConfig

  def setup(self):
    c = self.config
    init = c.output_initializer
    self.dense = encoder.dense(c, c.embedding_size, kernel_init=init)
    self.norm = encoder.layer_norm(c)
    self.bias_V = self.param("bias", nn.initializers.zeros, (c.vocab_size,))

  def __call__(self, hidden_BxKxD: Array) -> Array:
    """Returns the vectors of the logits, `[B, K, E]`."""
    x_BxKxE = layers.gelu(self.dense(hidden_BxKxD))
    return self.norm(x_BxKxE).astype(self.config.dtype)


class DetectionHead(nn.Module):
  """ELECTRA's discriminator head: one logit per token, of being replaced."""

  config: encoder.EncoderConfig

  @nn.compact
  def __call__(self, hidden_BxLxD: Array) -> Array:
    """Returns f32 logits `[B, L]`, positive for "replaced"."""
    c = self.config
    glorot = nn.initializers.glorot_uniform()  # TF's default, kept by ELECTRA
    init = encoder.classifier_initializer(c, glorot)
    output = nn.Dense(1, kernel_init=init, dtype=jnp.float32, name="output")
    x_BxLxD = encoder.head_units(c, hidden_BxLxD)
    return output(x_BxLxD.astype(jnp.float32))[..., 0]


class MaskedLanguageModel(nn.Module):
  """Base of both models: the methods of the network that predicts slots.

  Subclasses have the submodules `<role>`, `<role>_head` and `embeddings`. With
  their `tokenizer`, that of `load` or None, others compare theirs.
  """

  mlm_role: ClassVar[str]  # the role of this network
  kept_role: ClassVar[str]  # the role of the kept network

  def encode(
    self,
    inputs: encoder.Inputs,
    keys_B: rng.Keys,
    words_BxLxE: Array | None = None,
  ) -> Array:
    """Returns the last hidden states `[B, L, D]` of the kept network."""
    return self._encode(self.kept_role, inputs, keys_B, words_BxLxE)

  def generate_logits(
    self, inputs: encoder.Inputs, positions_BxK: Array, keys_B: rng.Keys
  ) -> Array:
    """Returns the f32 logits `[B, K, V]` of K positions per row."""
    vectors_BxKxE = self.generate_vectors(inputs, positions_BxK, keys_B)
    word_VxE, bias_V = self.output_layer()
    logits_BxKxV = jnp.einsum(
      "bke,ve->bkv",
      vectors_BxKxE,
      word_VxE.astype(vectors_BxKxE.dtype),
      preferred_element_type=jnp.float32,
    )
    return logits_BxKxV + bias_V[None, None]

  def generate_vectors(
    self, inputs: encoder.Inputs, positions_BxK: Array, keys_B: rng.Keys
  ) -> Array:
    """Returns the vectors `[B, K, E]` of K positions, for `output_layer`."""
    hidden_BxLxD = self._encode(self.mlm_role, inputs, keys_B)
    # The head then maps K slots instead of L positions.
    slots_BxKxD = jnp.take_along_axis(hidden_BxLxD, positions_BxK[..., None], 1)
    return getattr(self, f"{self.mlm_role}_head")(slots_BxKxD)

  def output_layer(self) -> tuple[Array, Array]:
    """Returns the word table `[V, E]` and the bias `[V]` of the logits, f32."""
    head = getattr(self, f"{self.mlm_role}_head")
    return self.embeddings.word_VxE, head.bias_V

  def token_embedding(self, ids: Array) -> Array:
    """Returns the tokens' rows of the word table, f32 `[..., E]`."""
    return self.embeddings.word_VxE[ids]

  def _encode(
    self,
    role: str,
    inputs: encoder.Inputs,
    keys_B: rng.Keys,
    words_BxLxE: Array | None = None,
  ) -> Array:
    """Returns the last hidden states `[B, L, D]` of one network."""
    embedded_BxLxE = self._embed(role, inputs, keys_B, words_BxLxE)
    network = getattr(self, role)
    return network(embedded_BxLxE, inputs["documents"], keys_B)

  def _embed(self, role: str, *args: Any) -> Array:
    """Returns the embedded tokens `[B, L, E]` of one network."""
    return self.embeddings(*args)


class ElectraPair(MaskedLanguageModel):
  """ELECTRA's generator and discriminator (Clark et al. 2020).

  >>> pair, params, tokenizer = load("runs/demo", report=str)
  >>> ids = [tokenizer.cls, *tokenizer.encode_lines(["the house"])[0]]
  >>> tokens_BxL = jnp.array([ids])
  >>> inputs = {
  ...   "tokens": tokens_BxL,
  ...   "types": jnp.zeros_like(tokens_BxL),
  ...   "documents": jnp.ones_like(tokens_BxL),
  ... }
  >>> logits_BxL = pair.bind({"params": params}).detect_logits(inputs, None)

  With the `sharing` "full" they share the embedding block with its layer norm,
  with "none" each network has its own. With "disentangled", the discriminator's
  tables are those of the generator plus differences, which are 0 at first; its
  loss trains only the differences, and its norm is its own (He et al. 2021,
  "DeBERTaV3", section 3.3).
  """

  mlm_role: ClassVar[str] = "generator"
  kept_role: ClassVar[str] = "discriminator"

  generator_config: encoder.EncoderConfig
  discriminator_config: encoder.EncoderConfig
  backbone: str = "encoder"
  sharing: str = "full"
  tokenizer: Any = dataclasses.field(default=None, repr=False, compare=False)

  def setup(self):
    backbone = encoder.load_backbone(self.backbone)
    generator = self.generator_config
    discriminator = self.discriminator_config
    self.embeddings = backbone.Embeddings(discriminator)
    self.make_block = lambda: backbone.Embeddings(discriminator, parent=None)
    if self.sharing != "full":
      self.own = self.param(OWN[self.sharing], self._init_own)
    self.generator = backbone.Encoder(generator)
    self.generator_head = MlmHead(generator)
    self.discriminator = backbone.Encoder(discriminator)
    self.discriminator_head = DetectionHead(discriminator)

  @property
  def roles(self) -> dict[str, encoder.EncoderConfig]:
    """The networks' configs, the kept network first."""
    discriminator = self.discriminator_config
    generator = self.generator_config
    return {"discriminator": discriminator, "generator": generator}

  def _embed(self, role: str, inputs: encoder.Inputs, *args: Any) -> Array:
    if self.sharing == "full" or role == self.mlm_role:
      return self.embeddings(inputs, *args)
    shared = jax.lax.stop_gradient(self.embeddings.variables["params"])
    params = {"embeddings": shared, OWN[self.sharing]: self.own}
    own = own_embeddings(params, role)["embeddings"]
    keys_B, _ = args  # the rows of the generator's table are not needed
    return self.make_block().apply({"params": own}, inputs, keys_B)

  def _init_own(self, key: Array) -> dict[str, Any]:
    """Draws the discriminator's own embeddings; differences are 0."""
    own = self.make_block().init(key, _zeros(), None)["params"]
    if self.sharing == "disentangled":
      own = {k: x if k == "norm" else 0 * x for k, x in own.items()}
    return {"embeddings": own}

  def detect_logits(self, inputs: encoder.Inputs, keys_B: rng.Keys) -> Array:
    """Returns the detection logits f32 `[B, L]`, positive for "replaced"."""
    return self.detect(self.encode(inputs, keys_B))

  def detect(self, hidden_BxLxD: Array) -> Array:
    """Returns the detection logits of hidden states from `encode`."""
    return self.discriminator_head(hidden_BxLxD)

  def initialize(self, inputs: encoder.Inputs) -> None:
    """Uses all parameters; for `init_params` only."""
    self.generate_logits(inputs, inputs["tokens"][:, :1], None)
    self.detect_logits(inputs, None)


class BertMlm(MaskedLanguageModel):
  """BERT with the head of its masked language model (Devlin et al. 2019).

  >>> model = make_bert(vocab_size=70, variant="tiny")
  >>> params = jax.jit(lambda key: init_params(model, key))(jax.random.key(0))
  >>> ones = jnp.ones((1, 8), jnp.int32)
  >>> inputs = {"tokens": ones, "types": 0 * ones, "documents": ones}
  >>> bound, positions_BxK = model.bind({"params": params}), jnp.array([[3, 5]])
  >>> bound.generate_logits(inputs, positions_BxK, None).shape
  (1, 2, 70)

  `pooler` adds `encoder.Pooler`, which is carried from init to export.
  """

  mlm_role: ClassVar[str] = "bert"
  kept_role: ClassVar[str] = "bert"

  config: encoder.EncoderConfig
  backbone: str = "encoder"
  pooler: bool = False
  tokenizer: Any = dataclasses.field(default=None, repr=False, compare=False)

  def setup(self):
    backbone = encoder.load_backbone(self.backbone)
    c = self.config
    self.embeddings = backbone.Embeddings(c)
    self.bert = backbone.Encoder(c)
    self.bert_head = MlmHead(c)
    if self.pooler:
      self.pooled = encoder.Pooler(c, next_sentence=True)

  @property
  def roles(self) -> dict[str, encoder.EncoderConfig]:
    """The network's config."""
    return {"bert": self.config}

  def initialize(self, inputs: encoder.Inputs) -> None:
    """Uses all parameters; for `init_params` only."""
    self.generate_logits(inputs, inputs["tokens"][:, :1], None)
    if self.pooler:
      self.pooled(self.encode(inputs, None))


Model = ElectraPair | BertMlm


def make_electra(
  *,
  vocab_size: int,
  variant: str,
  generator_multiplier: float,
  generator_sizes: Sequence[int] = (0, 0, 0, 0),
  backbone: str = "encoder",
  sharing: str = "full",
  **overrides: Any,
) -> ElectraPair:
  """Builds the two networks of a variant.

  >>> pair = make_electra(
  ...   vocab_size=30_522, variant="small", generator_multiplier=1 / 4
  ... )
  >>> pair.discriminator_config.width, pair.generator_config.width
  (256, 64)

  Args:
    variant: a name in the backbone's VARIANTS, or "init" if `overrides` have
      all sizes.
    generator_multiplier: width of the generator over the discriminator's.
    generator_sizes: its width, layers, heads and ffn; 0 follows from the
      discriminator.
    sharing: of embeddings, as in `ElectraPair`.
    **overrides: fields of `encoder.EncoderConfig` (width, dropout, ...).
  """
  discriminator = encoder.make_network_config(
    backbone, variant, {"vocab_size": vocab_size, **overrides}
  )
  generator = encoder.make_generator_config(
    discriminator, multiplier=generator_multiplier, sizes=generator_sizes
  )
  return ElectraPair(generator, discriminator, backbone, sharing)


def make_bert(
  *,
  vocab_size: int,
  variant: str,
  backbone: str = "encoder",
  pooler: bool = False,
  **overrides: Any,
) -> BertMlm:
  """Builds BERT of a variant.

  >>> make_bert(vocab_size=30_522, variant="base").config.layers
  12

  Its embeddings are as wide as the network, whatever the variant says. A
  pre-norm network, such as ModernBERT, has no pooler.
  """
  config = encoder.make_network_config(
    backbone, variant, {"vocab_size": vocab_size, **overrides}
  )
  config = dataclasses.replace(config, embedding_size=config.width)
  return BertMlm(config, backbone, pooler and not config.pre_norm)


def init_params(model: nn.Module, key: Array) -> dict:
  """Draws fresh f32 parameters, a nested dict of arrays; jittable.

  >>> model = make_bert(vocab_size=70, variant="tiny")
  >>> params = jax.jit(lambda key: init_params(model, key))(jax.random.key(0))
  >>> sorted(params)
  ['bert', 'bert_head', 'embeddings']
  """
  return model.init(key, _zeros(), method="initialize")["params"]


# Traced once for a model; a run needs shapes, FLOPs and a program.
traced_init = jax.jit(init_params, static_argnums=0)


def _zeros() -> encoder.Inputs:
  return dict.fromkeys(("tokens", "types", "documents"), jnp.zeros((1, 2), int))


@functools.cache
def param_shapes(model: nn.Module) -> dict:
  """Returns the tree of `init_params` with shapes and dtypes for arrays."""
  return jax.eval_shape(lambda: traced_init(model, jax.random.key(0)))


def own_embeddings(params: Mapping[str, Any], role: str) -> dict[str, Any]:
  """Returns parameters with one network's embeddings as `embeddings`.

  Those of the discriminator are in OWN if it does not share all of them.
  """
  own = {name: x for name, x in params.items() if name not in OWN.values()}
  if role == ElectraPair.kept_role:
    own |= params.get(OWN["none"], {})
    if delta := params.get(OWN["disentangled"]):
      shared = params["embeddings"]
      tables = delta["embeddings"]
      add = {k: shared[k] + x for k, x in tables.items() if k != "norm"}
      own["embeddings"] = {**tables, **add}
  return own


def count_parameters(tree: Any) -> int:
  """Counts the scalars in a tree of arrays or of their shapes."""
  return sum(leaf.size for leaf in jax.tree.leaves(tree))
