"""A pre-trained network with the head of a task, to be fine-tuned.

model = make_downstream(role="discriminator", head="linear", num_outputs=3,
                        vocab_size=30_522, variant="small")
params = pretrain.init_params(model, key)
logits_BxC = model.apply({"params": params}, inputs, keys_B,
                         method="class_logits")

The network's parameters have the paths that they have in pre-training; the
head's are under `task_head`, and BERT's pooler is where it was, `pooled`.

C is the number of outputs of a head (classes, or 1: a score), S that of starts
in a beam and of ends of each.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.models import encoder, heads, registry
from truenegs_jax.runtime.errors import InputError

Array = jax.Array

# Which networks may have which head.
HEAD_ROLES = {
  "linear": ("discriminator", "bert"),
  "dense": ("discriminator",),
  "pooler": ("bert",),
  "spans": ("discriminator", "bert"),
  "joint": ("discriminator", "bert"),
}


class DownstreamModel(nn.Module):
  """An encoder and one head, which decides which of the methods apply.

  Attributes:
    config: the network's.
    role: what the network is called in pre-training and in exports.
    head: a name in HEADS.
    num_outputs: C; heads of spans ignore it.
    head_dropout: rate inside the heads of classes and scores; those of spans
      have none, as released.
    backbone: module under truenegs_jax.models that holds the encoder.
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
    make_head: dict[str, Callable[[], Any]] = {
      "spans": lambda: heads.SpanHead(c),
      "joint": heads.JointHead,
    }
    make_classes = lambda: heads.ClassHead(
      c, self.head, self.num_outputs, self.head_dropout
    )
    self.task_head = make_head.get(self.head, make_classes)()
    if self.head == "pooler":
      self.pooled = heads.Pooler(c)

  @property
  def roles(self) -> dict[str, encoder.EncoderConfig]:
    """The one network."""
    return {self.role: self.config}

  def encode(
    self, inputs: encoder.Inputs, dropout_keys_B: Array | None
  ) -> Array:
    """The last hidden states `[B, L, D]`, of `config.dtype`."""
    embedded_BxLxE = self.embeddings(inputs, dropout_keys_B)
    network = getattr(self, self.role)
    return network(embedded_BxLxE, inputs["documents"], dropout_keys_B)

  def class_logits(
    self, inputs: encoder.Inputs, dropout_keys_B: Array | None
  ) -> Array:
    """f32 `[B, C]` of a head of classes or scores, read off [CLS] alone."""
    hidden_BxLxD = self.encode(inputs, dropout_keys_B)
    if self.head == "pooler":
      first_BxD = self.pooled(hidden_BxLxD)
    else:
      first_BxD = hidden_BxLxD[:, 0].astype(jnp.float32)
    return self.task_head(first_BxD, dropout_keys_B)

  def span_logits(
    self, inputs: encoder.Inputs, dropout_keys_B: Array | None
  ) -> Array:
    """f32 `[B, L, 2]` of the head "spans": start and end, padding as well."""
    return self.task_head(self.encode(inputs, dropout_keys_B))

  def joint_logits(
    self,
    inputs: encoder.Inputs,
    start_B: Array,
    dropout_keys_B: Array | None,
  ) -> tuple[Array, Array, Array]:
    """The logits that the head "joint" trains on, given the answers' starts.

    Returns:
      f32 logits `[B, L]` of the start, `[B, L]` of the end behind `start_B`,
      and `[B]`, positive where the question has no answer.
    """
    hidden_BxLxD = self.encode(inputs, dropout_keys_B)
    return self.task_head(hidden_BxLxD, answer_mask(inputs), start_B)

  def joint_beam(
    self,
    inputs: encoder.Inputs,
    dropout_keys_B: Array | None = None,
    size: int = 20,
  ) -> tuple[Array, Array, Array]:
    """The likeliest spans by the head "joint"; S is `size`, or L if less.

    Returns:
      starts int32 `[B, S]` and ends `[B, S, S]`, each likeliest first, and f32
      `[B, S, S]`, log p(start) + log p(end | start). Where fewer than S
      positions are allowed others follow, at about -1,000; an end may come
      before its start.
    """
    hidden_BxLxD = self.encode(inputs, dropout_keys_B)
    return self.task_head.beam(hidden_BxLxD, answer_mask(inputs), size)

  def initialize(self, inputs: encoder.Inputs) -> None:
    """Touches every parameter; only `pretrain.init_params` calls it."""
    if self.head == "joint":
      self.joint_logits(inputs, inputs["tokens"][:, 0], None)
    elif self.head == "spans":
      self.span_logits(inputs, None)
    else:
      self.class_logits(inputs, None)


def answer_mask(inputs: encoder.Inputs) -> Array:
  """True `[B, L]` where an answer may be: in the second text, or on [CLS]."""
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
  """Builds a network of one variant with the head of a task.

  Args:
    role: "discriminator" or "bert", whose embeddings are as wide as the model,
      whatever the variant says.
    head, num_outputs, head_dropout, backbone: as in `DownstreamModel`.
    vocab_size: entries of the vocabulary.
    variant: a name in the backbone's VARIANTS, or a list of sizes
      (`registry.variant_sizes`).
    **overrides: fields of the backbone's EncoderConfig (dropout, dtype, ...).

  Raises:
    InputError: an unknown head, or one that this network cannot have; less than
      one output; a rate outside [0, 1); as `registry.make_network_config`.
  """
  known = [name for name, roles in HEAD_ROLES.items() if role in roles]
  if head not in known:
    raise InputError(
      f"finetune.head {head!r} is none of a network {role!r}; known:"
      f" {', '.join(known) or 'none'}."
    )
  if num_outputs < 1:
    raise InputError(f"{num_outputs} outputs: a task has at least 1.")
  if not 0 <= head_dropout < 1:
    raise InputError(
      f"finetune.head_dropout {head_dropout}: give a rate from 0 to below 1."
    )
  config = registry.make_network_config(
    backbone, variant, {"vocab_size": vocab_size, **overrides}
  )
  if role == "bert":
    config = dataclasses.replace(config, embedding_size=config.width)
  return DownstreamModel(
    config, role, head, num_outputs, head_dropout, backbone
  )
