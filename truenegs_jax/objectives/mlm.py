"""Masked language modelling on true negatives: BERT's objective.

ELECTRA's generator is a masked language model too, so the corrected loss of
the slots and its statistics are shared from here. Every term is a
(sum, count): whoever differentiates or reports divides, over the global batch.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from truenegs_jax.objectives import (
  negatives,
  slot_predictions,
  soft_regularization,
)
from truenegs_jax.objectives.options import Options
from truenegs_jax.objectives.slot_predictions import (
  Batch,
  SlotPredictions,
  Terms,
  weighted_sum,
)
from truenegs_jax.runtime import rng

Array = jax.Array


def mlm_terms(
  params: Any,
  batch: Batch,
  keys_B: Array,
  aux: Mapping[str, Array],
  *,
  model: Any,
  options: Options,
  train: bool,
) -> Terms:
  """Sums and counts of BERT's loss and statistics on one batch.

  `mlm`: the slots kept by hard correction (Zhang et al. 2023, equation 2);
  `soft` (in evaluation with a weight of 0, too) and `sentence`: as in
  `soft_regularization`. No next-sentence prediction. Arguments and the other
  terms are those of `electra.electra_terms`; the model needs no `judge`.
  """
  bound = model.bind({"params": params})
  guess = slot_predictions.mask_and_predict(
    bound, batch, keys_B, options, train=train
  )
  terms = slot_terms(bound, batch, guess, aux, options, train=train)
  if options.soft_weight or not train:
    pair = soft_regularization.gather_embeddings(
      bound, guess.slots.gold_BxK, guess.predicted_BxK
    )
    terms["soft"] = soft_regularization.word_term(bound, guess, options, *pair)
  if options.sentence_weight:
    purpose = rng.GENERATOR_DROPOUT
    keys = slot_predictions.dropout_keys(keys_B, purpose, train=train)
    terms["sentence"] = soft_regularization.sentence_term(
      bound.encode, batch, guess, keys, options
    )
  return terms


def slot_terms(
  bound: Any,
  batch: Batch,
  guess: SlotPredictions,
  aux: Mapping[str, Array],
  options: Options,
  *,
  train: bool,
) -> Terms:
  """The masked language model's loss and its correction.

  In evaluation `mlm_hidden` is the plain loss of the slots behind [MASK].
  `pair_cosine` detects a collapse of the word table. Without a slot, or with
  all corrected, sum and count are 0.
  """
  weight_BxK = guess.slots.weight_BxK
  loss_BxK = _loss(guess, aux, options)
  terms = {"mlm": weighted_sum(loss_BxK, weight_BxK)}
  if options.hard_correction:
    terms |= _corrected_terms(loss_BxK, batch, guess, aux, options)
  if options.changes_mlm:
    terms["mlm_uncorrected"] = weighted_sum(guess.loss_BxK, weight_BxK)
  if not train:
    # 15 % of ELECTRA's slots stay visible and can be copied: they alone take a
    # seventh off the loss of a model that has learned nothing about language.
    hidden_BxK = guess.inputs_BxK == options.masking.mask_id
    terms["mlm_hidden"] = weighted_sum(guess.loss_BxK, weight_BxK * hidden_BxK)
  terms["pair_cosine"] = soft_regularization.pair_cosine(bound)
  return terms


def is_word_end(
  batch: Batch, positions_BxK: Array, continues_V: Array | np.ndarray
) -> Array:
  """True where the next token of the same document is not a `##` piece.

  `continues_V`: bool, true for the `##` pieces of the vocabulary.
  """
  following = lambda x_BxL: jnp.take_along_axis(
    jnp.pad(x_BxL[:, 1:], ((0, 0), (0, 1))), positions_BxK, axis=1
  )
  documents_BxL = batch["documents"]
  own_BxK = jnp.take_along_axis(documents_BxL, positions_BxK, axis=1)
  same_BxK = following(documents_BxL) == own_BxK
  return ~(same_BxK & jnp.asarray(continues_V)[following(batch["tokens"])])


def _loss(
  guess: SlotPredictions, aux: Mapping[str, Array], options: Options
) -> Array:
  """The loss of each slot before correction.

  Smoothing moves a share of the target from the gold token to its synonyms:
  their cross-entropies differ by their logits alone.
  """
  if options.temperature == 1.0 and not options.smoothing:
    return guess.loss_BxK
  gold_BxK = guess.slots.gold_BxK
  scaled_BxKxV = guess.logits_BxKxV / options.temperature
  loss_BxK = optax.softmax_cross_entropy_with_integer_labels(
    scaled_BxKxV, gold_BxK
  )
  if not options.smoothing:
    return loss_BxK
  mean_BxK, has_BxK = negatives.synonym_mean(aux, gold_BxK, scaled_BxKxV)
  gold_BxKx1 = jnp.take_along_axis(scaled_BxKxV, gold_BxK[..., None], -1)
  moved_BxK = options.smoothing * (gold_BxKx1[..., 0] - mean_BxK)
  return loss_BxK + jnp.where(has_BxK, moved_BxK, 0.0)


def _corrected_terms(
  loss_BxK: Array,
  batch: Batch,
  guess: SlotPredictions,
  aux: Mapping[str, Array],
  options: Options,
) -> Terms:
  """The loss over the kept slots, and how much was corrected (table 2)."""
  gold_BxK, weight_BxK = guess.slots.gold_BxK, guess.slots.weight_BxK
  is_false_BxK = negatives.false_negatives(
    aux, gold_BxK, guess.predicted_BxK, include_self=options.include_self
  )
  if options.strict_subword:
    is_false_BxK &= is_word_end(
      batch, guess.slots.positions_BxK, aux["continues_V"]
    )
  false_BxK = weight_BxK * is_false_BxK
  wrong_BxK = weight_BxK * (guess.predicted_BxK != gold_BxK)
  row_false_B, row_used_B = false_BxK.max(axis=1), weight_BxK.max(axis=1)
  kept, num_kept = weighted_sum(loss_BxK, weight_BxK - false_BxK)
  slots = weight_BxK.sum()
  return {
    "mlm": (kept, num_kept if options.normalizer == "kept" else slots),
    "corrected_of_slots": (false_BxK.sum(), slots),
    "corrected_of_mismatches": (
      (false_BxK * wrong_BxK).sum(),
      wrong_BxK.sum(),
    ),
    "corrected_rows": (row_false_B.sum(), row_used_B.sum()),
  }
