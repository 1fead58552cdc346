"""ELECTRA-small from scratch on OpenWebText, as in the paper (section 4.1).

  truenegs prepare --config=electra_small
  truenegs main --config=electra_small[:baseline]

`:len512` is the variant that the paper fine-tunes on SQuAD. `:continue`, which
the paper does for larger models only, starts from the released networks, whose
generator is as wide as the discriminator, and downloads them. Without internet,
add --config.init=FOLDER --config.data.vocab=init; FOLDER has discriminator/ and
generator/, written by transformers' save_pretrained.

Expected: GLUE (dev, 8 tasks) 80.36 for `:baseline`, 81.35 for `:hc`, 81.91 for
`:sr` (Zhang et al. 2023, table 3). Compare several seeds: 14 ELECTRA-smalls
without corrections reached 80.42 to 82.23 (mean 81.38) by the best of ten
fine-tunings, one of them 80.36 by their mean (richarddwang/electra_pytorch).
Hardware: 14 million parameters, 1.15e18 FLOP (5.8e18 with `:len512`). Clark et
al.: 4 days on one V100. Calculated, not measured: 2 hours on one H100 at 16 %
of its peak with --config.model.dtype=bfloat16.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common

RELEASED = "google/electra-small-discriminator, google/electra-small-generator"


def get_config(arg: str = "") -> ConfigDict:
  """Configures 1,000,000 steps of 128 rows of 128 tokens, rate 5e-4."""
  c = common.get_config()
  c.data.sources = common.OPENWEBTEXT
  c.data.vocab = common.BERT_VOCAB
  common.apply_arg(c, arg, default="hc", released=RELEASED)
  if c.init:
    c.generator.multiplier = 1.0  # google-research/electra, README
  return c
