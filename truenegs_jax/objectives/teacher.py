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

from truenegs_jax.objectives import output_softmax

Array = jax.Array
Params = dict[str, Any]
Outputs = tuple[Array, Array, Array]  # vectors_BxKxE, word_VxE, bias_V


@dataclasses.dataclass(frozen=True)
class Judgement:
  """The judgement of a teacher on the slots of a batch."""

  outputs: Outputs
  gold_BxK: Array
  min_log_odds: float  # against the gold token, of a word that fits
  # The gold token and the likeliest, with their shares of the target.
  token_BxKxS: Array  # int32
  share_BxKxS: Array  # f32

  def fits(self, token_BxK: Array) -> Array:
    """True `[B, K]` for another token than gold that its context allows."""
    vectors_BxKxE, word_VxE, bias_V = self.outputs
    pair_BxKx2 = jnp.stack([self.gold_BxK, token_BxK], axis=-1)
    logits_BxKx2 = bias_V[pair_BxKx2] + jnp.einsum(
      "bke,bkse->bks",
      vectors_BxKxE,
      word_VxE[pair_BxKx2].astype(vectors_BxKxE.dtype),
      preferred_element_type=jnp.float32,
    )
    log_odds_BxK = logits_BxKx2[..., 1] - logits_BxKx2[..., 0]
    is_likely_BxK = log_odds_BxK >= self.min_log_odds
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

  `predict` is `(params, inputs, positions_BxK) -> Outputs`, the vectors of K
  positions per row and the output layer, whose products are the logits.
  """

  predict: Callable[[Params, Mapping[str, Array], Array], Outputs]
  top: int = 64  # words that share the target
  temperature: float = 1.0  # divides the logits
  ratio: float = 0.5  # of the gold token's probability, for a word that fits

  def judge(
    self,
    params: Params,
    inputs: Mapping[str, Array],
    positions_BxK: Array,
    gold_BxK: Array,
    *,
    chunk: int = 0,
  ) -> Judgement:
    """Judges the slots of a masked batch.

    If the gold token is among the `top` likeliest, these share the target by
    their probabilities, and else it has all: the target is right if the teacher
    is (docs/explanation/proper_corrections.md). `chunk` limits the slots whose
    logits are in memory, as in `output_softmax.compute`.
    """
    outputs = self.predict(params, inputs, positions_BxK)
    vectors_BxKxE, word_VxE, bias_V = outputs
    top = min(self.top, bias_V.size)
    logits_BxKxS, token_BxKxS = output_softmax.list_top(
      vectors_BxKxE, word_VxE, bias_V, top, chunk=chunk
    )
    share_BxKxS = jax.nn.softmax(logits_BxKxS / self.temperature)
    gold_BxKx1 = gold_BxK[..., None]
    is_listed_BxKx1 = (token_BxKxS == gold_BxKx1).any(axis=-1, keepdims=True)
    shares = [~is_listed_BxKx1, is_listed_BxKx1 * share_BxKxS]
    return Judgement(
      outputs,
      gold_BxK,
      self.temperature * math.log(self.ratio),
      jnp.concatenate([gold_BxKx1, token_BxKxS], axis=-1),
      jnp.concatenate(shares, axis=-1),
    )
