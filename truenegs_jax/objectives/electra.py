"""ELECTRA on true negatives: mask, generate, correct, sample, detect.

The objective is one pure function from parameters and a batch to a dict of
(sum, count) pairs. It divides nothing: whoever differentiates or reports does,
once, over the global batch. The model is any object with `generate_vectors`,
`output_layer`, `encode`, `judge`, `token_embedding` and, for some readings,
`generate_logits`, `encode_generator`, `mean_embedding` and `embed_slots` once
bound to parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from truenegs_jax.objectives import masking, mlm, negatives, soft_regularization
from truenegs_jax.objectives.fill_slots import (
  Batch,
  Guess,
  Terms,
  dropout_keys,
  guess_slots,
  predicted_inputs,
  weighted_sum,
)
from truenegs_jax.objectives.options import Options
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
  `soft` (equation 3; all slots), `sentence` (by default of all real tokens, as
  the discriminator encodes them). Without a slot, or with all corrected, sum
  and count of `mlm` are 0.

  Args:
    params: tree of the model's parameters.
    batch: `tokens`, `types`, `documents`, each int32 `[B, L]`.
    keys_B: one typed key a row (`randomness.row_keys`).
    aux: device arrays that are no parameters: the synonym table (see
      `negatives`) for hard correction, smoothing and `discriminator`;
      `continues_V` (bool, true for `##` pieces) for `strict_subword`.
    model, options: an unbound linen module, and the recipe.
    train: whether dropout is on.

  Returns:
    name -> (sum, count), f32 scalars; `detect_histogram`: of the detection
    logits of (replaced, original) tokens. `mlm_hidden`: not in training.
  """
  bound = model.bind({"params": params})
  guess = guess_slots(bound, batch, keys_B, options, train=train)
  terms = mlm.slot_terms(bound, batch, guess, aux, options, train=train)
  tokens_BxL = batch["tokens"]
  corrupted_BxL = masking.fill_slots(tokens_BxL, guess.slots, guess.sampled_BxK)
  keys = lambda purpose: dropout_keys(keys_B, purpose, train=train)
  has_soft = options.soft_weight or not train
  tokens = soft_regularization.compared_tokens(guess) if has_soft else ()
  words_BxLxE, *compared = soft_regularization.gather_once(
    bound, corrupted_BxL, *tokens
  )
  if has_soft:
    terms["soft"] = soft_regularization.word_term(
      bound, guess, options, compared
    )
  hidden_BxLxD = bound.encode(
    {**batch, "tokens": corrupted_BxL},
    keys(rng.DISCRIMINATOR_DROPOUT),
    words_BxLxE,
  )
  if options.sentence_weight:
    terms["sentence"] = _sentence_term(
      bound, hidden_BxLxD, batch, guess, keys, options
    )
  return terms | _detection_terms(
    bound.judge(hidden_BxLxD),
    # ELECTRA counts a lucky sample, equal to the original, as original.
    corrupted_BxL != tokens_BxL,
    batch["documents"] != 0,
    _spared(batch, guess, aux, options),
    options,
  )


def _sentence_term(
  bound: Any,
  corrupted_BxLxD: Array,
  batch: Batch,
  guess: Guess,
  keys: Callable[[int], Array | None],
  options: Options,
) -> tuple[Array, Array]:
  """`soft.sentence_term` by the network that the options name.

  Args:
    corrupted_BxLxD: what the discriminator made of the sampled sentences.
    keys: purpose -> dropout keys.
  """
  if options.sentence_encoder == "generator":
    encode, keys_B = bound.encode_generator, keys(rng.GENERATOR_DROPOUT)
  else:
    encode, keys_B = bound.encode, keys(rng.DISCRIMINATOR_DROPOUT)
    if options.prediction == "sample":  # these are the sampled sentences
      return soft_regularization.sentence_term(
        encode, corrupted_BxLxD, batch, guess, keys_B, options
      )
  predicted_BxLxD = encode(predicted_inputs(batch, guess), keys_B)
  return soft_regularization.sentence_term(
    encode, predicted_BxLxD, batch, guess, keys_B, options
  )


def _spared(
  batch: Batch, guess: Guess, aux: Mapping[str, Array], options: Options
) -> Array | None:
  """True at the tokens that were replaced by a synonym of the original.

  None if nothing becomes of them.
  """
  if options.discriminator == "none":
    return None
  slots = guess.slots
  spared_BxK = negatives.false_negatives(
    aux, slots.original_BxK, guess.sampled_BxK
  )
  if options.strict_subword:
    spared_BxK &= mlm.ends_its_word(
      batch, slots.positions_BxK, aux["continues_V"]
    )
  nowhere_BxL = jnp.zeros(batch["tokens"].shape, bool)
  return masking.fill_slots(nowhere_BxL, slots, spared_BxK)


def _detection_terms(
  detect_BxL: Array,
  replaced_BxL: Array,
  real_BxL: Array,
  spared_BxL: Array | None,
  options: Options,
) -> Terms:
  """The discriminator's loss and what its judgement is measured by."""
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
