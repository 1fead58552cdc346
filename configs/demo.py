"""The model of own.py at a smaller size, trained on WordNet on a laptop.

  truenegs main --config=demo[:ARG,...]

Text: the definitions and examples of WordNet 3.0. Arguments are a recipe
(`proper` is the default) and

  electra   replaced-token detection instead, with a generator of two layers
  runlocal  20 steps, to try the installation
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import own


def get_config(arg: str = "") -> ConfigDict:
  """Configures a run of minutes on 2 cores; the README has its results."""
  c = own.from_scratch()
  c.model.variant = "demo"
  c.steps = 1_700
  c.batch_size = 64
  c.length = 32
  c.short_rows = 0.0
  c.data.sources = "wordnet"
  c.data.vocab_size = 4_096
  # Of a rare sense, a young model's prediction is seldom right.
  c.negatives.sources = "wordnet senses=1"
  c.log.every_steps = 10
  c.checkpoint.every_steps = 250
  c.eval.every_steps = 500
  c.eval.rows = 1_024  # cases are rare
  c.eval.sentences = (
    "a [MASK] who writes books",
    "united states [MASK] who wrote novels",
    "the capital and largest [MASK] of france",
    "the [MASK] of being happy",
    "disease of the [MASK]",
  )
  own.apply_arg(c, arg, {})
  # At first a model predicts "the" everywhere. With the paper's weight of 1 all
  # embeddings would move towards that of "the".
  c.negatives.soft_weight *= 0.1
  return c
