"""What is read off an encoder: token logits and detection logits."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from truenegs_jax.models import encoder

Array = jax.Array


class MlmHead(nn.Module):
  """Hidden states at the masked slots to vocabulary logits.

  Dense to the width of the embeddings, gelu, layer norm, then the word table
  itself (tied) and a free bias, as in BERT and in ELECTRA's generator.
  """

  config: encoder.EncoderConfig

  @nn.compact
  def __call__(self, hidden_BxKxD: Array, word_VxE: Array) -> Array:
    """Returns f32 logits `[B, K, V]`."""
    c = self.config
    dense = nn.Dense(
      c.embedding_size,
      kernel_init=c.initializer,
      dtype=c.dtype,
      name="dense",
    )
    x_BxKxE = encoder.gelu(dense(hidden_BxKxD))
    x_BxKxE = encoder.layer_norm("norm")(x_BxKxE).astype(c.dtype)
    bias_V = self.param("bias", nn.initializers.zeros, (c.vocab_size,))
    logits_BxKxV = jnp.einsum(
      "bke,ve->bkv",
      x_BxKxE,
      word_VxE.astype(c.dtype),
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
    dense = nn.Dense(
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
    x_BxLxD = encoder.gelu(dense(hidden_BxLxD))
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
