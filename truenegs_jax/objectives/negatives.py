"""Finds false negatives in a synonym table, and builds a table of embeddings.

On the device a table is a bit matrix `bits_VxW` (uint32), or lists `ids_VxS`
(int32, padded with -1). The model's own table, which the paper does not have,
lists the tokens of the closest embeddings and changes with them.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from truenegs_jax.runtime.errors import InputError

Array = jax.Array
Aux = Mapping[str, Any]  # `SynonymTable.arrays`, and parameters of a teacher

WORD_BITS = 32
CELLS = 2**24  # cosines computed at a time, 64 MiB


def is_synonym(aux: Aux, a_BxK: Array, b_BxK: Array) -> Array:
  """True where the table lists token `b` among the synonyms of token `a`."""
  if "ids_VxS" in aux:
    ids_VxS = jnp.asarray(aux["ids_VxS"])
    return (ids_VxS[a_BxK] == b_BxK[..., None]).any(axis=-1)
  word_BxK = jnp.asarray(aux["bits_VxW"])[a_BxK, b_BxK // WORD_BITS]
  shift_BxK = (b_BxK % WORD_BITS).astype(jnp.uint32)
  return (word_BxK >> shift_BxK) & 1 == 1


def false_negatives(aux: Aux, gold_BxK: Array, predicted_BxK: Array) -> Array:
  """True where the prediction is not the gold token but one of its synonyms.

  >>> tokens = ["[MASK]", "main", "primary", "swan"]
  >>> table = SynonymTable.from_pairs([("primary", "main")], tokens)
  >>> gold, predicted = jnp.array([[2, 2, 1]]), jnp.array([[1, 3, 2]])
  >>> false_negatives(table.arrays(), gold, predicted)
  Array([[ True, False, False]], dtype=bool)

  In a jitted function, pass the arrays of the table as arguments: a constant of
  116 MB would be compiled into it.

  `aux` is the table (`SynonymTable.arrays`). The int32 ids have one shape.
  """
  listed_BxK = is_synonym(aux, gold_BxK, predicted_BxK)
  return listed_BxK & (predicted_BxK != gold_BxK)


def list_synonyms(aux: Aux, gold_BxK: Array) -> Array:
  """Lists the gold token and its synonyms, int32 `[B, K, S]`.

  The gold token is the first, and stands where a list has ended.
  """
  if "ids_VxS" not in aux:
    raise InputError(
      "Smoothing needs the lists of a synonym table. Pass table.arrays('ids')."
    )
  gold_BxKx1 = gold_BxK[..., None]
  ids_BxKxS = jnp.asarray(aux["ids_VxS"])[gold_BxK]
  ids_BxKxS = jnp.where(ids_BxKxS < 0, gold_BxKx1, ids_BxKxS)
  return jnp.concatenate([gold_BxKx1, ids_BxKxS], axis=-1)


def neighbour_ids(
  table_VxE: Array,
  words_V: Array,
  *,
  top: int,
  threshold: float,
  cells: int = CELLS,
) -> Array:
  """Lists the nearest tokens of each token, by cosine of embeddings in f32.

  Of equal cosines the smaller id is nearer. A row that is zero or not finite
  has no neighbours and is no neighbour. There is no gradient. Another mesh sums
  cosines in another order, which may change what is as close as 1e-6: gather
  `table_VxE` first.

  Args:
    table_VxE: embeddings, floats.
    words_V: the class of each token and its neighbours; 0 has and is none.
    top: the most neighbours of a token, at least 1.
    threshold: the least cosine of a neighbour.
    cells: the most cosines in memory, but at least those of one token.

  Returns:
    int32 `[V, top]`, nearest first, padded with -1; never the token itself.
  """
  size = table_VxE.shape[0]
  unit_VxE = normalize_rows(table_VxE)
  index_V = jnp.arange(size)
  exists_V = unit_VxE.any(axis=1)

  def list_nearest(token):
    index, unit_E, kind = token
    cosine_V = jnp.matmul(unit_E, unit_VxE.T, precision="highest")
    # NaN is below any threshold. A zero vector has no neighbours.
    near_V = (cosine_V >= threshold) & exists_V & (index_V != index)
    near_V &= (kind > 0) & unit_E.any() & (words_V == kind)
    # Of equal values, `top_k` takes the first.
    best_S, ids_S = jax.lax.top_k(
      jnp.where(near_V, cosine_V, -jnp.inf), min(top, size)
    )
    return jnp.where(best_S > -jnp.inf, ids_S, -1)

  ids_VxS = jax.lax.map(
    list_nearest,
    (index_V, unit_VxE, words_V),
    batch_size=min(size, max(1, cells // size)),
  )
  missing = top - ids_VxS.shape[1]  # if the vocabulary is smaller than `top`
  return jnp.pad(ids_VxS, ((0, 0), (0, missing)), constant_values=-1)


def normalize_rows(table_VxE: Array) -> Array:
  """Scales rows to length 1, in f32 or wider; rows of zeros do not change."""
  dtype = jnp.promote_types(table_VxE.dtype, jnp.float32)
  table_VxE = table_VxE.astype(dtype)
  # The largest entry first: the squares then neither overflow nor vanish.
  for order in (jnp.inf, 2):
    norm_Vx1 = jnp.linalg.norm(table_VxE, order, axis=1, keepdims=True)
    table_VxE /= jnp.where(norm_Vx1 > 0, norm_Vx1, 1.0)
  return table_VxE
