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
  c.generator.multiplier = 0.5  # 1/4 of 128 would be too thin to learn much
  c.steps = 1_500
  c.batch_size = 64
  c.length = 64
  c.data.vocab_size = 8_192
  c.optim.lr = 2e-3
  c.optim.warmup_steps = 150
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
  return common.apply_arg(c, arg, default="hc+sr")
