"""ELECTRA's objective on true negatives.

The generator predicts the masked slots, and hard correction drops its false
negatives from its loss. A token sampled from the generator then fills each
slot, and the discriminator detects which tokens were replaced.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from truenegs_jax.objectives import masking, mlm, negatives, soft_regularization
from truenegs_jax.objectives.slot_predictions import (
  Batch,
  Options,
  SlotPredictions,
  Terms,
  dropout_keys,
  mask_and_predict,
  weighted_sum,
)
from truenegs_jax.runtime import rng

Array = jax.Array

HISTOGRAM_BINS = 400
HISTOGRAM_RANGE = 10.0  # logits beyond +-10 are counted in the outermost bins


def detection_loss(
  detect_BxL: Array, replaced_BxL: Array, real_BxL: Array
) -> tuple[Array, Array]:
  """Sums the discriminator's loss over the real tokens: (sum, count), f32.

  >>> logits_BxL = jnp.array([[-9.0, 9.0, 9.0]])  # positive for "replaced"
  >>> replaced_BxL = jnp.array([[0.0, 1.0, 0.0]])
  >>> real_BxL = jnp.array([[True, True, False]])
  >>> total, count = detection_loss(logits_BxL, replaced_BxL, real_BxL)
  >>> round(float(total / count), 4)
  0.0001

  `detect_BxL` are f32 logits (Clark et al. 2020, section 3.1), and the target
  `replaced_BxL` is from 0 (original) to 1. `real_BxL` is 0 for padding.
  """
  loss_BxL = optax.sigmoid_binary_cross_entropy(
    detect_BxL, replaced_BxL.astype(jnp.float32)
  )
  return weighted_sum(loss_BxL, real_BxL.astype(jnp.float32))


def electra_terms(
  params: optax.Params,
  batch: Batch,
  keys_B: Array,
  aux: negatives.Aux,
  *,
  model: Any,
  options: Options,
  train: bool,
) -> Terms:
  """Computes the losses and statistics of one batch.

  >>> model, params, tokenizer = load("runs/demo", report=str)
  >>> table = SynonymTable.from_pairs([], tokenizer.vocab)
  >>> aux = table.arrays() | {"edges_V": word_edges(tokenizer.vocab)}
  >>> options = Options(MaskingOptions.for_tokenizer(tokenizer))
  >>> def loss(params, batch, aux):
  ...   keys_B = row_keys(jax.random.key(0), 0, batch["row"])
  ...   terms = electra_terms(
  ...     params, batch, keys_B, aux, model=model, options=options, train=True
  ...   )
  ...   return total_loss(terms, {"mlm": 1.0, "detect": 50.0})
  >>> batch = next(batches("rows", 4, tokenizer=tokenizer))
  >>> value, grads = jax.jit(jax.value_and_grad(loss))(params, batch, aux)

  The losses are sums, which the training step divides by their counts, once,
  over the global batch: those of `mlm.slot_terms`; `detect`, the binary
  cross-entropy of the discriminator, over the real tokens; `soft` over all
  slots (Zhang et al. 2023, equation 3), if it is weighted, and always in
  evaluation; and `sentence` over all real tokens (section 5), if weighted.

  Args:
    params: of `model`, an unbound module with the methods of `ElectraPair`.
    batch: `tokens`, `types` and `documents`, each int32 `[B, L]`.
    keys_B: one typed key per row (`rng.row_keys`).
    aux: the table or a teacher's parameters, and `edges_V`, where needed.
    model: the networks.
    options: the recipe.
    train: turns dropout on, and leaves out what only evaluation reports.

  Returns:
    name -> (sum, count), f32 scalars. `detect_histogram` is instead a pair of
    histograms `[C]` of the detection logits: replaced and original tokens.
  """
  bound = model.bind({"params": params})
  inputs = batch, keys_B, aux, options
  predictions = mask_and_predict(bound, *inputs, train=train)
  terms = mlm.slot_terms(bound, predictions, *inputs, train=train)
  tokens_BxL = batch["tokens"]
  slots = predictions.slots
  corrupted_BxL = masking.fill_slots(tokens_BxL, slots, predictions.sampled_BxK)
  tokens = [corrupted_BxL]
  if options.soft_weight or not train:
    tokens += [slots.gold_BxK, predictions.predicted_BxK]
  words_BxLxE, *pair = soft_regularization.gather_embeddings(bound, *tokens)
  if pair:
    terms["soft"] = soft_regularization.word_term(predictions, options, *pair)
  keys = dropout_keys(keys_B, rng.DISCRIMINATOR_DROPOUT, train=train)
  hidden_BxLxD = bound.encode(
    {**batch, "tokens": corrupted_BxL}, keys, words_BxLxE
  )
  if options.sentence_weight:
    # The corrupted rows have samples in their slots.
    predicted_BxLxD = hidden_BxLxD if options.prediction == "sample" else None
    terms["sentence"] = soft_regularization.sentence_term(
      bound.encode, batch, predictions, keys, predicted_BxLxD
    )
  return terms | _detection_terms(
    bound.detect(hidden_BxLxD), corrupted_BxL, batch, predictions, aux, options
  )


def _detection_terms(
  detect_BxL: Array,
  corrupted_BxL: Array,
  batch: Batch,
  predictions: SlotPredictions,
  aux: negatives.Aux,
  options: Options,
) -> Terms:
  """Computes the discriminator's loss and the histograms for its AUC.

  `detect_BxL` are f32 logits of the tokens `corrupted_BxL`, positive for
  "replaced". A sample that equals the gold token is original, as in ELECTRA.
  A sampled synonym has the target `options.discriminator_label`, or no loss if
  that is below 0.
  """
  terms: Terms = {}
  real_BxL = batch["documents"] != 0
  replaced_BxL = (corrupted_BxL != batch["tokens"]).astype(jnp.float32)
  if options.spares_synonyms:
    spared_BxK = mlm.find_false_negatives(
      batch, predictions, predictions.sampled_BxK, aux, options
    )
    spared_BxL = masking.fill_slots(
      jnp.zeros(real_BxL.shape, bool), predictions.slots, spared_BxK
    )
    terms["spared"] = weighted_sum(
      spared_BxL.astype(jnp.float32), real_BxL.astype(jnp.float32)
    )
    if options.discriminator_label < 0:
      real_BxL &= ~spared_BxL
    else:
      replaced_BxL = jnp.where(
        spared_BxL, options.discriminator_label, replaced_BxL
      )
  detect = detection_loss(detect_BxL, replaced_BxL, real_BxL)
  real_BxL = real_BxL.astype(jnp.float32)
  replaced_BxL *= real_BxL
  bin_BxL = jnp.clip(
    (detect_BxL + HISTOGRAM_RANGE) * (HISTOGRAM_BINS / 2 / HISTOGRAM_RANGE),
    0,
    HISTOGRAM_BINS - 1,
  ).astype(jnp.int32)
  zeros_C = jnp.zeros(HISTOGRAM_BINS)
  return terms | {
    "detect": detect,
    "replaced": (replaced_BxL.sum(), real_BxL.sum()),
    "detect_histogram": (
      zeros_C.at[bin_BxL].add(replaced_BxL),
      zeros_C.at[bin_BxL].add(real_BxL - replaced_BxL),
    ),
  }
