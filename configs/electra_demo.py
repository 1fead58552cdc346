"""A small ELECTRA on true negatives, trained on WordNet on a laptop.

Corpus: the definitions and examples of WordNet 3.0. The default recipe is
`proper`; `:baseline`, `:hc` and `:sr` choose another.

  truenegs main --config=electra_demo
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """Configures a run of minutes on 2 cores; the README has its results."""
  c = common.get_config()
  c.model.variant = "demo"
  c.model.dtype = "auto"
  c.model.initializer_range = 0.04  # 0.02 suits a width of 768
  c.model.dropout = 0.0  # fewer than 3 epochs
  c.generator.multiplier = 1.0  # 1/4 of 128 is too narrow to learn much
  c.masking.prob = 0.25  # as in ELECTRA-large: more slots per row
  # The discriminator learns little in so few steps. With ELECTRA's weight of 50
  # its gradient would dominate the shared embeddings.
  c.generator.detect_weight = 10.0
  c.steps = 1_500
  c.batch_size = 128
  c.length = 32
  c.data.vocab_size = 4_096
  # Of a rare sense, a young model's prediction is seldom right.
  c.negatives.sources = "wordnet senses=1"
  # Without bias correction, 0.999 would triple the first updates, after which
  # the network does not learn to look at neighbours.
  c.optim.lr = 2e-3
  c.optim.b2 = 0.98
  c.optim.warmup_steps = 200
  c.log.every_steps = 10
  c.checkpoint.every_steps = 250
  c.eval.every_steps = 500
  c.eval.rows = 1_024  # cases are rare
  c.eval.sentences = (
    "a [MASK] who writes books",
    "someone who [MASK] in a theatre",
    "the act of [MASK] something",
    "of or [MASK] to the sea",
    "a genus of [MASK] plants",
  )
  common.apply_arg(c, arg, default="proper")
  # At first the generator predicts "the" everywhere. With the paper's weight of
  # 1 all embeddings would move towards that of "the".
  c.negatives.soft_weight *= 0.1
  return c
