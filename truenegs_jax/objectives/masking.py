"""Which tokens are hidden and predicted: K slots of every row, on the device.

ELECTRA's masking (google-research/electra, `pretrain_helpers.py:mask`) with one
change: positions are drawn without replacement. The released code draws with
replacement, so that some slots fall together and the discriminator then sees
the average of two token ids (its author calls sampling without replacement the
fix, issue 41). BERT's differs in what stands in a chosen place: see STYLES.

`with_replacement` draws as the released code does: of 19 slots 17.7 places are
different ones. Such a place counts once for each of its slots, but holds one
token, that of its first slot: never an average.

K is fixed by the length of a row, for static shapes; slots that a short row
does not need have weight 0 and position 0.
"""

import dataclasses

import jax
import jax.numpy as jnp

from truenegs_jax.runtime import rng
from truenegs_jax.runtime.errors import InputError

Array = jax.Array

POSITION_SITE, KEEP_SITE, RANDOM_SITE = range(3)


@dataclasses.dataclass(frozen=True)
class Style:
  """Probabilities that a chosen token stays, or gives way to a random one.

  In all other cases it gives way to [MASK].
  """

  kept: float
  random: float


STYLES: dict[str, Style] = {
  "electra_85_15": Style(kept=0.15, random=0.0),  # as released
  "80_10_10": Style(kept=0.1, random=0.1),  # BERT's, Devlin et al. 2019
  "80_20_0": Style(kept=0.2, random=0.0),  # what the paper's code family does
}


def get_style(name: str) -> Style:
  """Looks a style up by name; InputError lists the known ones."""
  if name not in STYLES:
    known = ", ".join(STYLES)
    raise InputError(f"masking.style {name!r} is unknown; known: {known}.")
  return STYLES[name]


@dataclasses.dataclass(frozen=True)
class MaskingOptions:
  """The vocabulary's and the recipe's part in masking."""

  mask_id: int
  never_masked: tuple[int, ...]  # [CLS], [SEP] and [MASK] itself
  mask_prob: float = 0.15
  style: str = "electra_85_15"
  with_replacement: bool = False
  vocab_size: int = 0  # random tokens are drawn from all of it, as BERT's are

  def __post_init__(self):
    if get_style(self.style).random and self.vocab_size < 1:
      raise InputError(
        f"masking.style {self.style!r} draws random tokens: vocab_size has to"
        f" be at least 1, not {self.vocab_size}."
      )


@dataclasses.dataclass(frozen=True)
class Slots:
  """The K predicted slots of each row of a batch."""

  positions_BxK: Array  # int32; 0 where the weight is 0
  gold_BxK: Array  # int32, the gold tokens
  weight_BxK: Array  # f32, 1 for a slot in use
  distinct: bool = True  # False: slots in use may share a position


jax.tree_util.register_dataclass(
  Slots, ["positions_BxK", "gold_BxK", "weight_BxK"], ["distinct"]
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
  """Draws the positions to predict, uniformly over the candidates.

  A row with n real tokens (special ones included) gets round(mask_prob * n)
  slots, halves to even, at least 1 and at most K; a row without any candidate
  has no slot in use. Without replacement no row has more slots than candidates.
  """
  real_BxL = documents_BxL != 0
  forbidden = jnp.array(options.never_masked, tokens_BxL.dtype)
  candidate_BxL = real_BxL & ~jnp.isin(tokens_BxL, forbidden)
  k = num_slots(tokens_BxL.shape[1], options.mask_prob)
  wanted_B = jnp.round(options.mask_prob * real_BxL.sum(axis=1))
  wanted_B = jnp.clip(wanted_B, 1, k)
  if options.with_replacement:
    positions_BxK = _draw_each(candidate_BxL, keys_B, k)
    wanted_B = jnp.where(candidate_BxL.any(axis=1), wanted_B, 0)
  else:
    positions_BxK = _draw_distinct(candidate_BxL, keys_B, k)
    wanted_B = jnp.minimum(wanted_B, candidate_BxL.sum(axis=1))
  used_BxK = jnp.arange(k)[None] < wanted_B[:, None]
  positions_BxK = jnp.where(used_BxK, positions_BxK, 0)
  gold_BxK = jnp.take_along_axis(tokens_BxL, positions_BxK, axis=1)
  return Slots(
    positions_BxK,
    gold_BxK,
    used_BxK.astype(jnp.float32),
    distinct=not options.with_replacement,
  )


def apply_mask(
  tokens_BxL: Array, slots: Slots, keys_B: Array, options: MaskingOptions
) -> Array:
  """Hides the slots behind [MASK], but for those that the style spares.

  A position of several slots is hidden if one of them says so.
  """
  style = get_style(options.style)
  shape = slots.positions_BxK.shape[1:]
  uniform_BxK = rng.uniform(keys_B, shape, site=KEEP_SITE)
  spared_BxK = uniform_BxK < style.kept
  shown_BxK = jnp.where(spared_BxK, slots.gold_BxK, options.mask_id)
  if style.random:
    random_BxK = (uniform_BxK < style.kept + style.random) & ~spared_BxK
    token_BxK = _integers(
      keys_B, shape, jnp.uint32(options.vocab_size), site=RANDOM_SITE
    )
    shown_BxK = jnp.where(random_BxK, token_BxK, shown_BxK)
    spared_BxK |= random_BxK
  if not slots.distinct:
    hidden_Bx1xK = ~spared_BxK[:, None, :]
    hidden_BxK = jnp.any(_same_place(slots) & hidden_Bx1xK, axis=-1)
    shown_BxK = jnp.where(hidden_BxK, options.mask_id, shown_BxK)
  return fill_slots(tokens_BxL, slots, shown_BxK)


def fill_slots(tokens_BxL: Array, slots: Slots, values_BxK: Array) -> Array:
  """Writes one value into each slot in use and leaves all else alone.

  The first of the slots that share a position decides (`share_first_value`).
  """
  length = tokens_BxL.shape[1]
  target_BxK = jnp.where(slots.weight_BxK > 0, slots.positions_BxK, length)
  rows_Bx1 = jnp.arange(tokens_BxL.shape[0])[:, None]
  return tokens_BxL.at[rows_Bx1, target_BxK].set(
    share_first_value(slots, values_BxK).astype(tokens_BxL.dtype), mode="drop"
  )


def share_first_value(slots: Slots, values_BxK: Array) -> Array:
  """Gives each slot in use the value of the first one at its position.

  A scatter of different values to one place would keep whichever the device
  happens to write last.
  """
  if slots.distinct:
    return values_BxK
  first_BxK = jnp.argmax(_same_place(slots), axis=-1)
  return jnp.take_along_axis(values_BxK, first_BxK, axis=1)


def _same_place(slots: Slots) -> Array:
  """`[B, K, K]`: true where the second slot is in use, at the first's place."""
  same_BxKxK = (
    slots.positions_BxK[:, :, None] == slots.positions_BxK[:, None, :]
  )
  return same_BxKxK & (slots.weight_BxK > 0)[:, None, :]


def _draw_distinct(candidate_BxL: Array, keys_B: Array, k: int) -> Array:
  """The k candidates of the largest random numbers, other positions behind."""
  length = candidate_BxL.shape[1]
  uniform_BxL = rng.uniform(keys_B, (length,), site=POSITION_SITE)
  return jax.lax.top_k(jnp.where(candidate_BxL, uniform_BxL, -1.0), k)[1]


def _draw_each(candidate_BxL: Array, keys_B: Array, k: int) -> Array:
  """k independent draws; position L in a row without candidates."""
  rank_BxL = jnp.cumsum(candidate_BxL, axis=1)  # the j-th has j, from 1
  below_Bx1 = jnp.maximum(rank_BxL[:, -1:], 1).astype(jnp.uint32)
  number_BxK = _integers(keys_B, (k,), below_Bx1, site=POSITION_SITE)
  # The position of candidate j: so many have a rank of j or less, from 0.
  passed_BxKxL = rank_BxL[:, None, :] <= number_BxK[:, :, None]
  return passed_BxKxL.sum(axis=-1, dtype=jnp.int32)


def _integers(
  keys_B: Array, shape: tuple[int, ...], below: Array, *, site: int
) -> Array:
  """Uniform int32 in [0, below), but for a bias of below / 2^32 at most."""
  bits = rng.random_bits(keys_B, shape, site=site)
  return (bits % below).astype(jnp.int32)
