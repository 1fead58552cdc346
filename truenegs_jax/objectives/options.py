"""The options of an objective, and a description of them in words.

The paper (Zhang et al. 2023) leaves several questions open. Each of them is a
field of `Options`; the default is the most defensible reading.
"""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

from truenegs_jax.configs import common_keys
from truenegs_jax.objectives import masking

# Fields with a fixed set of values.
CHOICES = {
  name: common_keys.KEYS[f"negatives.{name}"].choices
  for name in (
    "prediction",
    "normalizer",
    "discriminator",
    "soft_prediction",
    "soft_gradient",
    "sentence_direction",
    "sentence_target",
    "sentence_encoder",
  )
}

# Fields of earlier versions -> the only value that is still supported.
REMOVED = {
  key.removeprefix("negatives."): removed.value
  for key, removed in common_keys.REMOVED.items()
  if key.startswith("negatives.")
}

# Defaults of the config's keys of `negatives` that are not fields of Options.
OTHER_DEFAULTS = {
  "temperature": 1.0,
  "keep_stop_words": False,
  "stop_words": "",
  "symmetric": False,
  "soft_schedule": "constant",
  "soft_steps": 0,
}

# Keys of `negatives` that `describe` puts into words.
DESCRIBED = (
  "hard_correction",
  "prediction",
  "soft",
  "soft_weight",
  "sentence_weight",
  "smoothing",
)


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
    normalizer: divides the corrected loss by the slots "kept", or all "slots".
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
    soft_gradient: the side of the comparison that receives the gradient.
    sentence_weight: of the sentence regularizer (section 5); 0 leaves it out.
    sentence_direction: "forward" is KL(predicted || target), "reverse" is
      KL(target || predicted).
    sentence_target: the sentence that the predicted one is compared with.
    sentence_encoder: "kept" is the kept network, "generator" is ELECTRA's.
  """

  masking: masking.MaskingOptions
  sampling_temperature: float = 1.0
  vocabulary_chunk: int = 0
  hard_correction: bool = True
  prediction: str = "argmax"
  normalizer: str = "kept"
  include_self: bool = False
  strict_subword: bool = True
  discriminator: str = "none"
  smoothing: float = 0.0
  soft: str = "cosine"
  soft_weight: float = 0.0
  soft_prediction: str = "predicted"
  soft_gradient: str = "both"
  sentence_weight: float = 0.0
  sentence_direction: str = "forward"
  sentence_target: str = "original"
  sentence_encoder: str = "kept"

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


def removed_values(negatives: Mapping[str, Any]) -> list[str]:
  """Lists saved options no longer supported, as "negatives.KEY=VALUE"."""
  return [
    f"negatives.{name}={negatives[name]}"
    for name, value in REMOVED.items()
    if name in negatives and negatives[name] != value
  ]


def describe(
  objective: str,
  negatives: Mapping[str, Any],
  *,
  mask_prob: float,
  mask_style: str,
  sampling_temperature: float,
) -> str:
  """Describes a recipe in words, for reports and model cards.

  Args:
    objective: "electra" or "mlm".
    negatives: this section of a config, also of an earlier version.
    mask_prob: share of the tokens that are masked.
    mask_style: a name in `masking.STYLES`.
    sampling_temperature: `generator.temperature`.
  """
  defaults = {f.name: f.default for f in dataclasses.fields(Options)}
  defaults |= REMOVED | OTHER_DEFAULTS
  n = defaults | dict(negatives)
  terms = [{"electra": "ELECTRA", "mlm": "BERT"}[objective]]
  if n["hard_correction"]:
    terms.append(f"hard correction by {n['sources']} ({n['prediction']})")
  elif needs_table(types.SimpleNamespace(**n)):
    terms.append(f"synonyms of {n['sources']}")
  if n["soft_weight"]:
    terms.append(f"soft regularization ({n['soft']}) x {n['soft_weight']:g}")
  if n["sentence_weight"]:
    terms.append(f"sentence regularization x {n['sentence_weight']:g}")
  if n["smoothing"]:
    terms.append(f"smoothing over synonyms x {n['smoothing']:g}")
  if sampling_temperature != n["temperature"]:
    terms.append(f"sampled at temperature {sampling_temperature:g}")
  terms += [
    f"{name} {n[name]}"
    for name, default in defaults.items()
    if name not in DESCRIBED and n[name] != default
  ]
  recipe = " + ".join(terms) if len(terms) > 1 else f"plain {terms[0]}"
  return f"{recipe}; {mask_prob:.0%} masked ({mask_style})"
