"""Chooses and hides the K slots of each row, on the device.

The rules are ELECTRA's (google-research/electra, `pretrain_helpers.py:mask`)
with one change: positions are drawn without replacement, which its author calls
the fix (issue 41 of that repository).

K depends on the length of the rows and on the options only. Slots that a row
does not need have weight 0 and position 0.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truenegs_jax.objectives.negatives import Aux
from truenegs_jax.runtime import rng

Array = jax.Array

POSITION_SITE, KEEP_SITE, RANDOM_SITE = range(3)


class Style(NamedTuple):
  """Probabilities that a slot shows its gold or a random token, not [MASK]."""

  kept: float
  random: float


STYLES: dict[str, Style] = {
  "electra_85_15": Style(kept=0.15, random=0.0),  # as released
  "80_10_10": Style(kept=0.1, random=0.1),  # BERT's, Devlin et al. 2019
  "100_0_0": Style(kept=0.0, random=0.0),  # DeBERTaV3's
}


@dataclasses.dataclass(frozen=True)
class MaskingOptions:
  """Settings of masking that come from the vocabulary and the recipe.

  >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "swan"]
  >>> tokenizer = make_tokenizer(words, lowercase=True)
  >>> MaskingOptions.for_tokenizer(tokenizer, mask_prob=0.25).mask_id
  4
  """

  mask_id: int
  never_masked: tuple[int, ...]  # the ids of [CLS], [SEP] and [MASK] itself
  vocab_size: int  # V; random tokens are any of these ids, as in BERT
  mask_prob: float = 0.15  # share of a row's real tokens that become slots
  style: str = "electra_85_15"  # a name in STYLES
  unit: str = "token"  # or "word"

  @classmethod
  def for_tokenizer(cls, tokenizer: Any, **recipe: Any) -> "MaskingOptions":
    """Returns the options of a `Tokenizer`; `recipe` are the other fields."""
    return cls(
      mask_id=tokenizer.mask,
      never_masked=(tokenizer.cls, tokenizer.sep, tokenizer.mask),
      vocab_size=len(tokenizer.vocab),
      **recipe,
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots:
  """The K slots of each row of a batch."""

  positions_BxK: Array  # int32; 0 where the weight is 0
  gold_BxK: Array  # int32
  weight_BxK: Array  # f32, 1 for a slot in use


def num_slots(length: int, mask_prob: float) -> int:
  """Returns K; at 15 %, 19 for rows of 128 tokens."""
  return max(1, int((mask_prob + 0.005) * length))


def hide_slots(
  tokens_BxL: Array,
  documents_BxL: Array,
  keys_B: Array,
  options: MaskingOptions,
  aux: Aux | None = None,
) -> tuple[Slots, Array]:
  """Returns the slots to predict, and the tokens `[B, L]` with them hidden.

  >>> options = MaskingOptions(mask_id=4, never_masked=(2, 3, 4), vocab_size=9)
  >>> tokens_BxL = jnp.array([[2, 5, 6, 7, 8, 3]])
  >>> keys_B = row_keys(jax.random.key(0), 0, jnp.array([0]))
  >>> slots, masked_BxL = hide_slots(
  ...   tokens_BxL, jnp.ones_like(tokens_BxL), keys_B, options
  ... )
  >>> slots.positions_BxK.shape, bool((masked_BxL != tokens_BxL).sum() <= 1)
  ((1, 1), True)

  `documents_BxL` is 0 for padding, `keys_B` is of `rng.row_keys`. `aux` has
  `edges_V` of `word_edges` for the unit "word".
  """
  slots = choose_slots(tokens_BxL, documents_BxL, keys_B, options, aux or {})
  return slots, apply_mask(tokens_BxL, slots, keys_B, options)


def choose_slots(
  tokens_BxL: Array,
  documents_BxL: Array,
  keys_B: Array,
  options: MaskingOptions,
  aux: Aux,
) -> Slots:
  """Draws the positions to predict, uniformly over candidates or their words.

  Candidates are the real tokens that are not in `options.never_masked`. A row
  of n real tokens, special ones included, uses round(mask_prob * n) slots
  (halves to even), at least 1 and at most K, but not more than candidates, and
  with the unit "word" as many as whole words fill.
  """
  real_BxL = documents_BxL != 0
  never = jnp.array(options.never_masked, tokens_BxL.dtype)
  candidate_BxL = real_BxL & ~jnp.isin(tokens_BxL, never)
  length = tokens_BxL.shape[1]
  k = num_slots(length, options.mask_prob)
  num_used_B = jnp.round(options.mask_prob * real_BxL.sum(axis=1))
  num_used_B = jnp.clip(num_used_B, 1, k)
  if options.unit == "word":
    joined_BxJ = join_pieces(tokens_BxL, documents_BxL, aux["edges_V"])
    candidate_BxL = jax.vmap(draw_words)(
      keys_B, candidate_BxL, joined_BxJ, num_used_B
    )
  num_used_B = jnp.minimum(num_used_B, candidate_BxL.sum(axis=1))
  uniform_BxL = rng.uniform(keys_B, candidate_BxL.shape[1:], site=POSITION_SITE)
  # Positions that are no candidates come last.
  uniform_BxL = jnp.where(candidate_BxL, uniform_BxL, -1.0)
  positions_BxK = jax.lax.top_k(uniform_BxL, k)[1]
  used_BxK = jnp.arange(k)[None] < num_used_B[:, None]
  positions_BxK = jnp.where(used_BxK, positions_BxK, 0)
  gold_BxK = jnp.take_along_axis(tokens_BxL, positions_BxK, axis=1)
  return Slots(positions_BxK, gold_BxK, used_BxK.astype(jnp.float32))


def join_pieces(
  tokens_BxL: Array, documents_BxL: Array, edges_V: Array | np.ndarray
) -> Array:
  """True `[B, L - 1]` where a token and the next one are pieces of a word.

  Words do not go beyond their document. `edges_V`: see `word_edges`.
  """
  edges_BxL = jnp.asarray(edges_V)[tokens_BxL]
  first_BxJ = edges_BxL[:, :-1]  # J = L - 1
  second_BxJ = edges_BxL[:, 1:]
  joined_BxJ = documents_BxL[:, :-1] == documents_BxL[:, 1:]
  joined_BxJ &= (first_BxJ >= 2) & (second_BxJ % 2 == 1)
  return joined_BxJ


def draw_words(
  key: Array, candidate_L: Array, joined_J: Array, num_used: Array
) -> Array:
  """Draws the words of a row that are hidden, bool [L].

  Words come in the order of the draws of their first tokens. One of more tokens
  than there are slots left is skipped, as in BERT's code. If no word fits, all
  candidates are returned, of which the slots are single tokens.
  """
  index_L = jnp.arange(len(candidate_L))
  is_first_L = jnp.pad(~joined_J, (1, 0), constant_values=True)
  first_L = jax.lax.cummax(jnp.where(is_first_L, index_L, 0))
  [uniform_L] = rng.uniform(key[None], index_L.shape, site=POSITION_SITE)

  def take_word(hidden_L: Array, first: Array) -> tuple[Array, None]:
    more_L = hidden_L | (candidate_L & (first_L == first))
    return jnp.where(more_L.sum() <= num_used, more_L, hidden_L), None

  order_L = jnp.argsort(uniform_L, descending=True)
  none_L = jnp.zeros_like(candidate_L)
  hidden_L, _ = jax.lax.scan(take_word, none_L, order_L)
  return jnp.where(hidden_L.any(), hidden_L, candidate_L)


def apply_mask(
  tokens_BxL: Array, slots: Slots, keys_B: Array, options: MaskingOptions
) -> Array:
  """Writes [MASK] into the slots, or what the style shows instead."""
  style = STYLES[options.style]
  shape = slots.positions_BxK.shape[1:]
  uniform_BxK = rng.uniform(keys_B, shape, site=KEEP_SITE)
  spared_BxK = uniform_BxK < style.kept
  shown_BxK = jnp.where(spared_BxK, slots.gold_BxK, options.mask_id)
  if style.random:
    random_BxK = (uniform_BxK < style.kept + style.random) & ~spared_BxK
    # Uniform up to a bias of vocab_size / 2^32.
    bits_BxK = rng.random_bits(keys_B, shape, site=RANDOM_SITE)
    token_BxK = (bits_BxK % jnp.uint32(options.vocab_size)).astype(jnp.int32)
    shown_BxK = jnp.where(random_BxK, token_BxK, shown_BxK)
  return fill_slots(tokens_BxL, slots, shown_BxK)


def fill_slots(tokens_BxL: Array, slots: Slots, values_BxK: Array) -> Array:
  """Writes one value into each slot in use; other positions do not change."""
  length = tokens_BxL.shape[1]
  target_BxK = jnp.where(slots.weight_BxK > 0, slots.positions_BxK, length)
  rows_Bx1 = jnp.arange(tokens_BxL.shape[0])[:, None]
  return (
    jnp.asarray(tokens_BxL)
    .at[rows_Bx1, target_BxK]
    .set(values_BxK.astype(tokens_BxL.dtype), mode="drop")
  )
