"""Heads of encoders: masked tokens, detection, next sentence, and tasks.

In shape suffixes, C is the number of outputs of a head (classes, or 1 for a
score), S the number of starts in a beam and of ends per start, and U the number
of units of a hidden layer.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.models import encoder, layers
from truenegs_jax.runtime import rng

Array = jax.Array

JOINT_UNITS = 512  # of the joint head's hidden layers, ELECTRA's `qa_hidden`
FORBIDDEN_LOGIT = -1000.0  # added where no answer is allowed, as in ELECTRA

# ELECTRA's heads use TF's default initializer.
_GLOROT = nn.initializers.glorot_uniform()


class MlmHead(nn.Module):
  """The head of BERT's masked language model and of ELECTRA's generator.

  It computes LayerNorm(gelu(dense(x))), as wide as the embeddings; with these
  vectors, the word table and `bias_V`, `vocabulary_logits` computes the logits.
  Vectors and bias, and so the logits, are divided by `temperature`.
  """

  config: encoder.EncoderConfig
  temperature: float = 1.0

  def setup(self):
    c = self.config
    self.dense = layers.Dense(
      c.embedding_size, kernel_init=c.initializer, dtype=c.dtype
    )
    self.norm = layers.layer_norm()
    bias_V = self.param("bias", nn.initializers.zeros, (c.vocab_size,))
    self.bias_V = self._divide(bias_V)

  def __call__(self, hidden_BxKxD: Array) -> Array:
    """Returns vectors for `vocabulary_logits`, `[B, K, E]`."""
    x_BxKxE = layers.gelu(self.dense(hidden_BxKxD))
    return self._divide(self.norm(x_BxKxE)).astype(self.config.dtype)

  def _divide(self, x: Array) -> Array:
    """Divides by the temperature; at 1 the compiled program has no division."""
    return x if self.temperature == 1 else x / self.temperature


def vocabulary_logits(
  vectors_BxKxE: Array, word_VxE: Array, bias_V: Array
) -> Array:
  """Returns the f32 logits `[B, K, V]`, vectors word^T + bias."""
  logits_BxKxV = jnp.einsum(
    "bke,ve->bkv",
    vectors_BxKxE,
    word_VxE.astype(vectors_BxKxE.dtype),
    preferred_element_type=jnp.float32,
  )
  return logits_BxKxV + bias_V[None, None]


class DetectionHead(nn.Module):
  """ELECTRA's discriminator head: one logit per token, of being replaced."""

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
  """BERT's pooler, tanh(dense([CLS])), and its next-sentence classifier.

  Pre-training does not train them. It carries them from a released checkpoint
  to the export, for tasks that start from the pooler.
  """

  config: encoder.EncoderConfig
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


class ClassHead(nn.Module):
  """C outputs from the vector of [CLS].

  Kinds:
    "linear": dropout and a dense layer, as in ELECTRA's
      `finetune/classification/classification_tasks.py`.
    "dense": a second dense layer with gelu before it, as in Hugging Face's
      ElectraClassificationHead.
    "pooler": like "linear" with BERT's initializer (`run_classifier.py`).
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
    init = _GLOROT if self.kind == "linear" else c.initializer
    if self.kind == "dense":
      dense = nn.Dense(c.width, kernel_init=init, name="dense")
      x_BxD = layers.gelu(dense(dropout(x_BxD, site=site + 1)))
    output = nn.Dense(self.num_outputs, kernel_init=init, name="output")
    return output(dropout(x_BxD, site=site))


class SpanHead(nn.Module):
  """A dense layer at each position, as in BERT's `run_squad.py`."""

  config: encoder.EncoderConfig

  @nn.compact
  def __call__(self, hidden_BxLxD: Array) -> Array:
    """Returns the f32 logits of start and end, `[B, L, 2]`."""
    output = nn.Dense(2, kernel_init=self.config.initializer, name="output")
    return output(hidden_BxLxD.astype(jnp.float32))


class JointHead(nn.Module):
  """ELECTRA's head of spans, which predicts the end given the start.

  It is that of the released `finetune/qa/qa_tasks.py` with its defaults
  (`joint_prediction`, `answerable_classifier`, `answerable_uses_start_logits`).
  """

  def setup(self):
    dense = functools.partial(nn.Dense, 1, kernel_init=_GLOROT)
    self.start, self.end_output, self.answer_output = dense(), dense(), dense()
    self.end_hidden = PairDense(JOINT_UNITS)
    self.answer_hidden = PairDense(JOINT_UNITS)

  def __call__(
    self, hidden_BxLxD: Array, allowed_BxL: Array, start_B: Array
  ) -> tuple[Array, Array, Array]:
    """Returns the logits of `DownstreamModel.joint_logits`."""
    hidden_BxLxD = hidden_BxLxD.astype(jnp.float32)
    start_BxL = _mask_logits(self.start(hidden_BxLxD), allowed_BxL)
    gold_Bx1xD = gather_positions(hidden_BxLxD, start_B[:, None])
    at_start_Bx1xU, at_end_BxLxU = self.end_hidden(gold_Bx1xD, hidden_BxLxD)
    end_BxLx1 = self.end_output(layers.gelu(at_start_Bx1xU + at_end_BxLxU))
    expected_BxD = jnp.einsum(
      "bl,bld->bd", jax.nn.softmax(start_BxL), hidden_BxLxD
    )
    first_BxU, rest_BxU = self.answer_hidden(hidden_BxLxD[:, 0], expected_BxD)
    answerable_Bx1 = self.answer_output(layers.gelu(first_BxU + rest_BxU))
    end_BxL = _mask_logits(end_BxLx1, allowed_BxL)
    return start_BxL, end_BxL, answerable_Bx1[:, 0]

  def beam(
    self, hidden_BxLxD: Array, allowed_BxL: Array, size: int
  ) -> tuple[Array, Array, Array]:
    """Returns the spans of `DownstreamModel.joint_beam`."""
    hidden_BxLxD = hidden_BxLxD.astype(jnp.float32)
    size = min(size, allowed_BxL.shape[1])
    start_BxL = _mask_logits(self.start(hidden_BxLxD), allowed_BxL)
    first_BxS, starts_BxS = jax.lax.top_k(jax.nn.log_softmax(start_BxL), size)
    at_starts_BxSxU, at_end_BxLxU = self.end_hidden(
      gather_positions(hidden_BxLxD, starts_BxS), hidden_BxLxD
    )
    output, variables = self.end_output.unbind()

    def best_ends(at_start_BxU):
      hidden_BxLxU = layers.gelu(at_start_BxU[:, None] + at_end_BxLxU)
      end_BxLx1: Any = output.apply(variables, hidden_BxLxU)
      end_BxL = _mask_logits(end_BxLx1, allowed_BxL)
      return jax.lax.top_k(jax.nn.log_softmax(end_BxL), size)

    # One start at a time, as all hidden layers [B, S, L, U] would be gigabytes.
    second_SxBxS, ends_SxBxS = jax.lax.map(
      best_ends, at_starts_BxSxU.swapaxes(0, 1)
    )
    scores_BxSxS = first_BxS[..., None] + second_SxBxS.swapaxes(0, 1)
    return starts_BxS, ends_SxBxS.swapaxes(0, 1), scores_BxSxS


class PairDense(nn.Module):
  """A dense layer over the concatenation of two vectors, as two summands.

  The caller adds them. A summand can be broadcast, where a concatenation would
  copy one vector for each of the others.
  """

  features: int

  @nn.compact
  def __call__(self, first: Array, second: Array) -> tuple[Array, Array]:
    """Maps each `[..., D]` to f32 `[..., features]`, the second with bias."""
    width, shape = first.shape[-1], (2 * first.shape[-1], self.features)
    kernel = self.param("kernel", _GLOROT, shape)
    bias = self.param("bias", nn.initializers.zeros, (self.features,))
    bias = bias.reshape((1,) * (second.ndim - 1) + (-1,))
    return first @ kernel[:width], second @ kernel[width:] + bias


def gather_positions(hidden_BxLxD: Array, positions_BxS: Array) -> Array:
  """Returns the hidden states at S positions per row, `[B, S, D]`."""
  return jnp.take_along_axis(hidden_BxLxD, positions_BxS[..., None], axis=1)


def _mask_logits(logits_BxLx1: Array, allowed_BxL: Array) -> Array:
  return logits_BxLx1[..., 0] + jnp.where(allowed_BxL, 0.0, FORBIDDEN_LOGIT)
