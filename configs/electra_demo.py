"""A small ELECTRA on true negatives from WordNet's own English, on a laptop.

Corpus: the definitions and examples of WordNet 3.0. Hard correction and soft
regularization are both on; `:baseline`, `:hc` and `:sr` are the others.

  python -m truenegs_jax.main --config=configs/electra_demo.py
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """2 cores, about 5 minutes; expected figures are in README."""
  c = common.get_config()
  c.model.variant = "demo"
  c.model.initializer_range = 0.04  # 0.02 is for widths of 768
  c.model.dropout = c.model.attention_dropout = 0.0  # under 3 epochs
  c.generator.multiplier = 0.5  # 1/4 of 128 would be too thin to learn much
  c.masking.prob = 0.25  # as ELECTRA-large: more to learn from a row
  # In some thousand rows the discriminator learns little, and at the released
  # weight of 50 its gradient is most of what the shared embeddings see.
  c.generator.detect_weight = 10.0
  c.steps = 1_500
  c.batch_size = 128
  c.length = 32
  c.data.vocab_size = 4_096
  c.optim.lr = 2e-3
  c.optim.warmup_steps = 200
  c.log.every_steps = 10
  c.checkpoint.every_steps = 250
  c.eval.every_steps = 500
  c.eval.rows = 1_024
  c.eval.must_learn = True
  c.eval.sentences = (
    "a [MASK] who writes books",
    "the act of [MASK] something",
    "a small [MASK] that lives in the sea",
    "of or relating to the [MASK] of Europe",
    "he gave [MASK] a book",
  )
  common.apply_arg(c, arg, default="hc+sr")
  # A beginner predicts "the" for everything: at the paper's weight of 1 every
  # embedding would be drawn to those few before they mean anything.
  c.negatives.soft_weight *= 0.1
  return c
