"""ELECTRA-base on Wikipedia and BooksCorpus, from scratch or continued.

  truenegs prepare --config=electra_base
  truenegs main --config=electra_base[:baseline]
  truenegs main --config=electra_base:continue

From scratch: as ELECTRA was released (Clark et al. 2020, table 6). `:continue`
is the paper (section 4.1): 200,000 steps from released weights, batch 128,
learning rate 5e-5, with a new schedule. Both networks are downloaded from the
Hugging Face hub. Without internet, add

    --config.init=FOLDER --config.data.vocab=init

FOLDER has discriminator/ and generator/, written by save_pretrained of
transformers' models and tokenizers. The vocabulary is then the one in that
folder.

Expected after `:continue`: GLUE (dev, 8 tasks) 87.66 for `:baseline`, 88.39 for
`:hc`, 88.33 for `:sr` (Zhang et al. 2023, table 3).
Hardware: 119 million parameters; 6.7e19 FLOP, 8.8e18 with `:continue`.
Clark et al.: 4 days on 16 TPU v3. Calculated, not measured: 47 and 6 hours on
one H100 at 40 % of its peak. A batch took 39 GiB of its memory, as compiled
at commit 78c3b93; if it does not fit, set --config.optim.accumulation=4.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common

RELEASED = "google/electra-base-discriminator, google/electra-base-generator"


def get_config(arg: str = "") -> ConfigDict:
  """Configures 766,000 steps of 256 rows of 512 tokens, rate 2e-4."""
  c = common.get_config()
  c.model.variant = "base"
  c.model.dtype = "bfloat16"
  c.generator.multiplier = 1 / 3
  c.steps = 766_000
  c.batch_size = 256
  c.length = 512
  c.data.sources = f"{common.WIKIPEDIA}, {common.BOOKS}"
  c.data.vocab = common.BERT_VOCAB
  c.optim.lr = 2e-4
  return common.apply_arg(c, arg, default="hc", released=RELEASED)
