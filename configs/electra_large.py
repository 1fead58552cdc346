"""ELECTRA-large (Clark et al. 2020, table 6), for 8 H100 or a TPU v5e-256.

  python -m truenegs_jax.prepare --config=configs/electra_large.py
  python -m truenegs_jax.main --config=configs/electra_large.py[:baseline]
  python -m truenegs_jax.main --config=configs/electra_large.py:continue

The paper has no ELECTRA of this size; this is the released recipe, 25 % masked,
with hard correction on. The released model saw XLNet's corpus, which is larger
than the Wikipedia and BooksCorpus named here. `:continue` goes on from it as
the paper does from base. With internet the command stands as it is; without,
--config.init=FOLDER --config.data.vocab=init: a folder with
discriminator/ and generator/ as transformers' save_pretrained writes them, or
Google's electra_large.zip, unpacked.

Expected of plain ELECTRA-large as released: CoLA 69.1, MNLI 90.9, SQuAD 1.1 EM
89.7 (google-research/electra, README).
Hardware: 355 million parameters, 9.1e20 FLOP: by arithmetic, not measured, 80
hours on 8 H100 at 40 % of their peak. A device of 8 needs 24 GiB with the 8
micro-batches set here (compiled for simulated devices), one of 256 TPU v5e 3.8
GiB with --config.optim.accumulation=1 (by the TPU's compiler; both with
benchmarks/memory.py, neither run).
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common

RELEASED = "google/electra-large-discriminator, google/electra-large-generator"


def get_config(arg: str = "") -> ConfigDict:
  """400,000 steps of 2,048 rows of 512 tokens, learning rate 2e-4."""
  c = common.get_config()
  c.model.variant = "large"
  c.model.dtype = "bfloat16"
  c.model.remat, c.model.scan = "dots", True
  c.generator.multiplier = 1 / 4
  c.masking.prob = 0.25
  c.steps, c.batch_size, c.length = 400_000, 2_048, 512
  c.data.sources = f"{common.WIKIPEDIA}, {common.BOOKS}"
  c.data.vocab = common.BERT_VOCAB
  c.optim.lr = 2e-4
  c.optim.accumulation = 8
  c.mesh.preset = "fsdp"
  return common.apply_arg(c, arg, default="hc", released=RELEASED)
