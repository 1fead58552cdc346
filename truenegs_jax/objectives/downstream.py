"""The losses of fine-tuning: classes, scores and spans.

An objective is, as in pre-training, a pure function from parameters and a batch
to a dict of (sum, count) pairs, and divides nothing. The model is any object
that has, once bound to parameters, the method that is asked for here.

What all of them take:

  params: tree of the model's parameters.
  inputs: `tokens`, `types`, `documents` int32 [B, L] (0 in `documents`:
    padding), `weight` f32 [B] (0: the row counts for nothing), the targets.
  keys_B: one typed key a row (`randomness.row_keys`).
  aux: not looked at.
  model: an unbound linen module.
  train: whether dropout is on.
  reduction: what the step divides the loss by. "mean": the weights; "sum":
    nothing, as ELECTRA (`run_finetuning.py`), whose gradients are then nearly
    always clipped. In "sum" each micro-batch counts 1: do not use several.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from truenegs_jax import randomness
from truenegs_jax.objectives.guess import (
  Batch,
  Terms,
  dropout_keys,
  weighted_sum,
)

Array = jax.Array

ANSWERABLE_WEIGHT = 0.5  # ELECTRA's `answerable_weight`
EXCLUDED = -1e9  # finite: a row of padding must not turn into NaN


def class_terms(
  params: Any,
  inputs: Batch,
  keys_B: Array,
  aux: Mapping[str, Array],
  *,
  model: Any,
  train: bool,
  reduction: str = "mean",
) -> Terms:
  """Softmax cross-entropy to `label`, int32 [B], and `accuracy`."""
  del aux
  bound, drop_keys_B = _prepare(params, keys_B, model, train=train)
  logits_BxC = bound.class_logits(inputs, drop_keys_B)
  label_B, weight_B = inputs["label"], inputs["weight"]
  right_B = logits_BxC.argmax(axis=-1) == label_B
  return {
    "loss": _reduced(_cross_entropy(logits_BxC, label_B), weight_B, reduction),
    "accuracy": weighted_sum(right_B.astype(jnp.float32), weight_B),
  }


def score_terms(
  params: Any,
  inputs: Batch,
  keys_B: Array,
  aux: Mapping[str, Array],
  *,
  model: Any,
  train: bool,
  reduction: str = "mean",
) -> Terms:
  """Squared error to `label`, f32 [B], in the units that it is given in."""
  del aux
  bound, drop_keys_B = _prepare(params, keys_B, model, train=train)
  score_B = bound.class_logits(inputs, drop_keys_B)[:, 0]
  loss_B = jnp.square(score_B - inputs["label"])
  return {"loss": _reduced(loss_B, inputs["weight"], reduction)}


def span_terms(
  params: Any,
  inputs: Batch,
  keys_B: Array,
  aux: Mapping[str, Array],
  *,
  model: Any,
  train: bool,
  reduction: str = "mean",
) -> Terms:
  """Mean cross-entropy to `start` and `end`, int32 [B], places in the row.

  As BERT's `run_squad.py`, whose softmax is over padding, too: here the loss of
  a row does not depend on how long the batch is.
  """
  del aux
  bound, drop_keys_B = _prepare(params, keys_B, model, train=train)
  real_BxLx1 = (inputs["documents"] != 0)[..., None]
  logits_BxLx2 = bound.span_logits(inputs, drop_keys_B)
  logits_BxLx2 = jnp.where(real_BxLx1, logits_BxLx2, EXCLUDED)
  loss_B = _span_loss(logits_BxLx2[..., 0], logits_BxLx2[..., 1], inputs)
  return {"loss": _reduced(loss_B, inputs["weight"], reduction)}


def joint_terms(
  params: Any,
  inputs: Batch,
  keys_B: Array,
  aux: Mapping[str, Array],
  *,
  model: Any,
  train: bool,
  reduction: str = "mean",
) -> Terms:
  """As `span_terms`, by ELECTRA's joint head, the end given the gold start.

  To it comes what the classifier of questions without an answer costs, as
  released for SQuAD 1.1 as well, where every question has one.
  """
  del aux
  bound, drop_keys_B = _prepare(params, keys_B, model, train=train)
  start_BxL, end_BxL, answerable_B = bound.joint_logits(
    inputs, inputs["start"], drop_keys_B
  )
  loss_B = _span_loss(start_BxL, end_BxL, inputs)
  loss_B += ANSWERABLE_WEIGHT * jax.nn.softplus(answerable_B)  # BCE to 0
  return {"loss": _reduced(loss_B, inputs["weight"], reduction)}


def _prepare(
  params: Any, keys_B: Array, model: Any, *, train: bool
) -> tuple[Any, Array | None]:
  """The model with its parameters, and the keys of its dropout."""
  purpose = randomness.DISCRIMINATOR_DROPOUT
  drop_keys_B = dropout_keys(keys_B, purpose, train=train)
  return model.bind({"params": params}), drop_keys_B


def _span_loss(start_BxL: Array, end_BxL: Array, inputs: Batch) -> Array:
  """Mean of the cross-entropies of the two ends of each row's span."""
  start_B = _cross_entropy(start_BxL, inputs["start"])
  return (start_B + _cross_entropy(end_BxL, inputs["end"])) / 2


def _cross_entropy(logits_BxC: Array, label_B: Array) -> Array:
  return optax.softmax_cross_entropy_with_integer_labels(logits_BxC, label_B)


def _reduced(
  loss_B: Array, weight_B: Array, reduction: str
) -> tuple[Array, Array]:
  total, count = weighted_sum(loss_B, weight_B)
  return total, count if reduction == "mean" else jnp.ones(())
