"""ELECTRA-large (Clark et al. 2020, table 6), for 8 H100 or a TPU v5e-256.

  truenegs prepare --config=electra_large
  truenegs main --config=electra_large[:baseline]
  truenegs main --config=electra_large:continue

The paper has no ELECTRA of this size. This is the released recipe, with 25 % of
the tokens masked, and hard correction. The released model was trained on
XLNet's corpus, which is larger than Wikipedia and BooksCorpus. `:continue`
starts from it, as the paper does from base, and downloads it. Without internet,
add --config.init=FOLDER --config.data.vocab=init; FOLDER has discriminator/ and
generator/, written by transformers' save_pretrained.

Expected of plain ELECTRA-large as released: CoLA 69.1, MNLI 90.9, SQuAD 1.1 EM
89.7 (google-research/electra, README).
Hardware: 355 million parameters, 9.1e20 FLOP. Calculated, not measured: 80
hours on 8 H100 at 40 % of their peak. Memory by benchmarks/memory.py, compiled
but not run: 24 GiB on each of 8 (simulated) devices with the 8 micro-batches of
this config; 5.3 GiB on each of 256 TPU v5e with --config.optim.accumulation=1
(1.7 for an evaluation, 0.4 for the search for cases at the end).
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common

RELEASED = "google/electra-large-discriminator, google/electra-large-generator"


def get_config(arg: str = "") -> ConfigDict:
  """Configures 400,000 steps of 2,048 rows of 512 tokens, rate 2e-4."""
  c = common.get_config()
  c.model.variant = "large"
  c.model.dtype = "bfloat16"
  c.model.remat = "dots"
  c.model.scan = True
  c.generator.multiplier = 1 / 4
  c.masking.prob = 0.25
  c.steps = 400_000
  c.batch_size = 2_048
  c.length = 512
  c.data.sources = f"{common.WIKIPEDIA}, {common.BOOKS}"
  c.data.vocab = common.BERT_VOCAB
  c.optim.lr = 2e-4
  c.optim.accumulation = 8
  c.mesh.preset = "fsdp"
  return common.apply_arg(c, arg, default="hc", released=RELEASED)
