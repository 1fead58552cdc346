"""Scores minimal pairs such as BLiMP: grammar without fine-tuning.

  truenegs main --config=blimp --config.blimp.pairs=blimp/data \\
    --config.blimp.run=runs/demo

A pair counts if the model finds its grammatical sentence likelier (Warstadt et
al. 2020); ties count one half. Weights that are not from a run, an export or a
model of the Hugging Face hub, are named by `init` instead of `blimp.run`:

    --config.init=google-bert/bert-base-uncased

Each token is hidden in turn, and the log-probabilities are added (Salazar et
al. 2020). With blimp.hidden=word, the later tokens of its word are hidden, too
(Kauf and Ivanova 2023).
"""

from ml_collections import ConfigDict

from truenegs_jax.config.load import parse_words
from truenegs_jax.config.tables import make_config


def get_config(arg: str = "") -> ConfigDict:
  """Configures all but the pairs and the model, which have to be set."""
  parse_words(arg, {})
  return make_config("blimp")
