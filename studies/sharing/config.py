"""Detection with ModernBERT's backbone, both networks of one width.

`wikipedia.txt` is the text of `studies/small_models`, in the current folder.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """Configures at most 12 minutes of a core: 1,500 steps of 128 short rows."""
  c = common.get_config()
  c.data.sources = "wikipedia.txt"
  c.data.vocab_size = 4_096
  c.model.backbone = "modern"
  c.model.variant = "demo"
  c.generator.multiplier = 1.0  # and half of the 4 layers
  c.model.initializer_range = 0.04  # 0.02 suits a width of 768
  c.model.dropout = 0.0  # no row is read twice
  c.masking.prob = 0.25  # more slots per row
  c.steps = 1_500
  c.batch_size = 128
  c.length = 32
  c.optim.lr, c.optim.b2 = 2e-3, 0.98
  c.optim.warmup_steps = 200
  c.log.every_steps = 50
  c.checkpoint.every_steps = c.eval.every_steps = 1_500
  c.checkpoint.keep_percent = (100.0,)
  c.eval.rows = 4_096
  return common.apply_arg(c, arg, default="baseline")
