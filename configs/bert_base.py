"""BERT-base on Wikipedia and BooksCorpus, from scratch or continued.

  truenegs prepare --config=bert_base
  truenegs main --config=bert_base[:baseline]
  truenegs main --config=bert_base:continue

From scratch: Devlin et al. 2019 (appendix A.2) without next-sentence prediction
and with rows of 512 tokens throughout (BERT: of 128 in 90 % of the steps).
`:continue` is the paper (section 4.1): 200,000 steps from released weights,
batch 128, learning rate 5e-5, ELECTRA's schedule. The pooler and the
next-sentence head are kept untrained. The weights are downloaded from the
Hugging Face hub. Without internet, add

    --config.init=FOLDER --config.data.vocab=init

FOLDER was written by save_pretrained of transformers' model and tokenizer. The
vocabulary is then the one in that folder.

`masking.style` is BERT's as published. Other code by the paper's author has a
bug and never draws a random token.

Expected after `:continue`: GLUE (dev, 8 tasks) 82.85 for `:baseline`, 83.45 for
`:hc`, 83.39 for `:sr` (Zhang et al. 2023, table 3).
Hardware: 110 million parameters; 7.7e19 FLOP, 7.7e18 with `:continue`.
Devlin et al.: 4 days on 16 TPU chips. Calculated, not measured: 54 and 5 hours
on one H100 at 40 % of its peak. A batch took 42 GiB of its memory, as
compiled at commit 78c3b93; if it does not fit, set
--config.optim.accumulation=4.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """Configures 1,000,000 steps of 256 rows of 512 tokens, rate 1e-4."""
  c = common.bert()
  c.model.variant = "base"
  return common.apply_arg(
    c, arg, default="hc", released="google-bert/bert-base-uncased"
  )
