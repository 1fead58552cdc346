"""Measures how often hard correction applies: table 2, figure 3 of the paper.

  truenegs main --config=corrections \\
    --config.corrections.run=runs/demo \\
    --config.corrections.text=wiki.test.raw.xz

Every line of the text is masked once, as in training, and filled by the masked
language model of each checkpoint of the run. `masking` and `negatives`, except
its sources, are those of the run's config; if its file of stop words has moved,
set `negatives.stop_words`. Weights that are not from a run, such as a released
BERT, are measured with the values of this config:

    --config.init=google-bert/bert-base-uncased --config.length=512 \\
    --config.masking.style=80_10_10

`init` can also be a folder.

The paper measured BERT on wikitext-2-raw-v1, and does not say on which split or
how it was cut and masked. Its numbers (corrections in 7 % of the sequences and
of 1.4 % of the wrong predictions, hence 5.2 of these per sequence) fit single
lines: the 2,891 of the test split, with headings and cut to 512 tokens, have
14.5 slots each, of which BERT gets a good third wrong.
"""

from ml_collections import ConfigDict

from truenegs_jax.config.tables import make_config
from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """Configures all but the run and the text; `arg` may be a recipe."""
  c = make_config("corrections")
  common.apply_recipe(c, arg, "hc", {})
  return c
