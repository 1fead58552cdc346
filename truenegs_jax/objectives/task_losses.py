"""The objective of fine-tuning: classes, scores and spans.

As in pre-training, a pure function from parameters and a batch to a dict of
(sum, count) pairs. The model, once bound to parameters, has the method that the
kind of task needs: `class_logits`, `span_logits` or `joint_logits`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from truenegs_jax.objectives.slot_predictions import (
  Batch,
  Terms,
  dropout_keys,
  weighted_sum,
)
from truenegs_jax.runtime import rng

Array = jax.Array
Keys = Array | None  # of dropout, one a row; None: no dropout
Losses = dict[str, Array]  # of each row

ANSWERABLE_WEIGHT = 0.5  # ELECTRA's `answerable_weight`
EXCLUDED = -1e9  # finite: a row of padding must not turn into NaN


def task_terms(
  params: Any,
  inputs: Batch,
  keys_B: Array,
  aux: Mapping[str, Array],
  *,
  kind: str,
  model: Any,
  train: bool,
  reduction: str = "mean",
) -> Terms:
  """The loss of a task, and the accuracy of classes.

  Args:
    params: tree of the model's parameters.
    inputs: `tokens`, `types`, `documents` int32 [B, L] (0 in `documents`:
      padding), `weight` f32 [B] (0: the row counts for nothing), the targets.
    keys_B: one typed key a row (`rng.row_keys`).
    aux: not used.
    kind: a name in LOSSES.
    model: an unbound linen module.
    train: whether dropout is on.
    reduction: what the step divides the loss by. "mean": the weights; "sum":
      nothing, as ELECTRA (`run_finetuning.py`), whose gradients are then nearly
      always clipped. In "sum" each micro-batch counts 1: do not use several.
  """
  del aux
  drop_keys_B = dropout_keys(keys_B, rng.DISCRIMINATOR_DROPOUT, train=train)
  bound = model.bind({"params": params})
  weight_B = inputs["weight"]
  terms = {
    name: weighted_sum(value_B, weight_B)
    for name, value_B in LOSSES[kind](bound, inputs, drop_keys_B).items()
  }
  if reduction == "sum":
    terms["loss"] = terms["loss"][0], jnp.ones(())
  return terms


def _class_losses(bound: Any, inputs: Batch, drop_keys_B: Keys) -> Losses:
  """Softmax cross-entropy to `label`, int32 [B], and `accuracy`."""
  logits_BxC = bound.class_logits(inputs, drop_keys_B)
  right_B = logits_BxC.argmax(axis=-1) == inputs["label"]
  return {
    "loss": _cross_entropy(logits_BxC, inputs["label"]),
    "accuracy": right_B.astype(jnp.float32),
  }


def _score_losses(bound: Any, inputs: Batch, drop_keys_B: Keys) -> Losses:
  """Squared error to `label`, f32 [B], in the units that it is given in."""
  score_B = bound.class_logits(inputs, drop_keys_B)[:, 0]
  return {"loss": jnp.square(score_B - inputs["label"])}


def _span_losses(bound: Any, inputs: Batch, drop_keys_B: Keys) -> Losses:
  """Mean cross-entropy to `start` and `end`, int32 [B], places in the row.

  As BERT's `run_squad.py`, whose softmax is over padding, too: here the loss of
  a row does not depend on how long the batch is.
  """
  real_BxLx1 = (inputs["documents"] != 0)[..., None]
  logits_BxLx2 = bound.span_logits(inputs, drop_keys_B)
  logits_BxLx2 = jnp.where(real_BxLx1, logits_BxLx2, EXCLUDED)
  return {
    "loss": _span_loss(logits_BxLx2[..., 0], logits_BxLx2[..., 1], inputs)
  }


def _joint_losses(bound: Any, inputs: Batch, drop_keys_B: Keys) -> Losses:
  """The span loss of ELECTRA's joint head, the end given the gold start.

  Plus that of the classifier of questions without an answer, as released for
  SQuAD 1.1 as well, where every question has one.
  """
  start_BxL, end_BxL, answerable_B = bound.joint_logits(
    inputs, inputs["start"], drop_keys_B
  )
  loss_B = _span_loss(start_BxL, end_BxL, inputs)
  return {"loss": loss_B + ANSWERABLE_WEIGHT * jax.nn.softplus(answerable_B)}


# What each row costs, by the kind of the task or its head.
LOSSES: dict[str, Callable[..., Losses]] = {
  "classes": _class_losses,
  "score": _score_losses,
  "spans": _span_losses,
  "joint": _joint_losses,
}


def _span_loss(start_BxL: Array, end_BxL: Array, inputs: Batch) -> Array:
  """Mean of the cross-entropies of the two ends of each row's span."""
  start_B = _cross_entropy(start_BxL, inputs["start"])
  return (start_B + _cross_entropy(end_BxL, inputs["end"])) / 2


def _cross_entropy(logits_BxC: Array, label_B: Array) -> Array:
  return optax.softmax_cross_entropy_with_integer_labels(logits_BxC, label_B)
