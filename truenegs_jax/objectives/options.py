"""Every reading of an objective that a config can choose, and its description.

The paper (Zhang et al. 2023) leaves several questions open. Each is a field of
`Options`, the most defensible reading its default.
"""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

from truenegs_jax.configs import common_keys
from truenegs_jax.objectives import masking

# Field -> the values it can have.
CHOICES: dict[str, tuple[str, ...]] = {
  "prediction": ("argmax", "sample"),
  "normalizer": ("kept", "slots"),
  "discriminator": ("none", "relabel", "ignore"),
  "soft_prediction": ("predicted", "expected"),
  "soft_gradient": ("both", "gold", "predicted"),
  "sentence_direction": ("forward", "reverse"),
  "sentence_target": ("original", "masked"),
  "sentence_encoder": ("kept", "generator"),
}

# Fields of earlier versions, and the value that is now the only one.
REMOVED = {
  key.removeprefix("negatives."): removed.value
  for key, removed in common_keys.REMOVED.items()
  if key.startswith("negatives.")
}

# Keys of a config's `negatives` that are not fields of Options.
TABLE_DEFAULTS = {
  "keep_stop_words": False,
  "stop_words": "",
  "symmetric": False,
  "soft_schedule": "constant",
  "soft_steps": 0,
}

# Readings that `describe` words itself, and what no config calls so.
SPELLED_OUT = (
  "masking",
  "sampling_temperature",
  "hard_correction",
  "prediction",
  "soft",
  "soft_weight",
  "sentence_weight",
  "smoothing",
)


@dataclasses.dataclass(frozen=True)
class Options:
  """The recipe of an objective: all but the model and its parameters.

  Attributes:
    masking: which tokens are hidden, and how.
    sampling_temperature: of the tokens that the discriminator is shown.
    vocabulary_chunk: most slots whose logits are in memory at a time; 0: all.
    hard_correction: drop false negatives from the masked model's loss.
    prediction: what hard and soft terms judge: the likeliest token, or the one
      drawn for the discriminator.
    normalizer: the corrected loss is divided by the slots kept, or by all.
    include_self: drop correct predictions of words that have a list, too: the
      naive reading of the paper's figure 3.
    strict_subword: correct nothing where the gold word goes on in `##` pieces
      (footnote 5), though its first piece is a word of the vocabulary.
    discriminator: a sampled synonym in the detection loss is "replaced" like
      others, is labelled "original", or leaves the loss.
    temperature: of the softmax in the masked model's loss (footnote 11).
    smoothing: share of that loss's target that goes to the gold's synonyms.
    soft: name of the regularizer of words; soft_weight: 0 leaves it out.
    soft_prediction: "expected" compares with the mean of all rows by their
      probability, which alone sends a gradient into the logits.
    soft_gradient: which side of the comparison receives the gradient.
    sentence_weight: of the regularization of sentences; 0 leaves it out.
    sentence_direction: KL(predicted || target), or the reverse.
    sentence_target: the sentence that the predicted one is compared with.
    sentence_encoder: the network that is kept, or ELECTRA's generator.
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
  temperature: float = 1.0
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
    """Whether synonyms are looked up."""
    return needs_table(self)

  @property
  def needs_logits(self) -> bool:
    """Whether more of the logits is used than `output_softmax.read` gives."""
    expected = self.soft_prediction == "expected"
    return bool(self.temperature != 1.0 or self.smoothing or expected)

  @property
  def changes_mlm(self) -> bool:
    """Whether the MLM loss is not the plain cross-entropy of its slots."""
    changed = self.temperature != 1.0 or self.smoothing
    return bool(self.hard_correction or changed)


def needs_table(readings: Any) -> bool:
  """Whether readings look synonyms up: Options, or a config's `negatives`."""
  return bool(
    readings.hard_correction
    or readings.smoothing
    or readings.discriminator != "none"
  )


def removed_values(negatives: Mapping[str, Any]) -> list[str]:
  """Saved readings that no run of this version has, as "negatives.KEY=VALUE".

  Empty if all fields of REMOVED are absent or at the value that is left.
  """
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
  """The recipe in words, for reports and model cards.

  Args:
    objective: "electra" or "mlm".
    negatives: a config's, also one that was saved by an earlier version.
    mask_prob, mask_style: of its masking.
    sampling_temperature: of its generator.
  """
  usual = {field.name: field.default for field in dataclasses.fields(Options)}
  usual |= REMOVED | TABLE_DEFAULTS
  n = usual | dict(negatives)
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
  if sampling_temperature != 1:
    terms.append(f"sampled at temperature {sampling_temperature:g}")
  terms += [
    f"{name} {n[name]}"
    for name, default in usual.items()
    if name not in SPELLED_OUT and n[name] != default
  ]
  recipe = " + ".join(terms) if len(terms) > 1 else f"plain {terms[0]}"
  return f"{recipe}; {mask_prob:.0%} masked ({mask_style})"
