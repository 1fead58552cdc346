"""The objective of fine-tuning: losses of classes, scores, spans and tags."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from truenegs_jax.objectives import slot_predictions
from truenegs_jax.objectives.slot_predictions import Batch
from truenegs_jax.runtime import rng

Array = jax.Array
Losses = dict[str, Array]  # name -> f32 [B], or of tags [B, L]

EXCLUDED_LOGIT = -1e9  # finite, so that a row of padding is not NaN

_cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def task_terms(
  params: optax.Params,
  inputs: Batch,
  keys_B: Array,
  aux: Mapping[str, Array],
  *,
  kind: str,
  model: Any,
  train: bool,
) -> slot_predictions.Terms:
  """Computes the loss of a task, and for classes the accuracy.

  Args:
    params: of `model`, an unbound `finetune.DownstreamModel`.
    inputs: those of the network; `weight`, f32 `[B]`, 0 for a row that does not
      count; the targets of the kind.
    keys_B: one typed key per row (`rng.row_keys`).
    aux: not used.
    kind: a name in LOSSES, that of the model's head.
    model: the network and its head.
    train: turns dropout on.
  """
  del aux
  drop_keys_B = slot_predictions.dropout_keys(
    keys_B, rng.DISCRIMINATOR_DROPOUT, train=train
  )
  bound = model.bind({"params": params})
  weight = inputs["weight"]
  if kind == "tags":  # the mean is over words
    weight = weight[:, None] * (inputs["tags"] >= 0)
  return {
    name: slot_predictions.weighted_sum(value, weight)
    for name, value in LOSSES[kind](bound, inputs, drop_keys_B).items()
  }


def _class_losses(bound: Any, inputs: Batch, keys_B: rng.Keys) -> Losses:
  """Computes softmax cross-entropy to `label`, int32 `[B]`, and `accuracy`."""
  logits_BxC = bound.logits(inputs, keys_B)
  right_B = logits_BxC.argmax(axis=-1) == inputs["label"]
  return {
    "loss": _cross_entropy(logits_BxC, inputs["label"]),
    "accuracy": right_B.astype(jnp.float32),
  }


def _score_losses(bound: Any, inputs: Batch, keys_B: rng.Keys) -> Losses:
  """Computes the squared error to `label`, f32 `[B]`, in its own units."""
  score_B = bound.logits(inputs, keys_B)[:, 0]
  return {"loss": jnp.square(score_B - inputs["label"])}


def _span_losses(bound: Any, inputs: Batch, keys_B: rng.Keys) -> Losses:
  """Computes the mean cross-entropy to positions `start`, `end`, int32 `[B]`.

  BERT's `run_squad.py` includes padding in the softmax. It is excluded, so that
  the loss of a row does not depend on the length of the batch.
  """
  real_BxLx1 = (inputs["documents"] != 0)[..., None]
  logits_BxLx2 = bound.logits(inputs, keys_B)
  logits_BxLx2 = jnp.where(real_BxLx1, logits_BxLx2, EXCLUDED_LOGIT)
  start_B = _cross_entropy(logits_BxLx2[..., 0], inputs["start"])
  end_B = _cross_entropy(logits_BxLx2[..., 1], inputs["end"])
  return {"loss": (start_B + end_B) / 2}


def _tag_losses(bound: Any, inputs: Batch, keys_B: rng.Keys) -> Losses:
  """Computes cross-entropy to `tags`, int32 `[B, L]`, -1 where none counts."""
  tags_BxL = jnp.maximum(inputs["tags"], 0)
  return {"loss": _cross_entropy(bound.logits(inputs, keys_B), tags_BxL)}


# Losses per row or word, by the kind of the task.
LOSSES: dict[str, Callable[..., Losses]] = {
  "classes": _class_losses,
  "score": _score_losses,
  "spans": _span_losses,
  "tags": _tag_losses,
}
