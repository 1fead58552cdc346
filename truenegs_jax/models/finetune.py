"""The model of fine-tuning: a pre-trained network with the head of a task.

  model = make_downstream(role="discriminator", head="linear", num_outputs=3,
                          vocab_size=30_522, variant="small")
  params = pretrain.init_params(model, key)
  logits_BxC = model.apply({"params": params}, inputs, keys_B,
                           method="class_logits")

Parameters of the network and of BERT's pooler (`pooled`) have the same paths as
in pre-training; those of the head are under `task_head`.

In shape suffixes, C is the number of outputs of a head (classes, or 1 for a
score), and S the number of starts in a beam and of ends per start.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.models import encoder, heads, registry
from truenegs_jax.runtime import rng
from truenegs_jax.runtime.errors import InputError

Array = jax.Array

# Head -> the networks that may have it.
HEAD_ROLES = {
  "linear": ("discriminator", "bert"),
  "dense": ("discriminator",),
  "pooler": ("bert",),
  "spans": ("discriminator", "bert"),
  "joint": ("discriminator", "bert"),
}


class DownstreamModel(nn.Module):
  """A network and the head of a task; each method is for some heads only.

  Attributes:
    config: of the network.
    role: the network's name in pre-training and in exports.
    head: a name in HEAD_ROLES.
    num_outputs: C; heads of spans ignore it.
    head_dropout: rate in heads of classes and scores; as released, heads of
      spans have no dropout.
    backbone: a module of `truenegs_jax.models`.
  """

  config: encoder.EncoderConfig
  role: str
  head: str
  num_outputs: int
  head_dropout: float = 0.1
  backbone: str = "encoder"

  def setup(self):
    backbone, c = registry.load_backbone(self.backbone), self.config
    self.embeddings = backbone.Embeddings(c)
    setattr(self, self.role, backbone.Encoder(c))
    if self.head == "spans":
      self.task_head: nn.Module = heads.SpanHead(c)
    elif self.head == "joint":
      self.task_head = heads.JointHead()
    else:
      self.task_head = heads.ClassHead(
        c, self.head, self.num_outputs, self.head_dropout
      )
    if self.head == "pooler":
      self.pooled = heads.Pooler(c)

  @property
  def roles(self) -> dict[str, encoder.EncoderConfig]:
    """The network's config."""
    return {self.role: self.config}

  def encode(self, inputs: encoder.Inputs, keys_B: rng.Keys) -> Array:
    """Returns the last hidden states, `[B, L, D]` of `config.dtype`."""
    embedded_BxLxE = self.embeddings(inputs, keys_B)
    network = getattr(self, self.role)
    return network(embedded_BxLxE, inputs["documents"], keys_B)

  def class_logits(self, inputs: encoder.Inputs, keys_B: rng.Keys) -> Array:
    """Returns the f32 `[B, C]` of a head of classes or scores, from [CLS]."""
    hidden_BxLxD = self.encode(inputs, keys_B)
    if self.head == "pooler":
      first_BxD = self.pooled(hidden_BxLxD)
    else:
      first_BxD = hidden_BxLxD[:, 0].astype(jnp.float32)
    return self.task_head(first_BxD, keys_B)

  def span_logits(self, inputs: encoder.Inputs, keys_B: rng.Keys) -> Array:
    """Returns the f32 logits of start and end, `[B, L, 2]`, also of padding."""
    return self.task_head(self.encode(inputs, keys_B))

  def joint_logits(
    self, inputs: encoder.Inputs, start_B: Array, keys_B: rng.Keys
  ) -> tuple[Array, Array, Array]:
    """Returns the f32 logits that train the head "joint".

    They are `[B, L]` of the start, `[B, L]` of the end given the gold start
    `start_B`, and `[B]`, positive where the question has no answer.
    """
    hidden_BxLxD = self.encode(inputs, keys_B)
    return self.task_head(hidden_BxLxD, _answer_mask(inputs), start_B)

  def joint_beam(
    self, inputs: encoder.Inputs, keys_B: rng.Keys = None, size: int = 20
  ) -> tuple[Array, Array, Array]:
    """Returns the likeliest spans of the head "joint"; S is min(size, L).

    They are the starts, int32 `[B, S]`, and ends, int32 `[B, S, S]`, likeliest
    first, and log p(start) + log p(end | start), f32 `[B, S, S]`. Positions
    where no answer is allowed come last, with about -1,000. An end may precede
    its start.
    """
    hidden_BxLxD = self.encode(inputs, keys_B)
    return self.task_head.beam(hidden_BxLxD, _answer_mask(inputs), size)

  def initialize(self, inputs: encoder.Inputs) -> None:
    """Uses all parameters; for `pretrain.init_params` only."""
    if self.head == "joint":
      self.joint_logits(inputs, inputs["tokens"][:, 0], None)
    elif self.head == "spans":
      self.span_logits(inputs, None)
    else:
      self.class_logits(inputs, None)


def _answer_mask(inputs: encoder.Inputs) -> Array:
  """True `[B, L]` where an answer is allowed: the second text, and [CLS]."""
  context_BxL = (inputs["documents"] != 0) & (inputs["types"] == 1)
  return context_BxL.at[:, 0].set(True)


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

  Args:
    role: "discriminator", or "bert", whose embeddings are as wide as the
      network, whatever the variant says.
    head, num_outputs, head_dropout, backbone: as in `DownstreamModel`.
    vocab_size: entries of the vocabulary.
    variant: size, as in `pretrain.make_electra`.
    **overrides: other fields of the backbone's config.

  Raises:
    InputError: a head that this network cannot have, or as
      `registry.make_network_config`.
  """
  choices = [name for name, roles in HEAD_ROLES.items() if role in roles]
  if head not in choices:
    raise InputError(
      f"finetune.head={head!r} is not a head of the network {role!r}. Choose"
      f" {', '.join(choices) or 'another network'}."
    )
  config = registry.make_network_config(
    backbone, variant, {"vocab_size": vocab_size, **overrides}
  )
  if role == "bert":
    config = dataclasses.replace(config, embedding_size=config.width)
  return DownstreamModel(
    config, role, head, num_outputs, head_dropout, backbone
  )
