"""What a masked language model is shown of a batch, and what it says."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from truenegs_jax import randomness
from truenegs_jax.objectives import masking, negatives
from truenegs_jax.objectives.options import Options

Array = jax.Array
Batch = Mapping[str, Array]
Terms = dict[str, tuple[Array, Array]]


@dataclasses.dataclass(frozen=True)
class Guess:
  """The hidden slots of a batch and how a masked language model fills them."""

  slots: masking.Slots
  masked_BxL: Array  # the tokens that it saw
  logits_BxKxV: Array
  sampled_BxK: Array  # drawn from the logits
  predicted_BxK: Array  # what is judged: the likeliest, or the drawn ones

  @property
  def shown_BxK(self) -> Array:
    """The token that stood in each slot when it was filled."""
    return jnp.take_along_axis(
      self.masked_BxL, self.slots.positions_BxK, axis=1
    )

  @property
  def loss_BxK(self) -> Array:
    """The plain cross-entropy of each slot."""
    return optax.softmax_cross_entropy_with_integer_labels(
      self.logits_BxKxV, self.slots.original_BxK
    )


def guess_slots(
  bound: Any, batch: Batch, keys_B: Array, options: Options, *, train: bool
) -> Guess:
  """Hides the slots of a batch and lets the bound model fill them."""
  keys = lambda purpose: randomness.purpose_keys(keys_B, purpose)
  slots, masked_BxL = masking.hide_slots(
    batch["tokens"],
    batch["documents"],
    keys(randomness.MASK),
    options.masking,
  )
  logits_BxKxV = bound.generate_logits(
    {**batch, "tokens": masked_BxL},
    slots.positions_BxK,
    dropout_keys(keys_B, randomness.GENERATOR_DROPOUT, train=train),
  )
  # Whichever of the two nobody uses is not computed: jit leaves it out.
  sampled_BxK = negatives.sample(
    logits_BxKxV, keys(randomness.SAMPLE), options.sampling_temperature
  )
  sampled_BxK = masking.of_first(slots, sampled_BxK)  # what a row can hold
  predicted_BxK = (
    negatives.predict(logits_BxKxV)
    if options.prediction == "argmax"
    else sampled_BxK
  )
  return Guess(slots, masked_BxL, logits_BxKxV, sampled_BxK, predicted_BxK)


def predicted_inputs(batch: Batch, guess: Guess) -> dict[str, Array]:
  """The batch with the judged predictions in its slots: the paper's s_p."""
  tokens_BxL = masking.fill_slots(
    batch["tokens"], guess.slots, guess.predicted_BxK
  )
  return {**batch, "tokens": tokens_BxL}


def dropout_keys(keys_B: Array, purpose: int, *, train: bool) -> Array | None:
  """The keys of one network's dropout; None, which is none, in evaluation."""
  return randomness.purpose_keys(keys_B, purpose) if train else None


def weighted_sum(loss: Array, weight: Array) -> tuple[Array, Array]:
  """(sum, count) over the entries of positive weight."""
  loss = jnp.where(weight > 0, loss * weight, 0.0)  # 0 * nan is nan
  return loss.sum(), weight.sum().astype(jnp.float32)
