"""ELECTRA on your own text, on one machine: a GPU, or hours of a CPU.

  truenegs main --config=electra_own[:ARG,...] \\
    --config.data.sources='texts/*.txt' --workdir=runs/mine

In an hour of a CPU, bert_own.py learns more. Objective, masking and weights of
the losses are those of ELECTRA; the vocabulary is trained from the text. For
another language than English, set --config.data.language=de, for example.
Arguments are a recipe (`proper` is the default) and

  small     ELECTRA-small's 12 layers, for a GPU
  continue  from the released ELECTRA-small, which is downloaded, with its
            vocabulary, which is English
  runlocal  20 steps on WordNet, to try the installation

Warm-up and intervals follow --config.steps. With --config.minutes=30 the run
ends within half an hour, with as many of the steps as fit.

Size: 4 layers of 256 cost 3.6 GFLOP per row of 128 tokens. The generator has
half the width: a quarter of 256 learns slowly in so few steps. With fewer words
in the vocabulary more of them are several pieces, which are not corrected.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common, electra_small


def get_config(arg: str = "") -> ConfigDict:
  """Configures 4,000 steps of 32 rows of 128 tokens, rate 3e-4."""
  c = common.get_config()
  c.data.sources = common.REQUIRED
  c.data.vocab_size = 16_384
  c.model.variant = "mini"
  c.model.dtype = "auto"
  c.generator.multiplier = 0.5
  c.steps = 4_000
  c.batch_size = 32
  c.optim.lr = 3e-4
  c.optim.b2 = 0.98
  steps = c.get_oneway_ref("steps")
  c.optim.warmup_steps = steps // 5
  c.log.every_steps = (steps + 199) // 200
  c.eval.every_steps = c.checkpoint.every_steps = 40 + steps // 25
  c.eval.rows = 512
  return common.apply_arg(
    c,
    arg,
    default="proper",
    released=electra_small.RELEASED,
    own={"small": small, "continue": continue_small},
  )


def small(c: ConfigDict) -> None:
  """Sets the size of ELECTRA-small, for a GPU or a night on a CPU."""
  c.model.variant = "small"
  c.generator.multiplier = 0.25
  c.steps = 100_000
  c.batch_size = 128
  c.optim.lr = 5e-4
  c.optim.warmup_steps = 10_000


def continue_small(c: ConfigDict) -> None:
  """Starts from the released ELECTRA-small, with its vocabulary."""
  c.init = electra_small.RELEASED
  c.model.variant = "small"
  c.generator.multiplier = 1.0
  c.data.vocab = common.BERT_VOCAB
  c.optim.lr = 1e-4
