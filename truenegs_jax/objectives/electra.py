"""ELECTRA on true negatives: mask, generate, correct, sample, detect.

The objective is one pure function from parameters and a batch to a dict of
(sum, count) pairs: whoever differentiates or reports divides, once, over the
global batch. The model is any object with `generate_vectors`, `output_layer`,
`encode`, `judge`, `token_embedding` and, for some readings, `generate_logits`,
`encode_generator` and `mean_embedding` once bound to parameters.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from truenegs_jax.objectives import masking, mlm, negatives, soft_regularization
from truenegs_jax.objectives.options import Options
from truenegs_jax.objectives.slot_predictions import (
  Batch,
  Terms,
  dropout_keys,
  mask_and_predict,
  weighted_sum,
)
from truenegs_jax.runtime import rng

Array = jax.Array

HISTOGRAM_BINS = 400
HISTOGRAM_RANGE = 10.0  # logits beyond +-10 share the outermost bins


def electra_terms(
  params: Any,
  batch: Batch,
  keys_B: Array,
  aux: Mapping[str, Array],
  *,
  model: Any,
  options: Options,
  train: bool,
) -> Terms:
  """Sums and counts of every loss and statistic of one batch.

  Losses: `mlm` (the generator's slots kept by hard correction, Zhang et al.
  2023, equation 2), `detect` (all real tokens, Clark et al. 2020, section 3.1),
  `soft` (equation 3; all slots), `sentence` (section 5; all real tokens).
  Without a slot, or with all corrected, sum and count of `mlm` are 0.

  Args:
    params: tree of the model's parameters.
    batch: `tokens`, `types`, `documents`, each int32 `[B, L]`.
    keys_B: one typed key a row (`rng.row_keys`).
    aux: device arrays that are no parameters: the synonym table (see
      `negatives`) for hard correction, smoothing and `discriminator`;
      `continues_V` (bool, true for `##` pieces) for `strict_subword`.
    model, options: an unbound linen module, and the recipe.
    train: whether dropout is on.

  Returns:
    name -> (sum, count), f32 scalars; `detect_histogram`: of the detection
    logits of (replaced, original) tokens. `mlm_hidden`: in evaluation alone.
  """
  bound = model.bind({"params": params})
  guess = mask_and_predict(bound, batch, keys_B, options, train=train)
  terms = mlm.slot_terms(bound, batch, guess, aux, options, train=train)
  tokens_BxL, slots = batch["tokens"], guess.slots
  corrupted_BxL = masking.fill_slots(tokens_BxL, slots, guess.sampled_BxK)
  has_soft = options.soft_weight or not train
  words_BxLxE, *pair = soft_regularization.gather_embeddings(
    bound,
    corrupted_BxL,
    *((slots.gold_BxK, guess.predicted_BxK) if has_soft else ()),
  )
  if has_soft:
    terms["soft"] = soft_regularization.word_term(bound, guess, options, *pair)
  keys = dropout_keys(keys_B, rng.DISCRIMINATOR_DROPOUT, train=train)
  hidden_BxLxD = bound.encode(
    {**batch, "tokens": corrupted_BxL}, keys, words_BxLxE
  )
  if options.sentence_weight:
    encode, purpose, encoded = bound.encode, rng.DISCRIMINATOR_DROPOUT, None
    if options.sentence_encoder == "generator":
      encode, purpose = bound.encode_generator, rng.GENERATOR_DROPOUT
    elif options.prediction == "sample":
      encoded = hidden_BxLxD  # the sampled sentences are the predicted ones
    terms["sentence"] = soft_regularization.sentence_term(
      encode,
      batch,
      guess,
      dropout_keys(keys_B, purpose, train=train),
      options,
      encoded,
    )
  detect_BxL = bound.detect(hidden_BxLxD)
  # ELECTRA counts a lucky sample, equal to the original, as original.
  replaced_BxL = corrupted_BxL != tokens_BxL
  real_BxL, spared_BxL = batch["documents"] != 0, None
  if options.discriminator != "none":
    spared_BxK = negatives.false_negatives(
      aux, slots.gold_BxK, guess.sampled_BxK
    )
    if options.strict_subword:
      spared_BxK &= mlm.is_word_end(
        batch, slots.positions_BxK, aux["continues_V"]
      )
    nowhere_BxL = jnp.zeros(tokens_BxL.shape, bool)
    spared_BxL = masking.fill_slots(nowhere_BxL, slots, spared_BxK)
  return terms | _detection_terms(
    detect_BxL, replaced_BxL, real_BxL, spared_BxL, options
  )


def _detection_terms(
  detect_BxL: Array,
  replaced_BxL: Array,
  real_BxL: Array,
  spared_BxL: Array | None,
  options: Options,
) -> Terms:
  """The discriminator's loss, and a histogram of its logits for the AUC.

  `spared_BxL`: true where a synonym replaced the original; None: no matter.
  """
  terms: Terms = {}
  if spared_BxL is not None:
    terms["spared"] = weighted_sum(
      spared_BxL.astype(jnp.float32), real_BxL.astype(jnp.float32)
    )
    replaced_BxL &= ~spared_BxL
    if options.discriminator == "ignore":
      real_BxL &= ~spared_BxL
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
  return terms | {
    "detect": weighted_sum(loss_BxL, real_BxL),
    "replaced": (replaced_BxL.sum(), real_BxL.sum()),
    "detect_histogram": (
      histogram_C(replaced_BxL),
      histogram_C(real_BxL - replaced_BxL),
    ),
  }
