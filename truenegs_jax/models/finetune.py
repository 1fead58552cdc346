"""The model of fine-tuning: a pre-trained network with the head of a task.

  model = make_downstream(role="discriminator", head="dense", num_outputs=3,
                          vocab_size=30_522, variant="small")
  params = pretrain.init_params(model, key)
  logits_BxC = model.apply({"params": params}, inputs, keys_B,
                           method="logits")

Parameters of the network and of BERT's pooler (`pooled`) have the same paths as
in pre-training; the head is under `task_head`.

In shape suffixes, C is the number of outputs of a head: classes, or 1 for a
score.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.models import encoder, layers
from truenegs_jax.runtime import rng

Array = jax.Array

# The head of classes or scores of each network, that of Hugging Face's class.
CLASS_HEADS = {"discriminator": "dense", "bert": "pooler"}


class ClassHead(nn.Module):
  """C outputs from the vector of [CLS].

  Kinds:
    "dense": two dense layers with gelu in between, like Hugging Face's
      ElectraClassificationHead.
    "pooler": one dense layer on the output of BERT's pooler, which is not part
      of this module (BERT's `run_classifier.py`).
  """

  config: encoder.EncoderConfig
  kind: str
  num_outputs: int
  dropout: float

  @nn.compact
  def __call__(self, x_BxD: Array, keys_B: rng.Keys) -> Array:
    """Returns f32 `[B, C]`."""
    c = self.config
    site = 1 + layers.SITES_PER_LAYER * c.layers  # the first after the layers
    dropout = functools.partial(rng.dropout, keys_B=keys_B, rate=self.dropout)
    init = c.initializer
    if self.kind == "dense":
      dense = nn.Dense(c.width, kernel_init=init, name="dense")
      x_BxD = layers.gelu(dense(dropout(x_BxD, site=site + 1)))
    output = nn.Dense(self.num_outputs, kernel_init=init, name="output")
    return output(dropout(x_BxD, site=site))


class SpanHead(nn.Module):
  """A dense layer at each position, like that of BERT's `run_squad.py`."""

  config: encoder.EncoderConfig

  @nn.compact
  def __call__(self, hidden_BxLxD: Array) -> Array:
    """Returns the f32 logits of start and end, `[B, L, 2]`."""
    output = nn.Dense(2, kernel_init=self.config.initializer, name="output")
    return output(hidden_BxLxD.astype(jnp.float32))


class DownstreamModel(nn.Module):
  """A network and the head of a task; that of spans has no dropout."""

  config: encoder.EncoderConfig
  role: str  # the network's name in pre-training and in exports
  head: str  # that of CLASS_HEADS for the role, or "spans"
  num_outputs: int  # C; heads of spans ignore it
  head_dropout: float = 0.1
  backbone: str = "encoder"  # a module of `truenegs_jax.models`

  def setup(self):
    backbone, c = encoder.load_backbone(self.backbone), self.config
    self.embeddings = backbone.Embeddings(c)
    setattr(self, self.role, backbone.Encoder(c))
    if self.head == "spans":
      self.task_head: nn.Module = SpanHead(c)
    else:
      self.task_head = ClassHead(
        c, self.head, self.num_outputs, self.head_dropout
      )
    if self.head == "pooler":
      self.pooled = encoder.Pooler(c)

  @property
  def roles(self) -> dict[str, encoder.EncoderConfig]:
    """The network's config."""
    return {self.role: self.config}

  def encode(self, inputs: encoder.Inputs, keys_B: rng.Keys) -> Array:
    """Returns the last hidden states, `[B, L, D]` of `config.dtype`."""
    embedded_BxLxE = self.embeddings(inputs, keys_B)
    network = getattr(self, self.role)
    return network(embedded_BxLxE, inputs["documents"], keys_B)

  def logits(self, inputs: encoder.Inputs, keys_B: rng.Keys) -> Array:
    """Returns the f32 outputs of the head.

    Classes and scores: `[B, C]`, from [CLS]. Spans: `[B, L, 2]`, of start and
    end, also of padding.
    """
    hidden_BxLxD = self.encode(inputs, keys_B)
    if self.head == "spans":
      return self.task_head(hidden_BxLxD)
    if self.head == "pooler":
      first_BxD = self.pooled(hidden_BxLxD)
    else:
      first_BxD = hidden_BxLxD[:, 0].astype(jnp.float32)
    return self.task_head(first_BxD, keys_B)

  def initialize(self, inputs: encoder.Inputs) -> None:
    """Uses all parameters; for `pretrain.init_params` only."""
    self.logits(inputs, None)


def make_downstream(
  *,
  role: str,
  head: str,
  num_outputs: int,
  vocab_size: int,
  variant: str,
  backbone: str = "encoder",
  head_dropout: float = 0.1,
  **overrides: Any,
) -> DownstreamModel:
  """Builds a network of a variant with the head of a task.

  The embeddings of the role "bert" are as wide as the network, whatever the
  variant says. `overrides` are fields of `encoder.EncoderConfig`, the others
  those of `DownstreamModel`.
  """
  c = encoder.make_network_config(
    backbone, variant, {"vocab_size": vocab_size, **overrides}
  )
  if role == "bert":
    c = dataclasses.replace(c, embedding_size=c.width)
  return DownstreamModel(c, role, head, num_outputs, head_dropout, backbone)
