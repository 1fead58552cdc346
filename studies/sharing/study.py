"""Full and disentangled embeddings, five seeds of each."""

from ml_collections import ConfigDict

from truenegs_jax.config.tables import make_config


def get_config() -> ConfigDict:
  """Configures the two arms, in the root of the repository."""
  c = make_config("study")
  c.study.base = "studies/sharing/config.py"
  c.study.seeds = 5
  c.study.tasks = ""
  c.study.arms = {
    "full": {"words": "baseline"},
    "disentangled": {
      "words": "baseline",
      "model.sharing": "disentangled",
    },
  }
  return c
