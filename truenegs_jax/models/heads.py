"""Heads of encoders: masked tokens, detection, next sentence, and tasks.

C is the number of outputs of a head (classes, or 1: a score), S that of starts
in a beam and of ends of each, U that of units of a head's hidden layer.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.models import encoder, layers
from truenegs_jax.runtime import rng

Array = jax.Array

HIDDEN = 512  # units of the joint head's hidden layers (`qa_hidden`)
FORBIDDEN = -1000.0  # ELECTRA adds it where no answer may be

# ELECTRA leaves its heads to TF's default initializer.
_GLOROT = nn.initializers.glorot_uniform()


class MlmHead(nn.Module):
  """Hidden states at the masked slots to vectors, and these to logits.

  Dense to the width of the embeddings, gelu, layer norm, then the word table
  itself (tied) and a free bias, as in BERT and in ELECTRA's generator.
  """

  config: encoder.EncoderConfig

  def setup(self):
    c = self.config
    self.dense = layers.Dense(
      c.embedding_size, kernel_init=c.initializer, dtype=c.dtype
    )
    self.norm = layers.layer_norm()
    self.bias_V = self.param("bias", nn.initializers.zeros, (c.vocab_size,))

  def __call__(self, hidden_BxKxD: Array) -> Array:
    """Returns `[B, K, E]`, the vectors that the table is multiplied with."""
    x_BxKxE = layers.gelu(self.dense(hidden_BxKxD))
    return self.norm(x_BxKxE).astype(self.config.dtype)


def vocabulary_logits(
  vectors_BxKxE: Array, word_VxE: Array, bias_V: Array
) -> Array:
  """The f32 logits `[B, K, V]` of slots by the tied table."""
  logits_BxKxV = jnp.einsum(
    "bke,ve->bkv",
    vectors_BxKxE,
    word_VxE.astype(vectors_BxKxE.dtype),
    preferred_element_type=jnp.float32,
  )
  return logits_BxKxV + bias_V[None, None]


class DetectionHead(nn.Module):
  """Hidden states to one logit a token: was it replaced?"""

  config: encoder.EncoderConfig

  @nn.compact
  def __call__(self, hidden_BxLxD: Array) -> Array:
    """Returns f32 logits `[B, L]`, positive for "replaced"."""
    c = self.config
    dense = layers.Dense(
      c.width, kernel_init=c.initializer, dtype=c.dtype, name="dense"
    )
    output = nn.Dense(1, kernel_init=_GLOROT, dtype=jnp.float32, name="output")
    x_BxLxD = layers.gelu(dense(hidden_BxLxD))
    return output(x_BxLxD.astype(jnp.float32))[..., 0]


class Pooler(nn.Module):
  """BERT's pooler ([CLS], dense, tanh), and its next-sentence classifier.

  No objective of pre-training trains them: they are carried from a released
  checkpoint to its continuation, for tasks that start from the pooler.
  """

  config: encoder.EncoderConfig
  next_sentence: bool = False

  @nn.compact
  def __call__(self, hidden_BxLxD: Array) -> Array:
    """Returns f32 `[B, D]`, or logits `[B, 2]`: next sentence, random one."""
    c = self.config
    dense = lambda features, name: nn.Dense(
      features, kernel_init=c.initializer, dtype=jnp.float32, name=name
    )
    first_BxD = hidden_BxLxD[:, 0].astype(jnp.float32)
    pooled_BxD = jnp.tanh(dense(c.width, "pooler")(first_BxD))
    if not self.next_sentence:
      return pooled_BxD
    return dense(2, "next_sentence")(pooled_BxD)


class ClassHead(nn.Module):
  """The vector of [CLS] to C outputs.

  "linear": dropout and one dense layer, as ELECTRA is fine-tuned by its
  authors (`finetune/classification/classification_tasks.py`). "dense": one
  more, with gelu, before it (Hugging Face's ElectraClassificationHead).
  "pooler": as "linear", drawn as BERT's (`run_classifier.py`).
  """

  config: encoder.EncoderConfig
  kind: str
  num_outputs: int
  dropout: float

  @nn.compact
  def __call__(self, x_BxD: Array, dropout_keys_B: Array | None) -> Array:
    """Returns f32 `[B, C]`."""
    c = self.config
    site = 1 + layers.SITES_PER_LAYER * c.layers  # the first after the layers
    drop = lambda x, site: rng.dropout(
      x, dropout_keys_B, rate=self.dropout, site=site
    )
    init = _GLOROT if self.kind == "linear" else c.initializer
    if self.kind == "dense":
      dense = nn.Dense(c.width, kernel_init=init, name="dense")
      x_BxD = layers.gelu(dense(drop(x_BxD, site + 1)))
    output = nn.Dense(self.num_outputs, kernel_init=init, name="output")
    return output(drop(x_BxD, site))


class SpanHead(nn.Module):
  """One dense layer at every position (BERT's `run_squad.py`)."""

  config: encoder.EncoderConfig

  @nn.compact
  def __call__(self, hidden_BxLxD: Array) -> Array:
    """Returns f32 `[B, L, 2]`, start and end."""
    output = nn.Dense(2, kernel_init=self.config.initializer, name="output")
    return output(hidden_BxLxD.astype(jnp.float32))


class JointHead(nn.Module):
  """ELECTRA's head of spans: the end is predicted given the start.

  As released (`finetune/qa/qa_tasks.py`, with `joint_prediction`,
  `answerable_classifier` and `answerable_uses_start_logits`, its defaults).
  """

  def setup(self):
    dense = lambda: nn.Dense(1, kernel_init=_GLOROT)
    self.start, self.end_output, self.answer_output = dense(), dense(), dense()
    self.end_hidden, self.answer_hidden = PairDense(HIDDEN), PairDense(HIDDEN)

  def __call__(
    self, hidden_BxLxD: Array, allowed_BxL: Array, start_B: Array
  ) -> tuple[Array, Array, Array]:
    """`Downstream.joint_logits` of hidden states."""
    hidden_BxLxD = hidden_BxLxD.astype(jnp.float32)
    start_BxL = self._start(hidden_BxLxD, allowed_BxL)
    gold_Bx1xD = _gather(hidden_BxLxD, start_B[:, None])
    at_start_Bx1xU, at_end_BxLxU = self.end_hidden(gold_Bx1xD, hidden_BxLxD)
    end_BxLx1 = self.end_output(layers.gelu(at_start_Bx1xU + at_end_BxLxU))
    expected_BxD = jnp.einsum(
      "bl,bld->bd", jax.nn.softmax(start_BxL), hidden_BxLxD
    )
    first_BxU, rest_BxU = self.answer_hidden(hidden_BxLxD[:, 0], expected_BxD)
    answerable_Bx1 = self.answer_output(layers.gelu(first_BxU + rest_BxU))
    return (
      start_BxL,
      _forbid(end_BxLx1[..., 0], allowed_BxL),
      answerable_Bx1[:, 0],
    )

  def beam(
    self, hidden_BxLxD: Array, allowed_BxL: Array, size: int
  ) -> tuple[Array, Array, Array]:
    """`Downstream.joint_beam` of hidden states."""
    hidden_BxLxD = hidden_BxLxD.astype(jnp.float32)
    size = min(size, allowed_BxL.shape[1])
    start_BxL = jax.nn.log_softmax(self._start(hidden_BxLxD, allowed_BxL))
    first_BxS, starts_BxS = jax.lax.top_k(start_BxL, size)
    at_starts_BxSxU, at_end_BxLxU = self.end_hidden(
      _gather(hidden_BxLxD, starts_BxS), hidden_BxLxD
    )
    output, variables = self.end_output.unbind()

    def best_ends(at_start_BxU):
      hidden_BxLxU = layers.gelu(at_start_BxU[:, None] + at_end_BxLxU)
      end_BxLx1: Any = output.apply(variables, hidden_BxLxU)
      end_BxL = _forbid(end_BxLx1[..., 0], allowed_BxL)
      return jax.lax.top_k(jax.nn.log_softmax(end_BxL), size)

    # A start at a time: hidden layers of all, [B, S, L, U], are gigabytes.
    second_SxBxS, ends_SxBxS = jax.lax.map(
      best_ends, at_starts_BxSxU.swapaxes(0, 1)
    )
    scores_BxSxS = first_BxS[..., None] + second_SxBxS.swapaxes(0, 1)
    return starts_BxS, ends_SxBxS.swapaxes(0, 1), scores_BxSxS

  def _start(self, hidden_BxLxD: Array, allowed_BxL: Array) -> Array:
    return _forbid(self.start(hidden_BxLxD)[..., 0], allowed_BxL)


class PairDense(nn.Module):
  """A dense layer over two vectors, one behind the other, in two halves.

  Their sum is the layer's output. So one vector meets many others without
  being copied to each.
  """

  features: int

  @nn.compact
  def __call__(self, first: Array, second: Array) -> tuple[Array, Array]:
    """`[..., D]` each to f32 `[..., features]` each, the bias in the second."""
    width, shape = first.shape[-1], (2 * first.shape[-1], self.features)
    kernel = self.param("kernel", _GLOROT, shape)
    bias = self.param("bias", nn.initializers.zeros, (self.features,))
    bias = bias.reshape((1,) * (second.ndim - 1) + (-1,))
    return first @ kernel[:width], second @ kernel[width:] + bias


def _gather(hidden_BxLxD: Array, positions_BxS: Array) -> Array:
  return jnp.take_along_axis(hidden_BxLxD, positions_BxS[..., None], axis=1)


def _forbid(logits_BxL: Array, allowed_BxL: Array) -> Array:
  return logits_BxL + jnp.where(allowed_BxL, 0.0, FORBIDDEN)
