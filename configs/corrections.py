"""How often hard correction strikes: table 2 and figure 3 of the paper.

  python -m truenegs_jax.main --config=configs/corrections.py \\
    --config.corrections.run=runs/electra_demo \\
    --config.corrections.text=wiki.test.raw.xz

Every line of the text is masked once, as in training, and filled by the masked
language model of each checkpoint that the run has kept. How a run masks, judges
and looks up (`masking` and `negatives`, but for the sources) is read from its
own config; a list of stop words that has moved is given again, by
`negatives.stop_words`. Weights that no run of ours has made, such as a released
BERT, are measured as this config says, in their own size:

    --config.objective=mlm --config.init=google-bert/bert-base-uncased \\
    --config.length=512 --config.masking.style=80_10_10

Instead of a name on the Hugging Face hub `init` may be a folder; README.

The paper measured BERT on wikitext-2-raw-v1 and says neither which part of it,
nor how it was cut or masked. Its numbers (7 % of the sequences and 1.4 % of the
wrong predictions: 5.2 of these a sequence) fit lines that stand alone: the
2,891 of the test part, headings included and cut to 512 tokens, have 14.5 slots
each, of which a BERT gets a good third wrong.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """A minute on a laptop for a small model and WikiText-2's test text."""
  c = common.get_config()
  c.task = "corrections"
  c.batch_size = 32  # lines at a time
  c.model.variant = c.data.vocab = "init"  # of init; a run has its own

  c.corrections = ConfigDict()
  c.corrections.run = ""  # workdir of a run; or give init
  c.corrections.steps = "kept"  # all that are there; or "last", "100,200"
  c.corrections.text = ""  # files, folders, globs, hf:NAME, as data.sources
  # Tokens of a line at most; 0: the run's length, with init this config's.
  c.corrections.length = 0
  c.corrections.sequences = 0  # lines at most; 0: all
  c.corrections.headings = True  # False: without WikiText's "= Title ="
  c.corrections.prediction = ""  # "argmax" or "sample"; "": as the run
  # Synonyms: table 2 is the first source's, and each is judged by the others.
  c.corrections.sources = ("wordnet",)
  c.corrections.only = ""  # cases of some words: "primary, stay:remain"
  c.corrections.cases = 10  # shown; all verdicts where `only` is given
  c.corrections.sheet = 200  # corrections to judge by hand, in sheet.csv
  return common.apply_arg(c, arg, default="hc")
