"""Hides the slots of a batch and predicts them with a masked language model.

`Options` are the recipe of an objective.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from truenegs_jax.config.sections import ObjectiveConfig
from truenegs_jax.objectives import masking, negatives, output_softmax
from truenegs_jax.objectives.teacher import Judgement, Teacher
from truenegs_jax.runtime import rng

Array = jax.Array
Batch = Mapping[str, Array]
Terms = dict[str, tuple[Array, Array]]  # name -> (sum, count)


class Options(ObjectiveConfig, kw_only=False):
  """The recipe of an objective: all of it but the model and its parameters.

  >>> masking = MaskingOptions(mask_id=4, never_masked=(2, 3, 4), vocab_size=9)
  >>> Options(masking).hard_correction
  True
  >>> plain = Options(masking, hard_correction=False)  # ELECTRA's or BERT's
  """

  masking: masking.MaskingOptions
  vocabulary_chunk: int = 0  # of `output_softmax.compute`
  teacher: Teacher | None = None  # in place of a synonym table

  @property
  def needs_rates(self) -> bool:
    """Whether smoothing needs the rates of the synonym table."""
    return self.smoothing > 0 and self.smoothing_by == "balanced"


@dataclasses.dataclass(frozen=True)
class SlotPredictions:
  """The slots of a batch, and the masked language model's outputs for them."""

  slots: masking.Slots
  masked_BxL: Array  # int32, the model's input tokens
  loss_BxK: Array  # f32, the uncorrected cross-entropy of the gold tokens
  sampled_BxK: Array  # int32, drawn from the softmax; the discriminator's input
  predicted_BxK: Array  # int32, the likeliest or the sampled tokens
  # int32, gold tokens and those that share the target; S = 0 without smoothing
  listed_BxKxS: Array
  listed_logits_BxKxS: Array  # f32
  judgement: Judgement | None  # of `Options.teacher`

  @property
  def inputs_BxK(self) -> Array:
    """The model's input token at each slot: [MASK], gold or a random token."""
    positions_BxK = self.slots.positions_BxK
    return jnp.take_along_axis(self.masked_BxL, positions_BxK, axis=1)


def mask_and_predict(
  bound: Any,
  batch: Batch,
  keys_B: Array,
  aux: negatives.Aux,
  options: Options,
  *,
  train: bool,
) -> SlotPredictions:
  """Hides the slots of a batch and predicts them with a bound model.

  `keys_B` has one typed key per row, from which masks, samples and dropout
  draw. Smoothing needs the table in `aux`, which has a teacher's parameters and
  arrays of `masking.hide_slots`, too. `train` turns dropout on.
  """
  purpose_keys = functools.partial(rng.purpose_keys, keys_B)
  mask_keys_B = purpose_keys(rng.MASK)
  slots, masked_BxL = masking.hide_slots(
    batch["tokens"], batch["documents"], mask_keys_B, options.masking, aux
  )
  inputs = (
    {**batch, "tokens": masked_BxL},
    slots.positions_BxK,
    dropout_keys(keys_B, rng.GENERATOR_DROPOUT, train=train),
  )
  keys_B = purpose_keys(rng.SAMPLE)
  chunk = options.vocabulary_chunk
  judgement = None
  if options.teacher:
    judgement = options.teacher.judge(
      aux["teacher"], *inputs[:2], slots.gold_BxK, chunk=chunk
    )
  listed_BxKxS = jnp.zeros((*slots.gold_BxK.shape, 0), jnp.int32)
  if options.smoothing and judgement:
    listed_BxKxS = judgement.token_BxKxS
  elif options.smoothing:
    listed_BxKxS = negatives.list_synonyms(aux, slots.gold_BxK)
  word_VxE, bias_V = bound.output_layer()
  # jit drops the outputs that no term uses.
  output = output_softmax.compute(
    bound.generate_vectors(*inputs),
    word_VxE,
    bias_V,
    slots.gold_BxK,
    keys_B,
    listed_BxKxS=listed_BxKxS,
    chunk=chunk,
  )
  is_sampled = options.prediction == "sample"
  return SlotPredictions(
    slots=slots,
    masked_BxL=masked_BxL,
    loss_BxK=output.loss_BxK,
    sampled_BxK=output.sampled_BxK,
    predicted_BxK=output.sampled_BxK if is_sampled else output.predicted_BxK,
    listed_BxKxS=listed_BxKxS,
    listed_logits_BxKxS=output.listed_BxKxS,
    judgement=judgement,
  )


def dropout_keys(keys_B: Array, purpose: int, *, train: bool) -> rng.Keys:
  """Returns one network's dropout keys, None in evaluation."""
  return rng.purpose_keys(keys_B, purpose) if train else None


def weighted_sum(loss: Array, weight: Array) -> tuple[Array, Array]:
  """Returns (sum, count) over the entries of positive weight, f32.

  >>> weighted_sum(jnp.array([3.0, jnp.nan]), jnp.array([1.0, 0.0]))
  (Array(3., dtype=float32), Array(1., dtype=float32))
  """
  loss = jnp.where(weight > 0, loss * weight, 0.0)  # 0 * nan is nan
  return loss.sum(), weight.sum().astype(jnp.float32)
