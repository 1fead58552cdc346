"""Every reading of an objective that a config can choose.

The paper (Zhang et al. 2023) leaves a dozen questions open. Each is a field
here, the most defensible reading its default.
"""

import dataclasses
from typing import Any

from truenegs_jax.objectives import masking

# Field -> the values it can have.
CHOICES: dict[str, tuple[str, ...]] = {
  "prediction": ("argmax", "sample"),
  "normalizer": ("kept", "slots"),
  "visible_slots": ("judged", "excluded"),
  "discriminator": ("none", "relabel", "ignore"),
  "soft_table": ("word", "embeddings"),
  "soft_prediction": ("predicted", "expected"),
  "soft_gradient": ("both", "gold", "predicted"),
  "sentence_direction": ("forward", "reverse"),
  "sentence_target": ("original", "masked"),
  "sentence_encoder": ("kept", "generator"),
  "sentence_positions": ("tokens", "slots", "all"),
  "sentence_gradient": ("predicted", "both"),
}


@dataclasses.dataclass(frozen=True)
class Options:
  """What decides an objective beside the model and its parameters.

  Attributes:
    masking: which tokens are hidden, and how.
    sampling_temperature: of the tokens that the discriminator is shown.
    vocabulary_chunk: most slots whose logits are in memory at a time; 0: all.
    hard_correction: take false negatives out of the masked model's loss.
    prediction: what hard and soft terms judge: the likeliest token, or the one
      drawn for the discriminator.
    normalizer: what the corrected loss is divided by: the slots kept, or all.
    include_self: correct predictions of words that have a list are dropped,
      too: the naive reading of the paper's figure 3.
    strict_subword: nothing is corrected where the gold word goes on in `##`
      pieces, though its first piece is a word of the vocabulary.
    visible_slots: those that show their gold token are judged, or never
      corrected.
    discriminator: what becomes of a sampled synonym in the detection loss:
      nothing, the label "original", or it leaves the loss.
    temperature: of the softmax in the masked model's loss (footnote 11).
    smoothing: share of that loss's target that goes to the gold's synonyms.
    soft: name of the regularizer of words; soft_weight: 0 leaves it out.
    soft_table: what is compared: rows of the word table, or what the whole
      embedding layer makes of them in their place.
    soft_prediction: "expected" compares with the mean of all rows by their
      probability, which alone sends a gradient into the logits.
    soft_gradient: which side of the comparison receives the gradient.
    sentence_weight: of the regularization of sentences; 0 leaves it out.
    sentence_direction: KL(predicted || target), or the reverse.
    sentence_target: the sentence that the predicted one is compared with.
    sentence_encoder: the network that is kept, or ELECTRA's generator.
    sentence_positions: whose divergence counts: real tokens, slots, or all
      positions, padding included.
    sentence_gradient: whether the target receives a gradient, too.
  """

  masking: masking.MaskingOptions
  sampling_temperature: float = 1.0
  vocabulary_chunk: int = 0
  hard_correction: bool = True
  prediction: str = "argmax"
  normalizer: str = "kept"
  include_self: bool = False
  strict_subword: bool = False
  visible_slots: str = "judged"
  discriminator: str = "none"
  temperature: float = 1.0
  smoothing: float = 0.0
  soft: str = "cosine"
  soft_weight: float = 0.0
  soft_table: str = "word"
  soft_prediction: str = "predicted"
  soft_gradient: str = "both"
  sentence_weight: float = 0.0
  sentence_direction: str = "forward"
  sentence_target: str = "original"
  sentence_encoder: str = "kept"
  sentence_positions: str = "tokens"
  sentence_gradient: str = "predicted"

  @property
  def needs_table(self) -> bool:
    """Something here looks synonyms up."""
    return needs_table(self)

  @property
  def needs_logits(self) -> bool:
    """Something here reads more off the logits than `vocabulary.read` does."""
    return bool(
      self.temperature != 1.0
      or self.smoothing
      or self.soft_prediction == "expected"
    )

  @property
  def changes_mlm(self) -> bool:
    """The masked model's loss is not the plain cross-entropy of its slots."""
    return bool(
      self.hard_correction or self.temperature != 1.0 or self.smoothing
    )


def needs_table(readings: Any) -> bool:
  """Whether readings look synonyms up: Options, or a config's `negatives`."""
  return bool(
    readings.hard_correction
    or readings.smoothing
    or readings.discriminator != "none"
  )
