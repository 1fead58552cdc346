"""The models that are pre-trained: ELECTRA's pair of networks, and BERT.

pair = make_pair(vocab_size=30_522, variant="small",
                 generator_multiplier=1 / 4)
params = init_params(pair, key)
logits_BxKxV = pair.apply({"params": params}, inputs, positions_BxK, keys_B,
                          method="generate_logits")

Each has the methods that an objective needs, and `roles`: the networks that it
is made of, by the names that their parameters and exports go by.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.models import encoder, heads, registry

Array = jax.Array

CARRIED = ("pooled",)  # parameters that ride along and are never trained


# What both models do with their embeddings, as methods of each.


def _token_embedding(self: Any, ids: Array) -> Array:
  """Rows of the word table, f32 `[..., E]`."""
  return self.embeddings.word_VxE[ids]


def _mean_embedding(self: Any, p_BxKxV: Array) -> Array:
  """The mean row of the word table under probabilities, f32 `[B, K, E]`."""
  return p_BxKxV @ self.embeddings.word_VxE


def _generate_logits(
  self: Any,
  inputs: encoder.Inputs,
  positions_BxK: Array,
  dropout_keys_B: Array | None,
) -> Array:
  """The masked language model's f32 logits `[B, K, V]` at K positions."""
  vectors_BxKxE = self.generate_vectors(inputs, positions_BxK, dropout_keys_B)
  return heads.vocabulary_logits(vectors_BxKxE, *self.output_layer())


class ElectraPair(nn.Module):
  """Generator and discriminator, trained together (Clark et al. 2020).

  The whole embedding block is shared, layer norm included; each network has
  its own projection from the embeddings to its width. The generator's output
  table is the shared word table itself.
  """

  generator_config: encoder.EncoderConfig
  discriminator_config: encoder.EncoderConfig
  backbone: str = "encoder"

  def setup(self):
    backbone = registry.load(self.backbone)
    generator, discriminator = self.generator_config, self.discriminator_config
    self.embeddings = backbone.Embeddings(discriminator)
    self.generator = backbone.Encoder(generator)
    self.generator_head = heads.MlmHead(generator)
    self.discriminator = backbone.Encoder(discriminator)
    self.discriminator_head = heads.DetectionHead(discriminator)

  @property
  def roles(self) -> dict[str, encoder.EncoderConfig]:
    """The discriminator, which is kept, and the generator."""
    return {
      "discriminator": self.discriminator_config,
      "generator": self.generator_config,
    }

  def generate_vectors(
    self,
    inputs: encoder.Inputs,
    positions_BxK: Array,
    dropout_keys_B: Array | None,
  ) -> Array:
    """What `output_layer` makes logits of at K positions: `[B, K, E]`."""
    hidden_BxLxD = self.encode_generator(inputs, dropout_keys_B)
    return self.generator_head(_at_slots(hidden_BxLxD, positions_BxK))

  def output_layer(self) -> tuple[Array, Array]:
    """The table `[V, E]` and the bias `[V]` of the logits, f32."""
    return self.embeddings.word_VxE, self.generator_head.bias_V

  def detect_logits(
    self, inputs: encoder.Inputs, dropout_keys_B: Array | None
  ) -> Array:
    """The discriminator's f32 logits `[B, L]`, positive for "replaced"."""
    return self.judge(self.encode(inputs, dropout_keys_B))

  def judge(self, hidden_BxLxD: Array) -> Array:
    """`detect_logits` of hidden states that `encode` gave."""
    return self.discriminator_head(hidden_BxLxD)

  def encode(
    self,
    inputs: encoder.Inputs,
    dropout_keys_B: Array | None,
    words_BxLxE: Array | None = None,
  ) -> Array:
    """The discriminator's last hidden states; `words_BxLxE`: embedded."""
    embedded_BxLxE = self.embeddings(inputs, dropout_keys_B, words_BxLxE)
    return self.discriminator(
      embedded_BxLxE, inputs["documents"], dropout_keys_B
    )

  def encode_generator(
    self, inputs: encoder.Inputs, dropout_keys_B: Array | None
  ) -> Array:
    """The generator's last hidden states `[B, L, D]`."""
    embedded_BxLxE = self.embeddings(inputs, dropout_keys_B)
    return self.generator(embedded_BxLxE, inputs["documents"], dropout_keys_B)

  generate_logits = _generate_logits
  token_embedding = _token_embedding
  mean_embedding = _mean_embedding

  def initialize(self, inputs: encoder.Inputs) -> None:
    """Touches every parameter; only `init_params` calls it."""
    self.generate_logits(inputs, inputs["tokens"][:, :1], None)
    self.detect_logits(inputs, None)


class BertMlm(nn.Module):
  """BERT with its masked language model's head (Devlin et al. 2019).

  With `pooler`, the pooler and the next-sentence classifier of a released
  checkpoint ride along from init to export. No objective touches them.
  """

  config: encoder.EncoderConfig
  backbone: str = "encoder"
  pooler: bool = False

  def setup(self):
    backbone, c = registry.load(self.backbone), self.config
    self.embeddings = backbone.Embeddings(c)
    self.bert = backbone.Encoder(c)
    self.bert_head = heads.MlmHead(c)
    if self.pooler:
      self.pooled = heads.NextSentence(c)

  @property
  def roles(self) -> dict[str, encoder.EncoderConfig]:
    """The one network that there is."""
    return {"bert": self.config}

  def generate_vectors(
    self,
    inputs: encoder.Inputs,
    positions_BxK: Array,
    dropout_keys_B: Array | None,
  ) -> Array:
    """What `output_layer` makes logits of at K positions: `[B, K, E]`."""
    hidden_BxLxD = self.encode(inputs, dropout_keys_B)
    return self.bert_head(_at_slots(hidden_BxLxD, positions_BxK))

  def output_layer(self) -> tuple[Array, Array]:
    """The table `[V, E]` and the bias `[V]` of the logits, f32."""
    return self.embeddings.word_VxE, self.bert_head.bias_V

  def encode(
    self, inputs: encoder.Inputs, dropout_keys_B: Array | None
  ) -> Array:
    """The last hidden states `[B, L, D]`."""
    embedded_BxLxE = self.embeddings(inputs, dropout_keys_B)
    return self.bert(embedded_BxLxE, inputs["documents"], dropout_keys_B)

  generate_logits = _generate_logits
  token_embedding = _token_embedding
  mean_embedding = _mean_embedding

  def initialize(self, inputs: encoder.Inputs) -> None:
    """Touches every parameter; only `init_params` calls it."""
    self.generate_logits(inputs, inputs["tokens"][:, :1], None)
    if self.pooler:
      self.pooled(self.encode(inputs, None))


Model = ElectraPair | BertMlm


def make_pair(
  *,
  vocab_size: int,
  variant: str,
  generator_multiplier: float,
  generator_variant: str = "",
  backbone: str = "encoder",
  **overrides: Any,
) -> ElectraPair:
  """Builds the pair of one variant.

  Args:
    vocab_size: entries of the vocabulary.
    variant: a name in the backbone's VARIANTS, or a list of sizes
      (`backbones.sizes`).
    generator_multiplier: width of the generator over the discriminator's (1/4
      for small and large, 1/3 for base; Clark et al. 2020, table 6).
    generator_variant: the generator's own, instead of the multiplier.
    backbone: module under truenegs_jax.models that holds the encoder.
    **overrides: fields of the backbone's EncoderConfig (dropout, dtype, ...).

  Raises:
    InputError: unknown backbone or variant, heads that do not divide the width,
      networks that cannot share their embeddings.
  """
  discriminator = registry.network_config(
    backbone, variant, {"vocab_size": vocab_size, **overrides}
  )
  generator = registry.generator_config(
    discriminator,
    backbone,
    multiplier=generator_multiplier,
    variant=generator_variant,
  )
  return ElectraPair(generator, discriminator, backbone)


def make_bert(
  *,
  vocab_size: int,
  variant: str,
  backbone: str = "encoder",
  pooler: bool = False,
  **overrides: Any,
) -> BertMlm:
  """Builds BERT of one variant; arguments and errors as in `make_pair`.

  BERT's embeddings are as wide as the model, whatever the variant says, and
  `pooler` says whether its pooler and next-sentence classifier ride along.
  """
  config = registry.network_config(
    backbone, variant, {"vocab_size": vocab_size, **overrides}
  )
  config = dataclasses.replace(config, embedding_size=config.width)
  return BertMlm(config, backbone, pooler)


def init_params(model: nn.Module, key: Array) -> dict:
  """Fresh f32 parameters, a nested dict of arrays; pure and jittable."""
  zeros_1x2 = jnp.zeros((1, 2), jnp.int32)
  inputs = {"tokens": zeros_1x2, "types": zeros_1x2, "documents": zeros_1x2}
  return model.init(key, inputs, method="initialize")["params"]


@functools.cache
def param_shapes(model: nn.Module) -> Any:
  """Shapes and dtypes of `init_params`, in the same tree; no array is made."""
  return jax.eval_shape(lambda: init_params(model, jax.random.key(0)))


def word_table(params: Mapping[str, Any]) -> Array:
  """The table `[V, E]` of the words of a model."""
  return params["embeddings"]["word"]


def role_params(params: Mapping[str, Any], role: str) -> dict[str, Any]:
  """What one network of a model is made of, the shared embeddings included."""
  own = {name: x for name, x in params.items() if name.startswith(role)}
  carried = {name: params[name] for name in CARRIED if name in params}
  return {"embeddings": params["embeddings"], **own, **carried}


def parameter_count(tree: Any) -> int:
  """Number of scalars in a tree of arrays or of their shapes."""
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _at_slots(hidden_BxLxD: Array, positions_BxK: Array) -> Array:
  """Gathers before the vocabulary projection: K slots, not L positions."""
  return jnp.take_along_axis(hidden_BxLxD, positions_BxK[..., None], axis=1)
