"""BERT-large on Wikipedia and BooksCorpus, from scratch or continued.

  truenegs prepare --config=bert_large
  truenegs main --config=bert_large[:baseline]
  truenegs main --config=bert_large:continue

bert_base.py says what this reproduces. `:continue` downloads
google-bert/bert-large-uncased. Without internet, add --config.init=FOLDER
--config.data.vocab=init; FOLDER was written by transformers' save_pretrained.

Expected after `:continue`: GLUE (dev, 8 tasks) 84.66 for `:baseline`, 85.05 for
`:hc`, 85.13 for `:sr` (Zhang et al. 2023, table 3).
Hardware: 335 million parameters; 2.6e20 FLOP, 2.6e19 with `:continue`.
Devlin et al.: 4 days on 64 TPU chips. Calculated, not measured: 23 and 2.3
hours on 8 H100 at 40 % of their peak. Of 8 TPU v5e each needs 14.7 of its 15.75
GiB (benchmarks/memory.py, compiled but not run).
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """Configures 1,000,000 steps of 256 rows of 512 tokens, rate 1e-4."""
  c = common.bert()
  c.model.variant = "large"
  c.model.remat = "dots"
  c.model.scan = True
  return common.apply_arg(
    c, arg, default="hc", released="google-bert/bert-large-uncased"
  )
