"""The options of an objective.

The paper (Zhang et al. 2023) leaves several questions open. Each of them is a
field of `Readings`; the default is the most defensible reading.
"""

import dataclasses

from truenegs_jax.config.sections import Readings
from truenegs_jax.objectives import masking


@dataclasses.dataclass(frozen=True)
class Options(Readings):
  """The recipe of an objective: all of it but the model and its parameters.

  >>> masking = MaskingOptions(mask_id=4, never_masked=(2, 3, 4), vocab_size=9)
  >>> Options(masking).hard_correction
  True
  >>> plain = Options(masking, hard_correction=False)  # ELECTRA's or BERT's

  Attributes:
    masking: which tokens are hidden, and how.
    sampling_temperature: divides the model's logits, once more, for samples.
    vocabulary_chunk: the most slots whose logits are in memory; 0: all.
  """

  masking: masking.MaskingOptions
  sampling_temperature: float = 1.0
  vocabulary_chunk: int = 0

  @property
  def needs_logits(self) -> bool:
    """Whether a term needs all logits, not only a `SoftmaxOutput`."""
    return self.smoothing > 0 or self.soft_prediction == "expected"

  @property
  def changes_mlm(self) -> bool:
    """Whether the MLM loss is not the plain cross-entropy of all slots."""
    return self.hard_correction or self.smoothing > 0
