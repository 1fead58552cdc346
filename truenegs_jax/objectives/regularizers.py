"""Soft regularization: how far a prediction's meaning lies from the gold's.

A regularizer maps the embeddings of gold and predicted tokens `[B, K, E]` to a
loss `[B, K]` that is zero for equal inputs. `sentence_divergence` compares
sentences instead, by what an encoder makes of them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from truenegs_jax.errors import InputError

Array = jax.Array
Regularizer = Callable[[Array, Array], Array]

NORM_FLOOR = 1e-8  # torch's CosineSimilarity default

REGULARIZERS: dict[str, Regularizer] = {}


def regularizer(name: str) -> Callable[[Regularizer], Regularizer]:
  """Registers a term `fn(original_BxKxE, predicted_BxKxE) -> loss_BxK`."""

  def add(fn: Regularizer) -> Regularizer:
    if name in REGULARIZERS:
      raise ValueError(f"Regularizer {name!r} is registered twice.")
    REGULARIZERS[name] = fn
    return fn

  return add


def get(name: str) -> Regularizer:
  """Looks a term up by name; InputError lists the known ones."""
  if name not in REGULARIZERS:
    known = ", ".join(REGULARIZERS)
    raise InputError(f"negatives.soft {name!r} is unknown; known: {known}.")
  return REGULARIZERS[name]


@regularizer("cosine")
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


def sentence_divergence(p_BxLxD: Array, q_BxLxD: Array) -> Array:
  """KL(p || q) of the softmax of each over its features, f32 `[B, L]`.

  Zhang et al. 2023, section 5: L_kl of the hidden states H_p and H_s, summed
  over the features of each token. Independent states of unit variance are
  about 1 apart.
  """
  log_p_BxLxD = jax.nn.log_softmax(p_BxLxD.astype(jnp.float32))
  log_q_BxLxD = jax.nn.log_softmax(q_BxLxD.astype(jnp.float32))
  return jnp.sum(jnp.exp(log_p_BxLxD) * (log_p_BxLxD - log_q_BxLxD), axis=-1)
