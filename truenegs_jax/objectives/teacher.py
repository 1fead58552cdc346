"""A teacher: a trained masked language model that judges slots in context.

A synonym table lists the same words in every context. A teacher reads the same
masked row as the model in training, and says which words fit its slots. It has
no gradient.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Judgement:
  """The judgement of a teacher on the slots of a batch."""

  logits_BxKxV: Array  # f32, divided by the temperature
  gold_BxK: Array
  ratio: float
  # The gold token and the likeliest, with their shares of the target.
  token_BxKxS: Array  # int32
  share_BxKxS: Array  # f32

  def fits(self, token_BxK: Array) -> Array:
    """True `[B, K]` for another token than gold that its context allows.

    Its probability is at least `ratio` times that of the gold token.
    """
    pair_BxKx2 = jnp.stack([self.gold_BxK, token_BxK], axis=-1)
    pair_BxKx2 = jnp.take_along_axis(self.logits_BxKxV, pair_BxKx2, axis=-1)
    log_odds_BxK = pair_BxKx2[..., 1] - pair_BxKx2[..., 0]
    is_likely_BxK = log_odds_BxK >= math.log(self.ratio)
    return is_likely_BxK & (token_BxK != self.gold_BxK)

  def target_change(self, logits_BxKxS: Array) -> Array:
    """Returns what its target adds to the cross-entropy of each slot, `[B, K]`.

    With logits z of `token_BxKxS`, a gold token g and shares q, it is the sum
    of q (z[g] - z). With all tokens, the loss is that of distillation (Hinton
    et al. 2015, "Distilling the knowledge in a neural network").
    """
    margin_BxKxS = logits_BxKxS[..., :1] - logits_BxKxS
    return (self.share_BxKxS * margin_BxKxS).sum(axis=-1)


@dataclasses.dataclass(frozen=True)
class Teacher:
  """A teacher without its parameters, which are `aux["teacher"]`.

  `predict` is `(params, inputs, positions_BxK) -> logits_BxKxV`.
  """

  predict: Callable[[Params, Mapping[str, Array], Array], Array]
  top: int = 64  # words that share the target
  temperature: float = 1.0  # divides the logits
  ratio: float = 0.5  # of the gold token's probability, for a word that fits

  def judge(
    self,
    params: Params,
    inputs: Mapping[str, Array],
    positions_BxK: Array,
    gold_BxK: Array,
  ) -> Judgement:
    """Judges the slots of a masked batch.

    If the gold token is among the `top` likeliest, these share the target by
    their probabilities, and else it has all: the target is right if the teacher
    is (docs/explanation/proper_corrections.md).
    """
    logits_BxKxV = self.predict(params, inputs, positions_BxK)
    logits_BxKxV = logits_BxKxV.astype(jnp.float32) / self.temperature
    top = min(self.top, logits_BxKxV.shape[-1])
    logits_BxKxS, token_BxKxS = jax.lax.top_k(logits_BxKxV, top)
    gold_BxKx1 = gold_BxK[..., None]
    is_listed_BxKx1 = (token_BxKxS == gold_BxKx1).any(axis=-1, keepdims=True)
    shares = [~is_listed_BxKx1, is_listed_BxKx1 * jax.nn.softmax(logits_BxKxS)]
    return Judgement(
      logits_BxKxV,
      gold_BxK,
      self.ratio,
      jnp.concatenate([gold_BxKx1, token_BxKxS], axis=-1),
      jnp.concatenate(shares, axis=-1),
    )
