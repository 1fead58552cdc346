"""BERT on your own text, on one machine: from scratch in an hour of a CPU, or
from released weights in minutes.

  truenegs main --config=bert_own[:ARG,...] \\
    --config.data.sources='texts/*.txt' --config.minutes=60 --workdir=runs/mine

The vocabulary is trained from the text. For another language than English, set
--config.data.language=de, for example. Arguments are a recipe (`proper` is the
default) and

  continue  from the released weights of --config.init=FOLDER_OR_NAME, with
            their sizes and vocabulary: better than from scratch for all but
            large texts
  runlocal  20 steps on WordNet, to try the installation

From scratch, a network of two layers is trained on rows of 32 tokens: in longer
rows it learns much later to look at neighbours. Texts of a task that are longer
need longer rows: --config.length=128 --config.batch_size=32.
"""

from ml_collections import ConfigDict

from truenegs_jax.config.sections import FROM_WEIGHTS
from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """Configures at most 8,000 steps of 128 rows of 32 tokens, rate 1e-3."""
  c = common.get_config()
  c.objective = "mlm"
  c.data.sources = common.REQUIRED
  c.data.vocab_size = 8_192
  c.model.variant = "shallow"
  c.model.dtype = "auto"
  c.model.initializer_range = 0.04  # 0.02 suits a width of 768
  c.model.dropout = 0.0  # few epochs
  c.masking.prob = 0.25
  c.masking.style = "80_10_10"
  c.steps = 8_000
  c.batch_size = 128
  c.length = 32
  c.optim.schedule = "bert"
  c.optim.lr = 1e-3
  c.optim.b2 = 0.98
  steps = c.get_oneway_ref("steps")
  c.optim.warmup_steps = steps // 40
  c.log.every_steps = (steps + 199) // 200
  c.eval.every_steps = c.checkpoint.every_steps = 40 + steps // 50
  c.eval.rows = 512
  return common.apply_arg(
    c, arg, default="proper", own={"continue": continue_own}
  )


def continue_own(c: ConfigDict) -> None:
  """Starts from released weights, with their sizes and vocabulary."""
  c.init = common.REQUIRED
  c.model.variant = FROM_WEIGHTS
  c.data.vocab = FROM_WEIGHTS
  c.model.dropout = 0.1
  c.masking.prob = 0.15
  c.steps = 2_000
  c.batch_size = 32
  c.length = 64
  c.optim.lr = 1e-4
  c.optim.warmup_steps = 100
