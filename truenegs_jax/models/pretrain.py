"""The models that are pre-trained: ELECTRA's pair of networks, and BERT.

pair = make_pair(vocab_size=30_522, variant="small",
                 generator_multiplier=1 / 4)
params = init_params(pair, key)
logits_BxKxV = pair.apply({"params": params}, inputs, positions_BxK, keys_B,
                          method="generate_logits")

Each has the methods that an objective needs, and `roles`: its networks by the
names that their parameters and exports have.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.models import encoder, heads, registry

Array = jax.Array

CARRIED = ("pooled",)  # parameters that are carried along, never trained


class MaskedLanguageModel(nn.Module):
  """A network that fills masked slots, as both models have one.

  Attributes:
    masked: the network's role; a subclass has a module of this name, its
      `<role>_head`, and `embeddings`.
  """

  masked: ClassVar[str]

  def generate_logits(
    self,
    inputs: encoder.Inputs,
    positions_BxK: Array,
    dropout_keys_B: Array | None,
  ) -> Array:
    """The masked language model's f32 logits `[B, K, V]` at K positions."""
    vectors_BxKxE = self.generate_vectors(inputs, positions_BxK, dropout_keys_B)
    return heads.vocabulary_logits(vectors_BxKxE, *self.output_layer())

  def generate_vectors(
    self,
    inputs: encoder.Inputs,
    positions_BxK: Array,
    dropout_keys_B: Array | None,
  ) -> Array:
    """The vectors `[B, K, E]` that `output_layer` turns into logits."""
    hidden_BxLxD = self._encode(self.masked, inputs, dropout_keys_B)
    # Gathered before the vocabulary projection: K slots, not L positions.
    at_slots_BxKxD = jnp.take_along_axis(
      hidden_BxLxD, positions_BxK[..., None], axis=1
    )
    return getattr(self, f"{self.masked}_head")(at_slots_BxKxD)

  def output_layer(self) -> tuple[Array, Array]:
    """The table `[V, E]` and the bias `[V]` of the logits, f32."""
    return self.embeddings.word_VxE, getattr(self, f"{self.masked}_head").bias_V

  def token_embedding(self, ids: Array) -> Array:
    """Rows of the word table, f32 `[..., E]`."""
    return self.embeddings.word_VxE[ids]

  def mean_embedding(self, p_BxKxV: Array) -> Array:
    """The mean row of the word table under probabilities, f32 `[B, K, E]`."""
    return p_BxKxV @ self.embeddings.word_VxE

  def _encode(
    self,
    role: str,
    inputs: encoder.Inputs,
    dropout_keys_B: Array | None,
    words_BxLxE: Array | None = None,
  ) -> Array:
    """The last hidden states `[B, L, D]` of one network."""
    embedded_BxLxE = self.embeddings(inputs, dropout_keys_B, words_BxLxE)
    network = getattr(self, role)
    return network(embedded_BxLxE, inputs["documents"], dropout_keys_B)


class ElectraPair(MaskedLanguageModel):
  """Generator and discriminator, trained together (Clark et al. 2020).

  The whole embedding block is shared, layer norm included; each network has
  its own projection from the embeddings to its width. The generator's output
  table is the shared word table itself.
  """

  masked: ClassVar[str] = "generator"

  generator_config: encoder.EncoderConfig
  discriminator_config: encoder.EncoderConfig
  backbone: str = "encoder"

  def setup(self):
    backbone = registry.load_backbone(self.backbone)
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

  def detect_logits(
    self, inputs: encoder.Inputs, dropout_keys_B: Array | None
  ) -> Array:
    """The discriminator's f32 logits `[B, L]`, positive for "replaced"."""
    return self.detect(self.encode(inputs, dropout_keys_B))

  def detect(self, hidden_BxLxD: Array) -> Array:
    """`detect_logits` of hidden states that `encode` returned."""
    return self.discriminator_head(hidden_BxLxD)

  def encode(
    self,
    inputs: encoder.Inputs,
    dropout_keys_B: Array | None,
    words_BxLxE: Array | None = None,
  ) -> Array:
    """The discriminator's last hidden states; `words_BxLxE`: embedded."""
    return self._encode("discriminator", inputs, dropout_keys_B, words_BxLxE)

  def encode_generator(
    self, inputs: encoder.Inputs, dropout_keys_B: Array | None
  ) -> Array:
    """The generator's last hidden states `[B, L, D]`."""
    return self._encode("generator", inputs, dropout_keys_B)

  def initialize(self, inputs: encoder.Inputs) -> None:
    """Touches every parameter; only `init_params` calls it."""
    self.generate_logits(inputs, inputs["tokens"][:, :1], None)
    self.detect_logits(inputs, None)


class BertMlm(MaskedLanguageModel):
  """BERT with its masked language model's head (Devlin et al. 2019).

  With `pooler`, the pooler and the next-sentence classifier of a released
  checkpoint are carried along from init to export. No objective trains them.
  """

  masked: ClassVar[str] = "bert"

  config: encoder.EncoderConfig
  backbone: str = "encoder"
  pooler: bool = False

  def setup(self):
    backbone, c = registry.load_backbone(self.backbone), self.config
    self.embeddings = backbone.Embeddings(c)
    self.bert = backbone.Encoder(c)
    self.bert_head = heads.MlmHead(c)
    if self.pooler:
      self.pooled = heads.Pooler(c, next_sentence=True)

  @property
  def roles(self) -> dict[str, encoder.EncoderConfig]:
    """The one network."""
    return {"bert": self.config}

  def encode(
    self, inputs: encoder.Inputs, dropout_keys_B: Array | None
  ) -> Array:
    """The last hidden states `[B, L, D]`."""
    return self._encode("bert", inputs, dropout_keys_B)

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
      (`registry.variant_sizes`).
    generator_multiplier: width of the generator over the discriminator's (1/4
      for small and large, 1/3 for base; Clark et al. 2020, table 6).
    generator_variant: the generator's own, instead of the multiplier.
    backbone: module under truenegs_jax.models that holds the encoder.
    **overrides: fields of the backbone's EncoderConfig (dropout, dtype, ...).

  Raises:
    InputError: unknown backbone or variant, heads that do not divide the width,
      networks that cannot share their embeddings.
  """
  discriminator = registry.make_network_config(
    backbone, variant, {"vocab_size": vocab_size, **overrides}
  )
  generator = registry.make_generator_config(
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
  `pooler`: with its pooler and next-sentence classifier.
  """
  config = registry.make_network_config(
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
  """Shapes and dtypes of `init_params`, in the same tree, without arrays."""
  return jax.eval_shape(lambda: init_params(model, jax.random.key(0)))


def get_word_embeddings(params: Mapping[str, Any]) -> Array:
  """The table `[V, E]` of the words of a model."""
  return params["embeddings"]["word"]


def select_params(params: Mapping[str, Any], role: str) -> dict[str, Any]:
  """The parameters of one network, the shared embeddings included."""
  own = {name: x for name, x in params.items() if name.startswith(role)}
  carried = {name: params[name] for name in CARRIED if name in params}
  return {"embeddings": params["embeddings"], **own, **carried}


def count_parameters(tree: Any) -> int:
  """Number of scalars in a tree of arrays or of their shapes."""
  return sum(leaf.size for leaf in jax.tree.leaves(tree))
