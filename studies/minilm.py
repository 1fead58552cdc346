"""Hard correction with MiniLM: see minilm.md."""

from ml_collections import ConfigDict

from truenegs_jax.config.tables import make_config


def get_config() -> ConfigDict:
  """Configures two recipes, three seeds each, on MRPC and RTE."""
  c = make_config("study")
  s = c.study
  s.base = "bert_base"
  s.arms = {"baseline": {"words": "baseline"}, "hc": {"words": "hc"}}
  s.overrides = {
    "init": "minilm",
    "model.variant": "init",
    "model.dtype": "float32",
    "data.vocab": "init",
    "data.sources": "wikipedia.txt.xz",
    "length": 64,
    "batch_size": 32,
    "steps": 500,
    "optim.schedule": "electra",
    "optim.lr": 1e-4,
    "optim.warmup_steps": 50,
    "eval.every_steps": 250,
    "eval.rows": 512,
    "checkpoint.every_steps": 250,
    "checkpoint.keep_percent": (100.0,),
  }
  s.seeds = 3
  s.tasks = "mrpc,rte"
  s.finetune = {
    "finetune.data": "glue",
    "finetune.epochs": 3.0,
    "finetune.export": "none",
  }
  s.finetune_seeds = 1
  return c
