"""ELECTRA on true negatives: mask, generate, correct, sample, detect.

The objective is one pure function from parameters and a batch to a dict of
(sum, count) pairs. It divides nothing: whoever differentiates or reports does,
once, over the global batch. The model is any object with `generate_logits`,
`detect_logits` and `token_embedding` once bound to parameters.
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

HISTOGRAM_BINS = 400
HISTOGRAM_RANGE = 10.0  # logits beyond +-10 share the outermost bins


@dataclasses.dataclass(frozen=True)
class ElectraOptions:
  """What decides the objective beside the model and its parameters."""

  masking: masking.MaskingOptions
  temperature: float = 1.0  # of the generator's sampling
  hard_correction: bool = True
  prediction: str = "argmax"  # or "sample": what hard and soft terms judge
  normalizer: str = "kept"  # or "slots": what the corrected loss divides by
  soft: str = "cosine"
  soft_weight: float = 0.0  # 0 leaves the term out altogether


def electra_terms(
  params: Any,
  batch: Mapping[str, Array],
  keys_B: Array,
  aux: Mapping[str, Array],
  *,
  model: Any,
  options: ElectraOptions,
  train: bool,
) -> Terms:
  """Sums and counts of every loss and statistic of one batch.

  Losses: `mlm` (slots kept by hard correction, Zhang et al. 2023, equation 2),
  `detect` (all real tokens, Clark et al. 2020, section 3.1), `soft` (equation
  3; all slots). Without a slot, or with all corrected, sum and count are 0.

  Args:
    params: tree of the model's parameters.
    batch: `tokens`, `types`, `documents`, each int32 `[B, L]`.
    keys_B: one typed key a row (`randomness.row_keys`).
    aux: device arrays that are no parameters: `bits_VxW` for hard correction.
    model: unbound linen module.
    options: the recipe.
    train: whether dropout is on.

  Returns:
    name -> (sum, count), f32 scalars; `detect_histogram`: histograms of the
    detection logits of (replaced, original) tokens. `mlm_hidden` (the slots
    behind [MASK]) is there only where `train` is False.
  """
  bound = model.bind({"params": params})
  keys = lambda purpose: randomness.purpose_keys(keys_B, purpose)
  dropout_keys = lambda purpose: keys(purpose) if train else None
  tokens_BxL, documents_BxL = batch["tokens"], batch["documents"]
  slots, masked_BxL = masking.hide_slots(
    tokens_BxL, documents_BxL, keys(randomness.MASK), options.masking
  )
  logits_BxKxV = bound.generate_logits(
    {**batch, "tokens": masked_BxL},
    slots.positions_BxK,
    dropout_keys(randomness.GENERATOR_DROPOUT),
  )
  sampled_BxK = negatives.sample(
    logits_BxKxV, keys(randomness.SAMPLE), options.temperature
  )
  terms = _generator_terms(
    bound, slots, logits_BxKxV, sampled_BxK, aux, options
  )
  if not train:
    terms["mlm_hidden"] = _hidden_loss(
      logits_BxKxV, slots, masked_BxL, options.masking.mask_id
    )
  corrupted_BxL = masking.fill_slots(tokens_BxL, slots, sampled_BxK)
  detect_BxL = bound.detect_logits(
    {**batch, "tokens": corrupted_BxL},
    dropout_keys(randomness.DISCRIMINATOR_DROPOUT),
  )
  # ELECTRA counts a lucky sample, equal to the original, as original.
  replaced_BxL = corrupted_BxL != tokens_BxL
  return terms | _detection_terms(detect_BxL, replaced_BxL, documents_BxL != 0)


def weighted_sum(loss: Array, weight: Array) -> tuple[Array, Array]:
  """(sum, count) over the entries of positive weight."""
  loss = jnp.where(weight > 0, loss * weight, 0.0)  # 0 * nan is nan
  return loss.sum(), weight.sum().astype(jnp.float32)


def _generator_terms(
  bound: Any,
  slots: masking.Slots,
  logits_BxKxV: Array,
  sampled_BxK: Array,
  aux: Mapping[str, Array],
  options: ElectraOptions,
) -> Terms:
  """The masked language model's loss, its correction and regularization."""
  weight_BxK, original_BxK = slots.weight_BxK, slots.original_BxK
  loss_BxK = optax.softmax_cross_entropy_with_integer_labels(
    logits_BxKxV, original_BxK
  )
  terms = {"mlm": weighted_sum(loss_BxK, weight_BxK)}
  if not options.hard_correction and not options.soft_weight:
    return terms  # plain ELECTRA, not an instruction more
  predicted_BxK = sampled_BxK
  if options.prediction == "argmax":
    predicted_BxK = negatives.predict(logits_BxKxV)
  if options.hard_correction:
    false_BxK = negatives.false_negatives(
      aux["bits_VxW"], original_BxK, predicted_BxK
    )
    wrong_BxK = predicted_BxK != original_BxK
    terms |= _corrected_terms(loss_BxK, false_BxK, wrong_BxK, weight_BxK)
    if options.normalizer == "slots":
      terms["mlm"] = (terms["mlm"][0], weight_BxK.sum())
  if options.soft_weight:
    soft_BxK = regularizers.get(options.soft)(
      bound.token_embedding(original_BxK), bound.token_embedding(predicted_BxK)
    )
    terms["soft"] = weighted_sum(soft_BxK, weight_BxK)
  return terms


def _hidden_loss(
  logits_BxKxV: Array, slots: masking.Slots, masked_BxL: Array, mask_id: int
) -> tuple[Array, Array]:
  """The loss of the slots behind [MASK], corrected or not.

  The 15 % of slots that stay visible can be copied: they alone take a seventh
  off the loss of a generator that has learned nothing about language.
  """
  loss_BxK = optax.softmax_cross_entropy_with_integer_labels(
    logits_BxKxV, slots.original_BxK
  )
  shown_BxK = jnp.take_along_axis(masked_BxL, slots.positions_BxK, axis=1)
  return weighted_sum(loss_BxK, slots.weight_BxK * (shown_BxK == mask_id))


def _corrected_terms(
  loss_BxK: Array, false_BxK: Array, wrong_BxK: Array, weight_BxK: Array
) -> Terms:
  """The loss over the kept slots, and how much was corrected (table 2)."""
  false_BxK = false_BxK * weight_BxK
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


def _detection_terms(
  detect_BxL: Array, replaced_BxL: Array, real_BxL: Array
) -> Terms:
  """The discriminator's loss and what its judgement is measured by."""
  loss_BxL = optax.sigmoid_binary_cross_entropy(
    detect_BxL, replaced_BxL.astype(jnp.float32)
  )
  real_BxL = real_BxL.astype(jnp.float32)
  replaced_BxL = replaced_BxL.astype(jnp.float32) * real_BxL
  bin_BxL = jnp.clip(
    (detect_BxL + HISTOGRAM_RANGE) * (HISTOGRAM_BINS / 2 / HISTOGRAM_RANGE),
    0,
    HISTOGRAM_BINS - 1,
  ).astype(jnp.int32)
  histogram_C = lambda weight_BxL: (
    jnp.zeros(HISTOGRAM_BINS).at[bin_BxL].add(weight_BxL)
  )
  return {
    "detect": weighted_sum(loss_BxL, real_BxL),
    "replaced": (replaced_BxL.sum(), real_BxL.sum()),
    "detect_histogram": (
      histogram_C(replaced_BxL),
      histogram_C(real_BxL - replaced_BxL),
    ),
  }
