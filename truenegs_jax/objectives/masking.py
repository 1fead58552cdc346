"""Which tokens are hidden and predicted: K slots of every row, on the device.

ELECTRA's masking (google-research/electra, `pretrain_helpers.py:mask`) with one
change: positions are drawn without replacement. The released code draws with
replacement, so that some slots fall together and the discriminator then sees
the average of two token ids (its author calls sampling without replacement the
fix, issue 41).

The number of slots K is fixed by the length of a row, for static shapes; slots
that a short row does not need have weight 0 and position 0.
"""

import dataclasses

import jax
import jax.numpy as jnp

from truenegs_jax import randomness

Array = jax.Array

KEEP_PROBABILITY = 0.15  # of a chosen token to stay visible; no random tokens
POSITION_SITE, KEEP_SITE = range(2)


@dataclasses.dataclass(frozen=True)
class MaskingOptions:
  """What masking needs to know of the vocabulary and of the recipe."""

  mask_id: int
  never_masked: tuple[int, ...]  # [CLS], [SEP] and [MASK] itself
  mask_prob: float = 0.15


@dataclasses.dataclass(frozen=True)
class Slots:
  """The K predicted slots of each row of a batch."""

  positions_BxK: Array  # int32; 0 where the weight is 0
  original_BxK: Array  # int32, the gold tokens
  weight_BxK: Array  # f32, 1 for a slot in use


jax.tree_util.register_dataclass(
  Slots, ["positions_BxK", "original_BxK", "weight_BxK"], []
)


def num_slots(length: int, mask_prob: float) -> int:
  """K for rows of `length`: 19 of 128, 79 of 512 at 15 %; at least 1."""
  return max(1, int((mask_prob + 0.005) * length))


def hide_slots(
  tokens_BxL: Array,
  documents_BxL: Array,
  keys_B: Array,
  options: MaskingOptions,
) -> tuple[Slots, Array]:
  """The slots to predict and the tokens `[B, L]` with them hidden."""
  slots = choose_slots(tokens_BxL, documents_BxL, keys_B, options)
  return slots, apply_mask(tokens_BxL, slots, keys_B, options)


def choose_slots(
  tokens_BxL: Array,
  documents_BxL: Array,
  keys_B: Array,
  options: MaskingOptions,
) -> Slots:
  """Draws the positions to predict, uniformly and without replacement.

  A row with n real tokens (special ones included) gets round(mask_prob * n)
  slots, halves to even, at least 1 and at most K; never more than it has
  candidates, so a row without any has no slot in use.
  """
  real_BxL = documents_BxL != 0
  forbidden = jnp.array(options.never_masked, tokens_BxL.dtype)
  candidate_BxL = real_BxL & ~jnp.isin(tokens_BxL, forbidden)
  length = tokens_BxL.shape[1]
  k = num_slots(length, options.mask_prob)
  uniform_BxL = randomness.uniform(keys_B, (length,), site=POSITION_SITE)
  score_BxL = jnp.where(candidate_BxL, uniform_BxL, -1.0)
  _, positions_BxK = jax.lax.top_k(score_BxL, k)
  wanted_B = jnp.round(options.mask_prob * real_BxL.sum(axis=1))
  wanted_B = jnp.minimum(jnp.clip(wanted_B, 1, k), candidate_BxL.sum(axis=1))
  used_BxK = jnp.arange(k)[None] < wanted_B[:, None]
  positions_BxK = jnp.where(used_BxK, positions_BxK, 0)
  original_BxK = jnp.take_along_axis(tokens_BxL, positions_BxK, axis=1)
  return Slots(positions_BxK, original_BxK, used_BxK.astype(jnp.float32))


def apply_mask(
  tokens_BxL: Array, slots: Slots, keys_B: Array, options: MaskingOptions
) -> Array:
  """Hides the slots behind [MASK], but for the 15 % that stay visible."""
  k = slots.positions_BxK.shape[1]
  keep_BxK = randomness.uniform(keys_B, (k,), site=KEEP_SITE) < KEEP_PROBABILITY
  shown_BxK = jnp.where(keep_BxK, slots.original_BxK, options.mask_id)
  return fill_slots(tokens_BxL, slots, shown_BxK)


def fill_slots(tokens_BxL: Array, slots: Slots, values_BxK: Array) -> Array:
  """Writes one value into each slot in use and leaves all else alone."""
  length = tokens_BxL.shape[1]
  target_BxK = jnp.where(slots.weight_BxK > 0, slots.positions_BxK, length)
  rows_Bx1 = jnp.arange(tokens_BxL.shape[0])[:, None]
  return tokens_BxL.at[rows_Bx1, target_BxK].set(
    values_BxK.astype(tokens_BxL.dtype), mode="drop"
  )
