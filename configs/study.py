"""Compares recipes: pre-trains each with several seeds, fine-tunes and scores.

  truenegs main --config=study --workdir=runs/study \\
    --config.study.base=electra_base:continue --config.study.tasks=mrpc,rte

The same command continues a study that was stopped, and runs only parts that
are missing: after adding an arm to `study.arms`, or with more seeds, only these
are run. `:runlocal` is a study of minutes on WordNet, to try the installation.

Several machines with a common folder share the work: start the same command on
each. Own recipes are dicts in a config file of your own:

  c.study.arms = {
    "hc": {"words": "hc"},
    "more": {"words": "hc", "masking.prob": 0.25},
  }

The default is the comparison of the paper's tables 3 and 4 with its small
model: per seed and arm, 1.15e18 FLOP of pre-training (see electra_small.py).
One seed cannot tell a recipe from chance: 14 ELECTRA-smalls without corrections
differ by 1.8 points of GLUE.
"""

from ml_collections import ConfigDict

from truenegs_jax.config.load import parse_words
from truenegs_jax.config.tables import make_config


def get_config(arg: str = "") -> ConfigDict:
  """Configures 3 seeds of 4 recipes of ELECTRA-small, on GLUE and SQuAD."""
  words = parse_words(arg, {"runlocal": "A study of minutes on WordNet."})
  c = make_config("study")
  if words:
    c.study.base = "demo:runlocal"
    c.study.arms = {"baseline": {"words": "baseline"}, "hc": {"words": "hc"}}
    c.study.seeds = 2
    c.study.tasks = ""
    c.study.corrections = {
      "corrections.text": "wordnet",
      "corrections.sequences": 64,
    }
  return c
