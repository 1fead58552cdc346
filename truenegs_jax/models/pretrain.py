"""ELECTRA's pair: a generator and a discriminator on one embedding block.

pair = make_pair(vocab_size=30_522, variant="small",
                 generator_multiplier=1 / 4)
params = init_params(pair, key)
logits_BxKxV = pair.apply({"params": params}, inputs, positions_BxK, keys_B,
                          method="generate_logits")
"""

import importlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.errors import InputError
from truenegs_jax.models import encoder, heads

Array = jax.Array

BACKBONE_NAMES = ("Embeddings", "Encoder", "VARIANTS")


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
    backbone = load_backbone(self.backbone)
    generator, discriminator = self.generator_config, self.discriminator_config
    self.embeddings = backbone.Embeddings(discriminator)
    self.generator = backbone.Encoder(generator)
    self.generator_head = heads.MlmHead(generator)
    self.discriminator = backbone.Encoder(discriminator)
    self.discriminator_head = heads.DetectionHead(discriminator)

  def generate_logits(
    self,
    inputs: encoder.Inputs,
    positions_BxK: Array,
    dropout_keys_B: Array | None,
  ) -> Array:
    """The generator's f32 logits `[B, K, V]` at K positions of each row."""
    embedded_BxLxE = self.embeddings(inputs, dropout_keys_B)
    hidden_BxLxD = self.generator(
      embedded_BxLxE, inputs["documents"], dropout_keys_B
    )
    # Gathered before the vocabulary projection: K slots, not L positions.
    hidden_BxKxD = jnp.take_along_axis(
      hidden_BxLxD, positions_BxK[..., None], axis=1
    )
    return self.generator_head(hidden_BxKxD, self.embeddings.word_VxE)

  def detect_logits(
    self, inputs: encoder.Inputs, dropout_keys_B: Array | None
  ) -> Array:
    """The discriminator's f32 logits `[B, L]`, positive for "replaced"."""
    embedded_BxLxE = self.embeddings(inputs, dropout_keys_B)
    hidden_BxLxD = self.discriminator(
      embedded_BxLxE, inputs["documents"], dropout_keys_B
    )
    return self.discriminator_head(hidden_BxLxD)

  def token_embedding(self, ids: Array) -> Array:
    """Rows of the shared word table, f32 `[..., E]`."""
    return self.embeddings.word_VxE[ids]

  def initialize(self, inputs: encoder.Inputs) -> None:
    """Touches every parameter; only `init_params` calls it."""
    self.generate_logits(inputs, inputs["tokens"][:, :1], None)
    self.detect_logits(inputs, None)


def make_pair(
  *,
  vocab_size: int,
  variant: str,
  generator_multiplier: float,
  backbone: str = "encoder",
  **overrides: Any,
) -> ElectraPair:
  """Builds the pair of one variant.

  Args:
    vocab_size: entries of the vocabulary.
    variant: a name in the backbone's VARIANTS.
    generator_multiplier: width of the generator over the discriminator's (1/4
      for small and large, 1/3 for base; Clark et al. 2020, table 6).
    backbone: module under truenegs_jax.models that holds the encoder.
    **overrides: fields of the backbone's EncoderConfig (dropout, dtype, ...).

  Raises:
    InputError: unknown backbone or variant, heads that do not divide the width.
  """
  variants = load_backbone(backbone).VARIANTS
  if variant not in variants:
    known = ", ".join(variants)
    raise InputError(f"model.variant {variant!r} is unknown; known: {known}.")
  fields = {**variants[variant], **overrides}
  discriminator = encoder.EncoderConfig(vocab_size=vocab_size, **fields)
  generator = encoder.generator_config(discriminator, generator_multiplier)
  for name, c in (("model", discriminator), ("generator", generator)):
    if c.width < 1 or c.width % c.heads:
      raise InputError(
        f"{name}: {c.heads} heads do not divide a width of {c.width}; choose"
        " another width, number of heads or generator.multiplier."
      )
  return ElectraPair(generator, discriminator, backbone)


def init_params(model: nn.Module, key: Array) -> dict:
  """Fresh f32 parameters, a nested dict of arrays; pure and jittable."""
  zeros_1x2 = jnp.zeros((1, 2), jnp.int32)
  inputs = {"tokens": zeros_1x2, "types": zeros_1x2, "documents": zeros_1x2}
  return model.init(key, inputs, method="initialize")["params"]


def parameter_count(tree: Any) -> int:
  """Number of scalars in a tree of arrays or of their shapes."""
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


def load_backbone(name: str) -> Any:
  """The module `truenegs_jax.models.<name>`; InputError if it is none."""
  module = f"truenegs_jax.models.{name}"
  try:
    found = importlib.import_module(module)
  except ModuleNotFoundError as e:
    if e.name != module:
      raise  # the backbone is there, and what it imports is not
    raise InputError(
      f"model.backbone {name!r}: there is no truenegs_jax/models/{name}.py."
    ) from e
  missing = [n for n in BACKBONE_NAMES if not hasattr(found, n)]
  if missing:
    raise InputError(
      f"model.backbone {name!r}: truenegs_jax/models/{name}.py has no"
      f" {', '.join(missing)}."
    )
  return found
