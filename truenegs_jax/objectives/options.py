"""The options of an objective.

The paper (Zhang et al. 2023) leaves several questions open. Each of them is a
field of `Options`; the default is the most defensible reading.
"""

import dataclasses
from typing import Any

from truenegs_jax.configs import common_keys
from truenegs_jax.objectives import masking

# Fields with a fixed set of values.
CHOICES = {
  name: common_keys.KEYS[f"negatives.{name}"].choices
  for name in ("prediction", "discriminator", "soft_prediction")
}


@dataclasses.dataclass(frozen=True)
class Options:
  """The recipe of an objective: all of it but the model and its parameters.

  >>> masking = MaskingOptions(mask_id=4, never_masked=(2, 3, 4), vocab_size=9)
  >>> Options(masking).hard_correction
  True
  >>> plain = Options(masking, hard_correction=False)  # ELECTRA's or BERT's

  Attributes:
    masking: which tokens are hidden, and how.
    sampling_temperature: divides the model's logits, once more, for samples.
    vocabulary_chunk: the most slots whose logits are in memory; 0: all.
    hard_correction: drops false negatives from the MLM loss (equation 2).
    prediction: the tokens that hard correction and the soft terms judge:
      "argmax", the likeliest, or "sample", those the discriminator sees.
    include_self: also drops correct predictions of tokens that list themselves:
      the literal reading of figure 3.
    strict_subword: corrects nothing where the gold word continues in `##`
      pieces (footnote 5), though its first piece may have synonyms.
    discriminator: the label of a sampled synonym: "none" labels it "replaced",
      "relabel" labels it "original", "ignore" drops it from the loss.
    smoothing: the share of the MLM target that goes to the gold's synonyms.
    soft: the name of the word regularizer (`soft_regularization`).
    soft_weight: of the word regularizer (equation 3); 0 leaves it out.
    soft_prediction: "predicted" compares with the prediction's embedding,
      "expected" with the mean embedding under the softmax. Only the latter has
      a gradient to the logits.
    sentence_weight: of the sentence regularizer (section 5); 0 leaves it out.
  """

  masking: masking.MaskingOptions
  sampling_temperature: float = 1.0
  vocabulary_chunk: int = 0
  hard_correction: bool = True
  prediction: str = "argmax"
  include_self: bool = False
  strict_subword: bool = True
  discriminator: str = "none"
  smoothing: float = 0.0
  soft: str = "cosine"
  soft_weight: float = 0.0
  soft_prediction: str = "predicted"
  sentence_weight: float = 0.0

  @property
  def needs_table(self) -> bool:
    """Whether the objective needs a synonym table."""
    return needs_table(self)

  @property
  def needs_logits(self) -> bool:
    """Whether a term needs all logits, not only a `SoftmaxOutput`."""
    return self.smoothing > 0 or self.soft_prediction == "expected"

  @property
  def changes_mlm(self) -> bool:
    """Whether the MLM loss is not the plain cross-entropy of all slots."""
    return self.hard_correction or self.smoothing > 0


def needs_table(readings: Any) -> bool:
  """Whether Options, or the `negatives` of a config, need a synonym table."""
  return bool(
    readings.hard_correction
    or readings.smoothing
    or readings.discriminator != "none"
  )
