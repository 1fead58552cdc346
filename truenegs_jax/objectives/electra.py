"""ELECTRA on true negatives: mask, generate, correct, sample, detect.

The objective is one pure function from parameters and a batch to a dict of
(sum, count) pairs. It divides nothing: whoever differentiates or reports does,
once, over the global batch. The model is any object with `generate_logits`,
`encode`, `judge` and `token_embedding` once bound to parameters.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from truenegs_jax import randomness
from truenegs_jax.objectives import masking, mlm

Array = jax.Array

HISTOGRAM_BINS = 400
HISTOGRAM_RANGE = 10.0  # logits beyond +-10 share the outermost bins


def electra_terms(
  params: Any,
  batch: Mapping[str, Array],
  keys_B: Array,
  aux: Mapping[str, Array],
  *,
  model: Any,
  options: mlm.Options,
  train: bool,
) -> mlm.Terms:
  """Sums and counts of every loss and statistic of one batch.

  Losses: `mlm` (the generator's slots kept by hard correction, Zhang et al.
  2023, equation 2), `detect` (all real tokens, Clark et al. 2020, section 3.1),
  `soft` (equation 3; all slots), `sentence` (all real tokens, as the
  discriminator encodes them). Without a slot, or with all corrected, sum and
  count of `mlm` are 0.

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
  guess = mlm.guess_slots(bound, batch, keys_B, options, train=train)
  terms = mlm.slot_terms(bound, guess, aux, options)
  if not train:
    terms["mlm_hidden"] = mlm.hidden_loss(guess, options.masking.mask_id)
  tokens_BxL = batch["tokens"]
  corrupted_BxL = masking.fill_slots(tokens_BxL, guess.slots, guess.sampled_BxK)
  dropout_keys_B = mlm.dropout_keys(
    keys_B, randomness.DISCRIMINATOR_DROPOUT, train=train
  )
  hidden_BxLxD = bound.encode(
    {**batch, "tokens": corrupted_BxL}, dropout_keys_B
  )
  detect_BxL = bound.judge(hidden_BxLxD)
  if options.sentence_weight:
    if options.prediction != "sample":  # else it is the sentence just encoded
      predicted = mlm.predicted_inputs(batch, guess)
      hidden_BxLxD = bound.encode(predicted, dropout_keys_B)
    terms["sentence"] = mlm.sentence_term(
      bound, hidden_BxLxD, batch, dropout_keys_B
    )
  # ELECTRA counts a lucky sample, equal to the original, as original.
  replaced_BxL = corrupted_BxL != tokens_BxL
  return terms | _detection_terms(
    detect_BxL, replaced_BxL, batch["documents"] != 0
  )


def _detection_terms(
  detect_BxL: Array, replaced_BxL: Array, real_BxL: Array
) -> mlm.Terms:
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
    "detect": mlm.weighted_sum(loss_BxL, real_BxL),
    "replaced": (replaced_BxL.sum(), real_BxL.sum()),
    "detect_histogram": (
      histogram_C(replaced_BxL),
      histogram_C(real_BxL - replaced_BxL),
    ),
  }
