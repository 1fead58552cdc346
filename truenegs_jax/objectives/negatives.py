"""Predictions, and which of them are false negatives.

A false negative is a prediction that differs from the gold token and is yet
right: its synonym. Hard correction (Zhang et al. 2023, equation 2) takes such
slots out of the masked language model's loss.

The synonym table is one of two arrays, with the same answers: `bits_VxW`
(uint32), a bit for each pair of tokens, so that a look-up gathers one word; or
`ids_VxS` (int32), the synonyms of each token, padded with -1, for vocabularies
whose bit matrix would be too large.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

Array = jax.Array
Aux = Mapping[str, Array]

WORD_BITS = 32


def is_synonym(aux: Aux, a_BxK: Array, b_BxK: Array) -> Array:
  """True where the table lists token `b` among the synonyms of token `a`."""
  if "ids_VxS" in aux:
    return (aux["ids_VxS"][a_BxK] == b_BxK[..., None]).any(axis=-1)
  word_BxK = aux["bits_VxW"][a_BxK, b_BxK // WORD_BITS]
  shift_BxK = (b_BxK % WORD_BITS).astype(jnp.uint32)
  return (word_BxK >> shift_BxK) & 1 == 1


def synonym_mean(
  aux: Aux, original_BxK: Array, values_BxKxV: Array
) -> tuple[Array, Array]:
  """The mean of `values` over the synonyms of each gold token.

  Returns:
    (mean_BxK, has_BxK): f32, 0 for a token without synonyms; and whether the
    token has any.
  """
  if "ids_VxS" in aux:
    ids_BxKxS = aux["ids_VxS"][original_BxK]
    listed = ids_BxKxS >= 0
    values = jnp.take_along_axis(values_BxKxV, jnp.maximum(ids_BxKxS, 0), -1)
  else:
    words_BxKxWx1 = aux["bits_VxW"][original_BxK][..., None]
    bit_1x1x1x32 = jnp.arange(WORD_BITS, dtype=jnp.uint32)[None, None, None]
    flags_BxKxWx32 = (words_BxKxWx1 >> bit_1x1x1x32) & 1 == 1
    flags = flags_BxKxWx32.reshape(*original_BxK.shape, -1)
    listed = flags[..., : values_BxKxV.shape[-1]]
    values = values_BxKxV
  count_BxK = listed.sum(axis=-1)
  sum_BxK = jnp.where(listed, values, 0.0).sum(axis=-1)
  return sum_BxK / jnp.maximum(count_BxK, 1), count_BxK > 0


def false_negatives(
  aux: Aux,
  original_BxK: Array,
  predicted_BxK: Array,
  *,
  include_self: bool = False,
) -> Array:
  """True where a prediction is wrong by the letter and right by the table.

  A prediction that equals the gold token is none, whatever the table says: the
  paper's lists (figure 3) hold the gold word itself, and read literally they
  drop the loss of every correct prediction. `include_self` reads them so.
  """
  listed_BxK = is_synonym(aux, original_BxK, predicted_BxK)
  if include_self:
    return listed_BxK
  return listed_BxK & (predicted_BxK != original_BxK)
