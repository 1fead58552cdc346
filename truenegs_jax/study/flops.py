"""Counts the floating-point operations (FLOP) of a pre-training."""

from ml_collections import ConfigDict

from truenegs_jax.pretrain import dry_run
from truenegs_jax.train import build_run, plan
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.init import config_sizes


def count_flops(c: ConfigDict) -> float:
  """Returns the FLOP of all steps of a config, as `plan.row_flops`."""
  c = config_sizes.resolve(c, Weights(c.init), saved=None)
  tokenizer, _ = dry_run.placeholder_tokenizer(c)
  run = build_run.build_run(c, tokenizer)
  return plan.row_flops(run) * c.batch_size * c.steps
