"""What is read off an encoder: token logits and detection logits."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.models import encoder, layers

Array = jax.Array


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
    """Returns the vectors that the table is multiplied with, `[B, K, E]`."""
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
      c.width,
      kernel_init=c.initializer,
      dtype=c.dtype,
      name="dense",
    )
    # ELECTRA leaves this layer to TF's default initializer.
    output = nn.Dense(
      1,
      kernel_init=nn.initializers.glorot_uniform(),
      dtype=jnp.float32,
      name="output",
    )
    x_BxLxD = layers.gelu(dense(hidden_BxLxD))
    return output(x_BxLxD.astype(jnp.float32))[..., 0]


class NextSentence(nn.Module):
  """BERT's pooler ([CLS], dense, tanh) and next-sentence classifier.

  No objective here trains them: they are carried from a released checkpoint to
  its continuation, for tasks that start from the pooler.
  """

  config: encoder.EncoderConfig

  @nn.compact
  def __call__(self, hidden_BxLxD: Array) -> Array:
    """Returns f32 logits `[B, 2]`: the next sentence, or a random one."""
    c = self.config
    dense = lambda features, name: nn.Dense(
      features, kernel_init=c.initializer, dtype=jnp.float32, name=name
    )
    first_BxD = hidden_BxLxD[:, 0].astype(jnp.float32)
    pooled_BxD = jnp.tanh(dense(c.width, "pooler")(first_BxD))
    return dense(2, "next_sentence")(pooled_BxD)
