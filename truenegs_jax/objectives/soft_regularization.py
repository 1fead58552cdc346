"""Soft regularization of words (equation 3) and of sentences (section 5).

Equations and sections are those of Zhang et al. 2023.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truenegs_jax.objectives import masking, slot_predictions
from truenegs_jax.objectives.slot_predictions import Batch, SlotPredictions
from truenegs_jax.runtime import rng

Array = jax.Array

NORM_FLOOR = 1e-8  # the default of torch.nn.CosineSimilarity
NUM_RANDOM_PAIRS = 1_024  # their mean cosine has an error of 0.03 / sqrt(E)


def cosine_distance(gold_BxKxE: Array, predicted_BxKxE: Array) -> Array:
  """Computes 1 - cos(gold, predicted), `[B, K]`, in f32 or wider (equation 3).

  Equal vectors have 0, orthogonal 1 and opposite 2. A zero vector counts as
  orthogonal to all others, without a gradient.

  >>> word_VxE = jnp.array([[2.0, 0.0], [0.0, 1.0]])
  >>> gold_BxK, predicted_BxK = jnp.array([[0, 0]]), jnp.array([[0, 1]])
  >>> cosine_distance(word_VxE[gold_BxK], word_VxE[predicted_BxK])
  Array([[0., 1.]], dtype=float32)
  """
  dtype = jnp.result_type(gold_BxKxE, predicted_BxKxE, jnp.float32)
  a = gold_BxKxE.astype(dtype)
  b = predicted_BxKxE.astype(dtype)
  same_BxK = jnp.all(a == b, axis=-1)
  dot_BxK = jnp.sum(a * b, axis=-1)
  squares_BxK = jnp.sum(a * a, axis=-1) * jnp.sum(b * b, axis=-1)
  # Dividing by max(norms, floor) would give gradients of 1 / floor.
  long_BxK = squares_BxK > NORM_FLOOR**2
  norms_BxK = jnp.sqrt(jnp.where(long_BxK, squares_BxK, 1.0))
  cosine_BxK = jnp.where(long_BxK, dot_BxK / norms_BxK, 0.0)
  # Rounding would leave a small loss for a correct prediction.
  return jnp.where(same_BxK, 0.0, 1.0 - cosine_BxK)


# Functions (gold_BxKxE, predicted_BxKxE) -> loss_BxK, by `negatives.soft`.
REGULARIZERS = {"cosine": cosine_distance}


def sentence_divergence(p_BxLxD: Array, q_BxLxD: Array) -> Array:
  """Computes KL(softmax(p) || softmax(q)) of each token, f32 `[B, L]`.

  This is L_kl of section 5 for hidden states: the softmax is over the D
  features. Independent states of unit variance are about 1 apart.

  >>> hidden_BxLxD = jax.random.normal(jax.random.key(0), (2, 3, 4))
  >>> sentence_divergence(hidden_BxLxD, hidden_BxLxD).tolist()
  [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
  """
  log_p_BxLxD = jax.nn.log_softmax(p_BxLxD.astype(jnp.float32))
  log_q_BxLxD = jax.nn.log_softmax(q_BxLxD.astype(jnp.float32))
  return jnp.sum(jnp.exp(log_p_BxLxD) * (log_p_BxLxD - log_q_BxLxD), axis=-1)


def gather_embeddings(bound: Any, *ids: Array) -> list[Array]:
  """Looks up several arrays of tokens; their gradient is a single scatter."""
  ends = np.cumsum([x.shape[1] for x in ids])[:-1].tolist()
  vectors = bound.token_embedding(jnp.concatenate(ids, axis=1))
  return jnp.split(vectors, ends, axis=1)


def word_term(
  predictions: SlotPredictions,
  options: slot_predictions.Options,
  gold_BxKxE: Array,
  predicted_BxKxE: Array,
) -> tuple[Array, Array]:
  """Sums 1 - cos(gold, prediction) over all slots (equation 3).

  Both embeddings receive the gradient.
  """
  loss_BxK = REGULARIZERS[options.soft](gold_BxKxE, predicted_BxKxE)
  return slot_predictions.weighted_sum(loss_BxK, predictions.slots.weight_BxK)


def sentence_term(
  encode: Callable[..., Array],
  batch: Batch,
  predictions: SlotPredictions,
  keys_B: rng.Keys,
  predicted_BxLxD: Array | None = None,
) -> tuple[Array, Array]:
  """Sums KL(H_p || H_s) over real tokens (section 5).

  H_p are the hidden states of the predicted sentence and H_s those of the
  original one, a target without a gradient. Both passes of `encode` drop the
  same units, so that the loss of a correct sentence is 0 up to rounding.
  `predicted_BxLxD` is H_p, if it was computed before.
  """
  if predicted_BxLxD is None:
    tokens_BxL = masking.fill_slots(
      batch["tokens"], predictions.slots, predictions.predicted_BxK
    )
    predicted_BxLxD = encode({**batch, "tokens": tokens_BxL}, keys_B)
  target_BxLxD = jax.lax.stop_gradient(encode(batch, keys_B))
  loss_BxL = sentence_divergence(predicted_BxLxD, target_BxLxD)
  real_BxL = (batch["documents"] != 0).astype(jnp.float32)
  return slot_predictions.weighted_sum(loss_BxL, real_BxL)


def pair_cosine(bound: Any) -> tuple[Array, Array]:
  """Sums the cosines of random pairs of embeddings, to detect a collapse.

  The mean is near 0 for a sound table and near 1 for a collapsed one. The pairs
  are the same at every step.
  """
  _, bias_V = bound.output_layer()
  shape = 2, NUM_RANDOM_PAIRS
  pairs_2xC = np.random.default_rng(0).integers(bias_V.size, size=shape)
  vectors = jax.lax.stop_gradient(bound.token_embedding(jnp.array(pairs_2xC)))
  distance_C = cosine_distance(vectors[0], vectors[1])
  different_C = jnp.array(pairs_2xC[0] != pairs_2xC[1], jnp.float32)
  return slot_predictions.weighted_sum(1.0 - distance_C, different_C)
