"""ELECTRA-small from scratch on OpenWebText, as in the paper (section 4.1).

python -m truenegs_jax.prepare --config=configs/electra_small.py
python -m truenegs_jax.main --config=configs/electra_small.py[:baseline]
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """1,000,000 steps of 128 rows of 128 tokens, learning rate 5e-4."""
  c = common.get_config()
  c.data.sources = common.OPENWEBTEXT
  c.data.vocab = common.BERT_VOCAB
  return common.apply_arg(c, arg, default="hc")
