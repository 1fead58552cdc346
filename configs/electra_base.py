"""ELECTRA-base from scratch on Wikipedia and BooksCorpus (ELECTRA, table 6).

python -m truenegs_jax.prepare --config=configs/electra_base.py
python -m truenegs_jax.main --config=configs/electra_base.py[:baseline]
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """766,000 steps of 256 rows of 512 tokens, learning rate 2e-4."""
  c = common.get_config()
  c.model.variant = "base"
  c.generator.multiplier = 1 / 3
  c.steps, c.batch_size, c.length = 766_000, 256, 512
  c.data.sources = f"{common.WIKIPEDIA}, {common.BOOKS}"
  c.data.vocab = common.BERT_VOCAB
  c.optim.lr = 2e-4
  return common.apply_arg(c, arg, default="hc")
