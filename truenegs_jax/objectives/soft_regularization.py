"""Soft regularization of words (equation 3) and of sentences (section 5).

Words: how far the embedding of a prediction lies from the gold's. Sentences:
how far the encoding of the predicted sentence lies from that of the original.
Zhang et al. 2023.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truenegs_jax.objectives.options import Options
from truenegs_jax.objectives.slot_predictions import (
  Batch,
  SlotPredictions,
  predicted_sentences,
  weighted_sum,
)
from truenegs_jax.runtime.errors import InputError

Array = jax.Array
Regularizer = Callable[[Array, Array], Array]

NORM_FLOOR = 1e-8  # torch's CosineSimilarity default
NUM_RANDOM_PAIRS = 1_024  # whose mean cosine has an error of 0.03 / sqrt(E)


def cosine_distance(original_BxKxE: Array, predicted_BxKxE: Array) -> Array:
  """1 - cos(original, predicted): 0, 1, 2 for equal, orthogonal, opposite.

  Equation 3 of Zhang et al. 2023. In f32; a zero vector counts as orthogonal to
  everything else, and neither side of such a pair gets a gradient.
  """
  a = original_BxKxE.astype(jnp.float32)
  b = predicted_BxKxE.astype(jnp.float32)
  same_BxK = jnp.all(a == b, axis=-1)
  dot_BxK = jnp.sum(a * b, axis=-1)
  squares_BxK = jnp.sum(a * a, axis=-1) * jnp.sum(b * b, axis=-1)
  # Divided by a floor alone, the product would send gradients of 1 / floor.
  long_BxK = squares_BxK > NORM_FLOOR**2
  norms_BxK = jnp.sqrt(jnp.where(long_BxK, squares_BxK, 1.0))
  cosine_BxK = jnp.where(long_BxK, dot_BxK / norms_BxK, 0.0)
  # Rounding must not charge a correct prediction for being itself.
  return jnp.where(same_BxK, 0.0, 1.0 - cosine_BxK)


# Terms `fn(original_BxKxE, predicted_BxKxE) -> loss_BxK` by `negatives.soft`.
REGULARIZERS: dict[str, Regularizer] = {"cosine": cosine_distance}


def get_regularizer(name: str) -> Regularizer:
  """Looks a term up by name; InputError lists the known ones."""
  if name not in REGULARIZERS:
    known = ", ".join(REGULARIZERS)
    raise InputError(f"negatives.soft {name!r} is unknown; known: {known}.")
  return REGULARIZERS[name]


def sentence_divergence(p_BxLxD: Array, q_BxLxD: Array) -> Array:
  """KL(p || q) of the softmax of each over its features, f32 `[B, L]`.

  Zhang et al. 2023, section 5: L_kl of the hidden states H_p and H_s, summed
  over the features of each token. Independent states of unit variance are
  about 1 apart.
  """
  log_p_BxLxD = jax.nn.log_softmax(p_BxLxD.astype(jnp.float32))
  log_q_BxLxD = jax.nn.log_softmax(q_BxLxD.astype(jnp.float32))
  return jnp.sum(jnp.exp(log_p_BxLxD) * (log_p_BxLxD - log_q_BxLxD), axis=-1)


def gather_embeddings(bound: Any, *ids: Array) -> list[Array]:
  """`token_embedding` of several `[B, _]`, with one scatter for a gradient."""
  ends = np.cumsum([x.shape[1] for x in ids])[:-1].tolist()
  vectors = bound.token_embedding(jnp.concatenate(ids, axis=1))
  return jnp.split(vectors, ends, axis=1)


def word_term(
  bound: Any,
  guess: SlotPredictions,
  options: Options,
  gold_BxKxE: Array,
  predicted_BxKxE: Array,
) -> tuple[Array, Array]:
  """Equation 3 of Zhang et al. 2023: 1 - cos(gold, predicted), over all slots.

  A correct prediction costs nothing. Both rows of the table, which
  `gather_embeddings` gave, get the gradient unless `soft_gradient` stops one.
  """
  if options.soft_prediction == "expected":
    predicted_BxKxE = bound.mean_embedding(
      jax.nn.softmax(guess.logits_BxKxV.astype(jnp.float32))
    )
  if options.soft_gradient == "gold":
    predicted_BxKxE = jax.lax.stop_gradient(predicted_BxKxE)
  elif options.soft_gradient == "predicted":
    gold_BxKxE = jax.lax.stop_gradient(gold_BxKxE)
  loss_BxK = get_regularizer(options.soft)(gold_BxKxE, predicted_BxKxE)
  return weighted_sum(loss_BxK, guess.slots.weight_BxK)


def sentence_term(
  encode: Callable[..., Array],
  batch: Batch,
  guess: SlotPredictions,
  dropout_keys_B: Array | None,
  options: Options,
  predicted_BxLxD: Array | None = None,
) -> tuple[Array, Array]:
  """How far the predicted sentences lie from the original (or masked) ones.

  Zhang et al. 2023, section 5: KL(H_p || H_s), over real tokens. The paper
  leaves open which sentence s is (the original one, by default) and where the
  gradient goes: here H_s is a target and gets none.

  Args:
    encode: `(inputs, dropout_keys_B) -> [B, L, D]`.
    batch: the original rows.
    guess: their slots.
    dropout_keys_B: of both passes. The same units are then dropped, so that a
      sentence predicted right costs nothing but rounding; with other keys the
      term would charge dropout itself.
    options: which reading.
    predicted_BxLxD: H_p, if the predicted sentences were encoded before.
  """
  if predicted_BxLxD is None:
    predicted_BxLxD = encode(predicted_sentences(batch, guess), dropout_keys_B)
  inputs = batch
  if options.sentence_target == "masked":
    inputs = {**batch, "tokens": guess.masked_BxL}
  pair = (
    predicted_BxLxD,
    jax.lax.stop_gradient(encode(inputs, dropout_keys_B)),
  )
  if options.sentence_direction == "reverse":
    pair = pair[::-1]
  real_BxL = (batch["documents"] != 0).astype(jnp.float32)
  return weighted_sum(sentence_divergence(*pair), real_BxL)


def pair_cosine(bound: Any) -> tuple[Array, Array]:
  """The mean cosine of random pairs of words, the same pairs at every step.

  Soft regularization pulls embeddings together and nothing in it pushes others
  apart: near 0 all is well, near 1 the table has collapsed.
  """
  _, bias_V = bound.output_layer()
  pairs_2xC = np.random.default_rng(0).integers(
    bias_V.size, size=(2, NUM_RANDOM_PAIRS)
  )
  vectors = jax.lax.stop_gradient(bound.token_embedding(jnp.array(pairs_2xC)))
  distance_C = cosine_distance(vectors[0], vectors[1])
  different_C = jnp.array(pairs_2xC[0] != pairs_2xC[1], jnp.float32)
  return weighted_sum(1.0 - distance_C, different_C)
