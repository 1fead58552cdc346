"""Hides the slots of a batch and fills them with a masked language model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from truenegs_jax.objectives import masking, output_softmax
from truenegs_jax.objectives.options import Options
from truenegs_jax.runtime import rng

Array = jax.Array
Batch = Mapping[str, Array]
Terms = dict[str, tuple[Array, Array]]


@dataclasses.dataclass(frozen=True)
class SlotPredictions:
  """The hidden slots of a batch and how a masked language model fills them."""

  slots: masking.Slots
  masked_BxL: Array  # the model's input tokens
  loss_BxK: Array  # the plain cross-entropy of each slot
  sampled_BxK: Array  # drawn from the logits
  predicted_BxK: Array  # what is judged: the likeliest, or the drawn ones
  logits_BxKxV: Any  # None where no reading needs them

  @property
  def inputs_BxK(self) -> Array:
    """The token that stood in each slot when it was filled."""
    return jnp.take_along_axis(
      self.masked_BxL, self.slots.positions_BxK, axis=1
    )


def mask_and_predict(
  bound: Any, batch: Batch, keys_B: Array, options: Options, *, train: bool
) -> SlotPredictions:
  """Hides the slots of a batch and lets the bound model fill them."""
  keys = lambda purpose: rng.purpose_keys(keys_B, purpose)
  slots, masked_BxL = masking.hide_slots(
    batch["tokens"],
    batch["documents"],
    keys(rng.MASK),
    options.masking,
  )
  inputs = (
    {**batch, "tokens": masked_BxL},
    slots.positions_BxK,
    dropout_keys(keys_B, rng.GENERATOR_DROPOUT, train=train),
  )
  gold_BxK, sample_keys_B = slots.gold_BxK, keys(rng.SAMPLE)
  temperature, logits_BxKxV = options.sampling_temperature, None
  # jit drops the entries of `output` that nobody uses.
  if options.needs_logits:
    logits_BxKxV = bound.generate_logits(*inputs)
    output = output_softmax.compute_from_logits(
      logits_BxKxV, gold_BxK, sample_keys_B, temperature=temperature
    )
  else:
    word_VxE, bias_V = bound.output_layer()
    output = output_softmax.compute(
      bound.generate_vectors(*inputs),
      word_VxE,
      bias_V,
      gold_BxK,
      sample_keys_B,
      temperature=temperature,
      chunk=options.vocabulary_chunk,
    )
  sampled_BxK = masking.share_first_value(
    slots, output.sampled_BxK
  )  # one per place
  likeliest = options.prediction == "argmax"
  return SlotPredictions(
    slots=slots,
    masked_BxL=masked_BxL,
    loss_BxK=output.loss_BxK,
    sampled_BxK=sampled_BxK,
    predicted_BxK=output.predicted_BxK if likeliest else sampled_BxK,
    logits_BxKxV=logits_BxKxV,
  )


def predicted_sentences(
  batch: Batch, guess: SlotPredictions
) -> dict[str, Array]:
  """The batch with the judged predictions in its slots: the paper's s_p."""
  tokens_BxL = masking.fill_slots(
    batch["tokens"], guess.slots, guess.predicted_BxK
  )
  return {**batch, "tokens": tokens_BxL}


def dropout_keys(keys_B: Array, purpose: int, *, train: bool) -> Array | None:
  """The keys of one network's dropout; None, for no dropout, in evaluation."""
  return rng.purpose_keys(keys_B, purpose) if train else None


def weighted_sum(loss: Array, weight: Array) -> tuple[Array, Array]:
  """(sum, count) over the entries of positive weight."""
  loss = jnp.where(weight > 0, loss * weight, 0.0)  # 0 * nan is nan
  return loss.sum(), weight.sum().astype(jnp.float32)
