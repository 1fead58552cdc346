"""A masked language model of your own text, from scratch, on one machine.

  truenegs main --config=own[:ARG,...] \\
    --config.data.sources='texts/*.txt' --config.minutes=45 --workdir=runs/mine

It is ModernBERT's network, four layers of 256, and learns rows of 128 tokens,
of which most of the run reads parts: the fastest way to a low loss that we
found (studies/hour). The vocabulary is trained from the text. For another
language than English, set --config.data.language=de, for example. Arguments are
a recipe (`proper` is the default; to start from released weights, take
bert_own:continue) and

  runlocal  20 steps on WordNet, to try the installation

With --config.minutes the rates and lengths follow the time, and the run does
the steps that fit; without it, set --config.steps.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """Configures at most 20,000 steps of 4,096 tokens."""
  c = common.get_config()
  c.objective = "mlm"
  c.data.sources = common.REQUIRED
  c.data.vocab_size = 8_192
  c.data.layout = "packed"
  c.model.backbone = "modern"
  c.model.variant = "mini"
  c.model.dtype = "auto"
  c.model.initializer_range = 0.04  # 0.02 suits a width of 768
  c.model.dropout = 0.0  # few epochs
  c.masking.prob = 0.4
  c.masking.style = "100_0_0"
  c.steps = 20_000
  c.batch_size = 32
  c.length = 128
  c.model.max_positions = c.get_oneway_ref("length")  # none beyond is trained
  c.short_rows = 0.5
  c.optim.schedule = "bert"
  c.optim.lr = 1e-3
  c.optim.muon_lr = 4e-3
  c.optim.b2 = 0.98
  steps = c.get_oneway_ref("steps")
  c.optim.warmup_steps = steps // 40
  c.log.every_steps = (steps + 199) // 200
  c.eval.every_steps = c.checkpoint.every_steps = 40 + steps // 50
  c.eval.rows = 512
  return common.apply_arg(c, arg, default="proper")
