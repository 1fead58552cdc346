"""Predictions, and which of them are false negatives.

A false negative is a prediction that differs from the gold token and is yet
right: its synonym. Hard correction (Zhang et al. 2023, equation 2) takes such
slots out of the masked language model's loss.
"""

import jax
import jax.numpy as jnp

from truenegs_jax import randomness

Array = jax.Array

WORD_BITS = 32


def sample(logits_BxKxV: Array, keys_B: Array, temperature: float) -> Array:
  """One token a slot from softmax(logits / temperature), int32 `[B, K]`.

  Gumbel-max in f32 (half precision distorts the tail), and no gradient: the
  discriminator never trains the generator (Clark et al. 2020, section 3.1).
  """
  logits_BxKxV = jax.lax.stop_gradient(logits_BxKxV).astype(jnp.float32)
  uniform_BxKxV = randomness.uniform(keys_B, logits_BxKxV.shape[1:])
  gumbel_BxKxV = -jnp.log(-jnp.log(uniform_BxKxV))
  noisy_BxKxV = logits_BxKxV / temperature + gumbel_BxKxV
  return jnp.argmax(noisy_BxKxV, axis=-1).astype(jnp.int32)


def predict(logits_BxKxV: Array) -> Array:
  """The likeliest token of each slot, int32 `[B, K]`; no gradient."""
  logits_BxKxV = jax.lax.stop_gradient(logits_BxKxV)
  return jnp.argmax(logits_BxKxV, axis=-1).astype(jnp.int32)


def is_synonym(bits_VxW: Array, a_BxK: Array, b_BxK: Array) -> Array:
  """True where the table lists token `b` among the synonyms of token `a`.

  Row `a` of `bits_VxW` (uint32) holds one bit for each vocabulary entry, so a
  table for 30,522 tokens is 116 MB and a look-up is a gather of one word.
  """
  word_BxK = bits_VxW[a_BxK, b_BxK // WORD_BITS]
  shift_BxK = (b_BxK % WORD_BITS).astype(jnp.uint32)
  return (word_BxK >> shift_BxK) & 1 == 1


def false_negatives(
  bits_VxW: Array, original_BxK: Array, predicted_BxK: Array
) -> Array:
  """True where a prediction is wrong by the letter and right by the table.

  A prediction that equals the gold token is never one, whatever the table
  says: the paper's lists (figure 3) hold the gold word itself, and read
  literally they would drop the loss of every correct prediction.
  """
  differs_BxK = predicted_BxK != original_BxK
  return differs_BxK & is_synonym(bits_VxW, original_BxK, predicted_BxK)
