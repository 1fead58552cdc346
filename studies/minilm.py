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
    "model": {"variant": "init", "dtype": "float32"},
    "data": {"vocab": "init", "sources": "wikipedia.txt.xz"},
    "length": 64,
    "batch_size": 32,
    "steps": 500,
    "optim": {"schedule": "electra", "lr": 1e-4, "warmup_steps": 50},
    "eval": {"every_steps": 250, "rows": 512},
    "checkpoint": {"every_steps": 250, "keep_percent": (100.0,)},
  }
  s.seeds = 3
  s.tasks = "mrpc,rte"
  s.finetune = {"finetune": {"data": "glue", "epochs": 3.0, "export": "none"}}
  s.finetune_seeds = 1
  return c
