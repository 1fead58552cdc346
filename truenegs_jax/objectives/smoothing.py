"""Moves a share of a slot's target from the gold token to its synonyms.

With logits z, p = softmax(z), a gold token g, its synonyms N and the share e, a
slot's cross-entropy changes by

  uniform   e (z[g] - mean of z[N]): every synonym gets the same
  model     e (z[g] - logsumexp of z[N + g]): as much as the model gives it
  balanced  e times the sum over s of q[s] log(p[g] / (p[g] + p[s])), with the
            gradient of a target that moves e q[s] p[s] / (p[g] + p[s]) to s:
            strictly proper for every lexicon
  set       z[g] - logsumexp of z[N + g]: the loss is -log p[N + g]

`rates_VxS` of a table has q, 1 / the longer of the two tokens' lists. All but
uniform mix the cross-entropy with -log p[A] of a set A that has the gold token:
N + g, or g and one synonym. Only the listed logits are read. See
docs/explanation/proper_corrections.md.
"""

import jax
import jax.numpy as jnp

from truenegs_jax.config.losses import check_smoothing
from truenegs_jax.objectives.negatives import Aux
from truenegs_jax.runtime.errors import InputError

Array = jax.Array


def list_tokens(aux: Aux, gold_BxK: Array) -> Array:
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


def loss_change(
  logits_BxKxS: Array, tokens_BxKxS: Array, aux: Aux, share: float, by: str
) -> Array:
  """Returns what smoothing adds to the cross-entropy of each slot, `[B, K]`.

  Args:
    logits_BxKxS: of `tokens_BxKxS`, floats.
    tokens_BxKxS: result of `list_tokens`.
    aux: the table; "balanced" needs `SynonymTable.arrays(rates=True)`.
    share, by: of `check_smoothing`.
  """
  check_smoothing(share, by)
  gold_BxKx1 = tokens_BxKxS[..., :1]
  is_synonym_BxKxS = tokens_BxKxS != gold_BxKx1
  if by in ("model", "set"):
    in_set_BxKxS = is_synonym_BxKxS.at[..., 0].set(True)
    log_set_BxK = jax.nn.logsumexp(logits_BxKxS, axis=-1, where=in_set_BxKxS)
    return share * (logits_BxKxS[..., 0] - log_set_BxK)
  margin_BxKxS = logits_BxKxS[..., :1] - logits_BxKxS
  if by == "uniform":
    sum_BxK = jnp.where(is_synonym_BxKxS, margin_BxKxS, 0.0).sum(axis=-1)
    return share * sum_BxK / jnp.maximum(is_synonym_BxKxS.sum(axis=-1), 1)
  if "rates_VxS" not in aux:
    raise InputError(
      "smoothing_by='balanced' needs the rates of a synonym table. Pass"
      " table.arrays(rates=True)."
    )
  rates_BxKxS = jnp.asarray(aux["rates_VxS"])[gold_BxKx1[..., 0]]
  choice_BxKxS = jax.nn.log_sigmoid(margin_BxKxS[..., 1:])
  return share * (rates_BxKxS * choice_BxKxS).sum(axis=-1)
