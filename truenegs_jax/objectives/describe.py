"""An objective in words."""

import dataclasses

from ml_collections import ConfigDict

from truenegs_jax.objectives.options import Options, needs_table

# What a table and the weights are made with, as a rule.
USUAL = {
  "keep_stop_words": False,
  "stop_words": "",
  "symmetric": False,
  "soft_schedule": "constant",
  "soft_steps": 0,
}


# Of an objective's readings, those that its sentence spells out.
STATED = frozenset(
  """
  masking sampling_temperature
  hard_correction prediction soft soft_weight sentence_weight smoothing
  """.split()
)


def objective(c: ConfigDict) -> str:
  """The recipe in words, for reports and model cards."""
  usual = {field.name: field.default for field in dataclasses.fields(Options)}
  usual |= USUAL
  n = usual | c.negatives.to_dict()  # older runs lack the newer readings
  parts = [{"electra": "ELECTRA", "mlm": "BERT"}[c.objective]]
  if n["hard_correction"]:
    parts.append(f"hard correction by {n['sources']} ({n['prediction']})")
  elif needs_table(ConfigDict(n)):
    parts.append(f"synonyms of {n['sources']}")
  if n["soft_weight"]:
    parts.append(f"soft regularization ({n['soft']}) x {n['soft_weight']:g}")
  if n["sentence_weight"]:
    parts.append(f"sentence regularization x {n['sentence_weight']:g}")
  if n["smoothing"]:
    parts.append(f"smoothing over synonyms x {n['smoothing']:g}")
  if c.generator.temperature != 1:
    parts.append(f"sampled at temperature {c.generator.temperature:g}")
  parts += [
    f"{name} {n[name]}"
    for name, default in usual.items()
    if name not in STATED and n[name] != default
  ]
  recipe = " + ".join(parts) if len(parts) > 1 else f"plain {parts[0]}"
  return f"{recipe}; {c.masking.prob:.0%} masked ({c.masking.style})"
