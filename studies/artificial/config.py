"""BERT or ELECTRA on an artificial language whose synonyms are known.

The objective is BERT's; `:electra` chooses ELECTRA's. run.py sets data.sources,
data.vocab and negatives.sources to the language of a seed.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """Configures less than a minute on one core: 1,500 steps of 64 lines."""
  c = common.get_config()
  c.objective = "mlm"
  c.model.variant = "narrow"
  c.model.layers = 2
  c.model.heads = 4
  c.model.ffn = 128
  c.generator.sizes = (64, 1, 4, 128)
  c.model.initializer_range = 0.1  # 0.02 suits a width of 768
  c.model.dropout = 0.0  # no line is read twice
  # No random words are shown, for which the best loss would not be known.
  c.masking.style = "electra_85_15"
  c.masking.prob = 0.25  # more slots per row
  c.generator.detect_weight = 10.0
  c.steps = 1_500
  c.batch_size = 64
  c.length = 16  # [CLS], a line of 14 words, [SEP]
  c.data.language = ""
  c.optim.lr = 3e-3
  c.optim.warmup_steps = 100
  c.optim.b2 = 0.98  # 0.999 averages over most of so short a run
  c.log.every_steps = 50
  c.checkpoint.every_steps = c.eval.every_steps = 1_500
  c.checkpoint.keep_percent = (10.0, 33.4, 100.0)
  c.eval.rows = 512
  return common.apply_arg(c, arg, default="baseline", own={"electra": electra})


def electra(c: ConfigDict) -> None:
  """Sets ELECTRA's objective."""
  c.objective = "electra"
