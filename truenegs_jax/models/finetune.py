"""The model of fine-tuning: a pre-trained network with the head of a task.

  model = make_downstream(role="discriminator", head="dense", num_outputs=3,
                          vocab_size=30_522, variant="small")
  params = pretrain.init_params(model, key)
  logits_BxC = model.apply({"params": params}, inputs, keys_B,
                           method="logits")

Parameters have the same paths as in pre-training, the head's `task_head`. In
shape suffixes, C is the number of outputs of a head.
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


def class_head(role: str, backbone: str) -> str:
  """Returns the kind of head of classes or scores, as in Hugging Face's class.

  It is BERT's pooler, or dense for ELECTRA and ModernBERT.
  """
  fields = encoder.backbone_fields(backbone)
  is_pooled = role == "bert" and not fields.get("pre_norm")
  return "pooler" if is_pooled else "dense"


class TaskHead(nn.Module):
  """The outputs of a task, from the vector of [CLS] or of each position.

  In pre-norm networks all are ModernBERT's: dense, gelu, norm, dropout, dense.

  `kind` is "dense": two dense layers with gelu in between, like Hugging Face's
  ElectraClassificationHead; "pooler": one on the output of BERT's pooler; or
  "spans": one without dropout (BERT's `run_squad.py`); or "tags": one for each
  position.
  """

  config: encoder.EncoderConfig
  kind: str
  num_outputs: int
  dropout: float

  @nn.compact
  def __call__(self, x: Array, keys_B: rng.Keys) -> Array:
    """Maps `[B, D]` to f32 `[B, C]`, or `[B, L, D]` to `[B, L, C]`."""
    c = self.config
    site = 1 + layers.SITES_PER_LAYER * c.layers  # the first after the layers
    dropout = functools.partial(rng.dropout, keys_B=keys_B, rate=self.dropout)
    if self.kind == "dense" and not c.pre_norm:
      x = dropout(x, site=site + 1)
    if self.kind == "dense" or c.pre_norm:
      x = encoder.head_units(c, x)
    if self.kind != "spans" or c.pre_norm:
      x = dropout(x, site=site)
    init = encoder.classifier_initializer(c, c.initializer)
    output = nn.Dense(self.num_outputs, kernel_init=init, name="output")
    return output(x.astype(jnp.float32))


class DownstreamModel(nn.Module):
  """A network and the head of a task."""

  config: encoder.EncoderConfig
  role: str  # the network's name in pre-training and in exports
  head: str  # a kind of `TaskHead`: `class_head`, "spans" or "tags"
  num_outputs: int  # C, of classes, scores and tags
  head_dropout: float = 0.1
  backbone: str = "encoder"  # a module of `truenegs_jax.models`
  pooling: str = "cls"  # of classes and scores; "mean" is that of all tokens

  def setup(self):
    backbone = encoder.load_backbone(self.backbone)
    c = self.config
    self.embeddings = backbone.Embeddings(c)
    setattr(self, self.role, backbone.Encoder(c))
    num_outputs = 2 if self.head == "spans" else self.num_outputs
    self.task_head = TaskHead(c, self.head, num_outputs, self.head_dropout)
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

    Classes and scores: `[B, C]`, of `pooling`. Spans: `[B, L, 2]`, of start and
    end, and tags: `[B, L, C]`, also of padding.
    """
    hidden_BxLxD = self.encode(inputs, keys_B)
    if self.head in ("spans", "tags"):
      return self.task_head(hidden_BxLxD, keys_B)
    if self.head == "pooler":
      pooled_BxD = self.pooled(hidden_BxLxD)
    elif self.pooling == "mean":
      is_real_BxLx1 = (inputs["documents"] > 0)[..., None]
      real_BxLxD = jnp.where(is_real_BxLx1, hidden_BxLxD, 0)
      sum_BxD = real_BxLxD.sum(axis=1, dtype=jnp.float32)
      pooled_BxD = sum_BxD / jnp.maximum(is_real_BxLx1.sum(axis=1), 1)
    else:
      pooled_BxD = hidden_BxLxD[:, 0].astype(jnp.float32)
    return self.task_head(pooled_BxD, keys_B)

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
  pooling: str = "cls",
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
  return DownstreamModel(
    c, role, head, num_outputs, head_dropout, backbone, pooling
  )
