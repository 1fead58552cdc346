"""Masked language modelling on true negatives: BERT's objective.

ELECTRA's generator is a masked language model too, and shares `slot_terms`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from truenegs_jax.config.losses import check_entries, check_smoothing
from truenegs_jax.objectives import masking, negatives, soft_regularization
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
from truenegs_jax.runtime.errors import InputError

Array = jax.Array


def mlm_loss(
  logits_BxKxV: Array,
  gold_BxK: Array,
  weight_BxK: Array | None = None,
  table: negatives.Aux | None = None,
  *,
  words_BxK: Array | None = None,
  hard_correction: bool = True,
  smoothing: float = 0.0,
  smoothing_by: str = "uniform",
) -> tuple[Array, Array]:
  """Sums the loss over the slots that hard correction keeps: (sum, count).

  This is equation 2 of Zhang et al. 2023, for any model: a slot whose likeliest
  token is a synonym of the gold token has no loss, and is not counted. Divide
  the sum by `jnp.maximum(count, 1)`: a batch may have no slot that is kept.

  >>> tokens = ["[MASK]", "main", "primary", "swan"]
  >>> table = SynonymTable.from_pairs([("primary", "main")], tokens)
  >>> gold_BxK = jnp.array([[2, 3]])
  >>> logits_BxKxV = 9.0 * jax.nn.one_hot(jnp.array([[1, 1]]), 4)
  >>> mlm_loss(logits_BxKxV, gold_BxK, None, table.arrays())[1]  # of one slot
  Array(1., dtype=float32)

  Args:
    logits_BxKxV: floats of all tokens, and of up to 127 that pad the model.
    gold_BxK: int32; -100, or any number below 0, for no slot.
    weight_BxK: 1 for a slot in use, else 0; None for 1.
    table: `SynonymTable.arrays`, which corrects; None for the plain loss.
    words_BxK: result of `is_whole_word`; only these slots are corrected and
      smoothed (footnote 5). None: all slots are.
    smoothing: share of the target for synonyms; needs `table.arrays("ids")`.
    smoothing_by: "uniform", "model", "balanced" or "set".
  """
  weight_BxK = jnp.float32(1) if weight_BxK is None else weight_BxK
  open_BxK = jnp.bool(1) if words_BxK is None else words_BxK
  slots = {"gold": gold_BxK, "weight": weight_BxK, "words": open_BxK}
  size = _check_shapes(logits_BxKxV, slots, table)
  open_BxK = open_BxK & (gold_BxK < size)  # what is corrected and smoothed
  weight_BxK = jnp.where(gold_BxK < 0, 0.0, weight_BxK)
  gold_BxK = jnp.maximum(gold_BxK, 0)
  dtype = jnp.promote_types(logits_BxKxV.dtype, jnp.float32)
  logits_BxKxV = logits_BxKxV.astype(dtype)
  loss_BxK = optax.softmax_cross_entropy_with_integer_labels(
    logits_BxKxV, gold_BxK
  )
  if smoothing:
    tokens_BxKxS = negatives.list_synonyms(table or {}, gold_BxK)
    listed_BxKxS = jnp.take_along_axis(logits_BxKxV, tokens_BxKxS, axis=-1)
    change_BxK = smoothing_change(
      listed_BxKxS, tokens_BxKxS, table or {}, smoothing, smoothing_by
    )
    loss_BxK += jnp.where(open_BxK, change_BxK, 0.0)
  if table is not None and hard_correction:
    predicted_BxK = jnp.argmax(logits_BxKxV, axis=-1)
    open_BxK = open_BxK & (predicted_BxK < size)
    false_BxK = negatives.false_negatives(table, gold_BxK, predicted_BxK)
    weight_BxK = jnp.where(open_BxK & false_BxK, 0.0, weight_BxK)
  return weighted_sum(loss_BxK, weight_BxK)


def _check_shapes(
  logits_BxKxV: Array, slots: Mapping[str, Array], table: negatives.Aux | None
) -> int:
  """Returns the number of tokens; InputError for arrays of other shapes."""
  if not isinstance(table, Mapping | None):
    raise InputError("table is not arrays of a device. Pass table.arrays().")
  *shape, size = jnp.shape(logits_BxKxV)
  for name, array_BxK in slots.items():
    if jnp.ndim(array_BxK) and [*jnp.shape(array_BxK)] != shape:
      raise InputError(
        f"{name}_BxK has the shape {jnp.shape(array_BxK)}, but logits_BxKxV"
        f" {jnp.shape(logits_BxKxV)}. Pass {(*shape,)}."
      )
  rows = [len(x) for name, x in (table or {}).items() if "_Vx" in name]
  check_entries(size, min(rows, default=size))
  return min(rows, default=size)


def mlm_terms(
  params: optax.Params,
  batch: Batch,
  keys_B: Array,
  aux: negatives.Aux,
  *,
  model: Any,
  options: Options,
  train: bool,
) -> Terms:
  """Computes BERT's losses and statistics of one batch.

  The terms are `mlm`, `soft` and `sentence`, with the arguments of ELECTRA's
  objective; the model needs the methods of `pretrain.BertMlm` only. There is no
  next-sentence prediction.

  >>> tokenizer = load_tokenizer("rows/vocab.txt", lowercase=True)
  >>> model = make_bert(vocab_size=38, variant="tiny")
  >>> params = jax.jit(lambda key: init_params(model, key))(jax.random.key(0))
  >>> masking = MaskingOptions.for_tokenizer(tokenizer)
  >>> options = Options(masking, hard_correction=False, soft_weight=1.0)
  >>> batch = next(batches("rows", 4, tokenizer=tokenizer))
  >>> batch = jax.tree.map(jnp.asarray, batch)
  >>> keys_B = row_keys(jax.random.key(0), 0, batch["row"])
  >>> terms = mlm_terms(
  ...   params, batch, keys_B, {}, model=model, options=options, train=True
  ... )
  >>> sorted(terms)
  ['mlm', 'pair_cosine', 'soft']
  """
  bound = model.bind({"params": params})
  inputs = batch, keys_B, aux, options
  predictions = mask_and_predict(bound, *inputs, train=train)
  terms = slot_terms(bound, predictions, *inputs, train=train)
  if options.soft_weight or not train:
    pair = soft_regularization.gather_embeddings(
      bound, predictions.slots.gold_BxK, predictions.predicted_BxK
    )
    terms["soft"] = soft_regularization.word_term(predictions, options, *pair)
  if options.sentence_weight:
    keys = dropout_keys(keys_B, rng.GENERATOR_DROPOUT, train=train)
    terms["sentence"] = soft_regularization.sentence_term(
      bound.encode, batch, predictions, keys
    )
  return terms


def slot_terms(
  bound: Any,
  predictions: SlotPredictions,
  batch: Batch,
  keys_B: Array,
  aux: negatives.Aux,
  options: Options,
  *,
  train: bool,
) -> Terms:
  """Computes the terms of the masked language model.

  These are `mlm`, the loss over the slots that hard correction keeps (Zhang et
  al. 2023, equation 2), and `_corrected_shares`; `mlm_uncorrected`, the plain
  cross-entropy of all slots, if it differs; in evaluation `mlm_hidden`, that of
  slots that show [MASK]; and `pair_cosine`. Terms of both models belong here.
  """
  terms: Terms = {}
  kept_BxK = weight_BxK = predictions.slots.weight_BxK
  if options.hard_correction:
    false_BxK = weight_BxK * find_false_negatives(
      batch, predictions, predictions.predicted_BxK, aux, options
    )
    kept_BxK -= false_BxK
    terms |= _corrected_shares(false_BxK, predictions)
  if options.drop_prob and train:
    drop_keys_B = rng.purpose_keys(keys_B, rng.DROP)
    uniform_BxK = rng.uniform(drop_keys_B, weight_BxK.shape[1:])
    kept_BxK *= uniform_BxK >= options.drop_prob
  loss_BxK = predictions.loss_BxK
  if options.smoothing:
    loss_BxK += _smoothing_terms(batch, predictions, aux, options)
  terms["mlm"] = weighted_sum(loss_BxK, kept_BxK)
  if options.hard_correction or options.smoothing or options.drop_prob:
    terms["mlm_uncorrected"] = weighted_sum(predictions.loss_BxK, weight_BxK)
  if not train:
    # 15 % of ELECTRA's slots show the gold token. Copying these alone lowers
    # the loss by a seventh, without any knowledge of language.
    hidden_BxK = predictions.inputs_BxK == options.masking.mask_id
    terms["mlm_hidden"] = weighted_sum(
      predictions.loss_BxK, weight_BxK * hidden_BxK
    )
  terms["pair_cosine"] = soft_regularization.pair_cosine(bound)
  return terms


def is_whole_word(
  batch: Batch, positions_BxK: Array, edges_V: Array | np.ndarray
) -> Array:
  """True `[B, K]` where a token is no piece of a word of its document.

  >>> words = ["[PAD]", "swan", "##s", "sing"]
  >>> batch = {"tokens": jnp.array([[1, 2, 3]]), "documents": jnp.ones((1, 3))}
  >>> is_whole_word(batch, jnp.array([[0, 1, 2]]), word_edges(words))
  Array([[False, False,  True]], dtype=bool)

  The tokens of `batch` are not masked. `edges_V`: see `word_edges`.
  """
  joined_BxJ = masking.join_pieces(batch["tokens"], batch["documents"], edges_V)
  split_BxL = jnp.pad(joined_BxJ, ((0, 0), (0, 1)))
  split_BxL |= jnp.pad(joined_BxJ, ((0, 0), (1, 0)))
  return ~jnp.take_along_axis(split_BxL, positions_BxK, axis=1)


def find_false_negatives(
  batch: Batch,
  predictions: SlotPredictions,
  tokens_BxK: Array,
  aux: negatives.Aux,
  options: Options,
) -> Array:
  """True `[B, K]` where a token is a false negative by table or teacher."""
  slots = predictions.slots
  if predictions.judgement:
    is_false_BxK = predictions.judgement.fits(tokens_BxK)
  else:
    is_false_BxK = negatives.false_negatives(aux, slots.gold_BxK, tokens_BxK)
  if options.strict_subword:
    is_false_BxK &= is_whole_word(batch, slots.positions_BxK, aux["edges_V"])
  return is_false_BxK


def _smoothing_terms(
  batch: Batch,
  predictions: SlotPredictions,
  aux: negatives.Aux,
  options: Options,
) -> Array:
  """Returns what smoothing adds to the loss of whole words, `[B, K]`."""
  logits_BxKxS = predictions.listed_logits_BxKxS
  if predictions.judgement:
    change_BxK = predictions.judgement.target_change(logits_BxKxS)
    change_BxK *= options.smoothing
  else:
    change_BxK = smoothing_change(
      logits_BxKxS,
      predictions.listed_BxKxS,
      aux,
      options.smoothing,
      options.smoothing_by,
    )
  if options.strict_subword:
    positions_BxK = predictions.slots.positions_BxK
    words_BxK = is_whole_word(batch, positions_BxK, aux["edges_V"])
    change_BxK = jnp.where(words_BxK, change_BxK, 0.0)
  return change_BxK


def smoothing_change(
  logits_BxKxS: Array,
  tokens_BxKxS: Array,
  aux: negatives.Aux,
  share: float,
  by: str,
) -> Array:
  """Returns what smoothing adds to the cross-entropy of each slot, `[B, K]`.

  A share of the target moves from the gold token to its synonyms. With logits
  z, p = softmax(z), a gold token g, its synonyms N and the share e, these are

    uniform   e (z[g] - mean of z[N]): every synonym gets the same
    model     e (z[g] - logsumexp of z[N + g]): as much as the model gives it
    balanced  e times the sum over s of q[s] log(p[g] / (p[g] + p[s])), which is
              strictly proper for every lexicon
    set       z[g] - logsumexp of z[N + g]: the loss is -log p[N + g]

  `rates_VxS` of a table has q, 1 / the longer of the two tokens' lists. Only
  the listed logits are read. See docs/explanation/proper_corrections.md.

  `tokens_BxKxS` are the result of `negatives.list_synonyms`. For "balanced",
  `aux` is `SynonymTable.arrays(rates=True)`.
  """
  check_smoothing(share, by)
  gold_BxKx1 = tokens_BxKxS[..., :1]
  is_synonym_BxKxS = tokens_BxKxS != gold_BxKx1
  if by in ("model", "set"):
    in_set_BxKxS = is_synonym_BxKxS.at[..., 0].set(True)
    log_set_BxK = jax.nn.logsumexp(logits_BxKxS, axis=-1, where=in_set_BxKxS)
    return share * (logits_BxKxS[..., 0] - log_set_BxK)
  margin_BxKxS = logits_BxKxS[..., :1] - logits_BxKxS
  if by == "uniform":
    sum_BxK = jnp.where(is_synonym_BxKxS, margin_BxKxS, 0.0).sum(axis=-1)
    return share * sum_BxK / jnp.maximum(is_synonym_BxKxS.sum(axis=-1), 1)
  if "rates_VxS" not in aux:
    raise InputError(
      "smoothing_by='balanced' needs the rates of a synonym table. Pass"
      " table.arrays(rates=True)."
    )
  rates_BxKxS = jnp.asarray(aux["rates_VxS"])[gold_BxKx1[..., 0]]
  choice_BxKxS = jax.nn.log_sigmoid(margin_BxKxS[..., 1:])
  return share * (rates_BxKxS * choice_BxKxS).sum(axis=-1)


def _corrected_shares(false_BxK: Array, predictions: SlotPredictions) -> Terms:
  """Returns the shares of table 2 (Zhang et al. 2023).

  These are the corrected slots among all, and among those whose prediction is
  not the gold token, and the rows that have one.
  """
  used_BxK = predictions.slots.weight_BxK
  wrong_BxK = used_BxK * (
    predictions.predicted_BxK != predictions.slots.gold_BxK
  )
  row_false_B = false_BxK.max(axis=1)
  row_used_B = used_BxK.max(axis=1)
  return {
    "corrected_of_slots": (false_BxK.sum(), used_BxK.sum()),
    "corrected_of_mismatches": ((false_BxK * wrong_BxK).sum(), wrong_BxK.sum()),
    "corrected_rows": (row_false_B.sum(), row_used_B.sum()),
  }
