"""Masked language modelling on true negatives: BERT's objective.

ELECTRA's generator is a masked language model too, so what the two share is
here: the slots and what is predicted in them, the corrected loss, the soft
terms. Nothing is divided: every term is a (sum, count), and whoever
differentiates or reports divides once, over the global batch.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from truenegs_jax import randomness
from truenegs_jax.objectives import masking, negatives, regularizers

Array = jax.Array
Terms = dict[str, tuple[Array, Array]]


@dataclasses.dataclass(frozen=True)
class Options:
  """What decides an objective beside the model and its parameters."""

  masking: masking.MaskingOptions
  temperature: float = 1.0  # of the sampling
  hard_correction: bool = True
  prediction: str = "argmax"  # or "sample": what hard and soft terms judge
  normalizer: str = "kept"  # or "slots": what the corrected loss divides by
  soft: str = "cosine"
  soft_weight: float = 0.0  # 0 leaves the term out altogether
  sentence_weight: float = 0.0  # likewise


@dataclasses.dataclass(frozen=True)
class Guess:
  """What a masked language model was shown, and what it says."""

  slots: masking.Slots
  masked_BxL: Array  # the tokens that it saw
  logits_BxKxV: Array
  sampled_BxK: Array  # drawn from the logits
  predicted_BxK: Array  # what is judged: the likeliest, or the drawn ones


def mlm_terms(
  params: Any,
  batch: Mapping[str, Array],
  keys_B: Array,
  aux: Mapping[str, Array],
  *,
  model: Any,
  options: Options,
  train: bool,
) -> Terms:
  """Sums and counts of BERT's loss and statistics on one batch.

  `mlm`: the slots kept by hard correction (Zhang et al. 2023, equation 2);
  `soft`, `sentence`: as `slot_terms` and `sentence_term` say. No next-sentence
  prediction. Arguments and `mlm_hidden` are as in `electra.electra_terms`; the
  model needs `generate_logits`, `encode` and `token_embedding`.
  """
  bound = model.bind({"params": params})
  guess = guess_slots(bound, batch, keys_B, options, train=train)
  terms = slot_terms(bound, guess, aux, options)
  if options.sentence_weight:
    keys = dropout_keys(keys_B, randomness.GENERATOR_DROPOUT, train=train)
    predicted_BxLxD = bound.encode(predicted_inputs(batch, guess), keys)
    terms["sentence"] = sentence_term(bound, predicted_BxLxD, batch, keys)
  if not train:
    terms["mlm_hidden"] = hidden_loss(guess, options.masking.mask_id)
  return terms


def guess_slots(
  bound: Any,
  batch: Mapping[str, Array],
  keys_B: Array,
  options: Options,
  *,
  train: bool,
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
    logits_BxKxV, keys(randomness.SAMPLE), options.temperature
  )
  sampled_BxK = masking.of_first(slots, sampled_BxK)  # what a row can hold
  predicted_BxK = (
    negatives.predict(logits_BxKxV)
    if options.prediction == "argmax"
    else sampled_BxK
  )
  return Guess(slots, masked_BxL, logits_BxKxV, sampled_BxK, predicted_BxK)


def slot_terms(
  bound: Any, guess: Guess, aux: Mapping[str, Array], options: Options
) -> Terms:
  """The masked language model's loss, its correction and regularization.

  `soft` is equation 3 of Zhang et al. 2023, over all slots. Without a slot, or
  with all corrected, sum and count are 0.
  """
  slots = guess.slots
  loss_BxK = optax.softmax_cross_entropy_with_integer_labels(
    guess.logits_BxKxV, slots.original_BxK
  )
  terms = {"mlm": weighted_sum(loss_BxK, slots.weight_BxK)}
  if options.hard_correction:
    terms |= _corrected_terms(loss_BxK, guess, aux["bits_VxW"])
    if options.normalizer == "slots":
      terms["mlm"] = (terms["mlm"][0], slots.weight_BxK.sum())
  if options.soft_weight:
    soft_BxK = regularizers.get(options.soft)(
      bound.token_embedding(slots.original_BxK),
      bound.token_embedding(guess.predicted_BxK),
    )
    terms["soft"] = weighted_sum(soft_BxK, slots.weight_BxK)
  return terms


def predicted_inputs(
  batch: Mapping[str, Array], guess: Guess
) -> dict[str, Array]:
  """The batch with the judged predictions in its slots: the paper's s_p."""
  tokens_BxL = masking.fill_slots(
    batch["tokens"], guess.slots, guess.predicted_BxK
  )
  return {**batch, "tokens": tokens_BxL}


def sentence_term(
  bound: Any,
  predicted_BxLxD: Array,
  batch: Mapping[str, Array],
  dropout_keys_B: Array | None,
) -> tuple[Array, Array]:
  """How far the predicted sentences lie from the original ones.

  Zhang et al. 2023, section 5: KL(H_p || H_s), the mean over all real tokens.
  The paper leaves open which sentence s is and where the gradient goes; here it
  is the original one, and a target: H_s gets no gradient.

  Args:
    bound: the bound model, whose `encode` is the network that is kept.
    predicted_BxLxD: H_p, `encode` of `predicted_inputs`.
    batch: the original rows.
    dropout_keys_B: those that H_p was made with. The same units are then
      dropped in both passes, so that a sentence predicted right costs nothing
      but rounding; with other keys the term would charge dropout itself.
  """
  original_BxLxD = jax.lax.stop_gradient(bound.encode(batch, dropout_keys_B))
  loss_BxL = regularizers.sentence_divergence(predicted_BxLxD, original_BxLxD)
  return weighted_sum(loss_BxL, (batch["documents"] != 0).astype(jnp.float32))


def dropout_keys(keys_B: Array, purpose: int, *, train: bool) -> Array | None:
  """The keys of one network's dropout; None, which is none, in evaluation."""
  return randomness.purpose_keys(keys_B, purpose) if train else None


def hidden_loss(guess: Guess, mask_id: int) -> tuple[Array, Array]:
  """The loss of the slots behind [MASK], corrected or not.

  The slots that stay visible (15 % in ELECTRA) can be copied: they alone take
  a seventh off the loss of a model that has learned nothing about language.
  """
  slots = guess.slots
  loss_BxK = optax.softmax_cross_entropy_with_integer_labels(
    guess.logits_BxKxV, slots.original_BxK
  )
  shown_BxK = jnp.take_along_axis(guess.masked_BxL, slots.positions_BxK, axis=1)
  return weighted_sum(loss_BxK, slots.weight_BxK * (shown_BxK == mask_id))


def weighted_sum(loss: Array, weight: Array) -> tuple[Array, Array]:
  """(sum, count) over the entries of positive weight."""
  loss = jnp.where(weight > 0, loss * weight, 0.0)  # 0 * nan is nan
  return loss.sum(), weight.sum().astype(jnp.float32)


def _corrected_terms(loss_BxK: Array, guess: Guess, bits_VxW: Array) -> Terms:
  """The loss over the kept slots, and how much was corrected (table 2)."""
  original_BxK, weight_BxK = guess.slots.original_BxK, guess.slots.weight_BxK
  false_BxK = weight_BxK * negatives.false_negatives(
    bits_VxW, original_BxK, guess.predicted_BxK
  )
  wrong_BxK = guess.predicted_BxK != original_BxK
  row_false_B, row_used_B = false_BxK.max(axis=1), weight_BxK.max(axis=1)
  return {
    "mlm": weighted_sum(loss_BxK, weight_BxK - false_BxK),
    "mlm_uncorrected": weighted_sum(loss_BxK, weight_BxK),
    "corrected_of_slots": (false_BxK.sum(), weight_BxK.sum()),
    "corrected_of_mismatches": (
      false_BxK.sum(),
      (wrong_BxK * weight_BxK).sum(),
    ),
    "corrected_rows": (row_false_B.sum(), row_used_B.sum()),
  }
