"""Scores a fine-tuned model on changed texts: the paper's table 5.

  python -m truenegs_jax.main --config=configs/robustness.py \\
    --config.init=runs/finetune_squad

`init` is the workdir of a fine-tuning, whose seeds are pooled, or any model of
Hugging Face for questions or classes, as a folder or by its name on the hub. By
default, the dev set is that of the fine-tuning, and the sample has 300
questions, as the paper's; --config.robustness.rows=0 takes all.

    --config.robustness.sets=typos,case --config.robustness.against=runs/other
    --config.robustness.files='AddSent=sample1k-HCVerifyAll.json'

`against` names another model, which answers the same questions. `files` are
published sets as they are: TextFlint's ori/trans pairs, AddSent and AddOneSent,
AdvGLUE, PAWS, HANS, or sets/NAME of another workdir.

Zhang et al. 2023 give exact match before and after for small models, of 293
questions with a distractor: 80.55 -> 25.60, HC 82.59 -> 34.13, SR 78.84 ->
37.20; and of 300 with synonyms: 80.67 -> 74.67, HC 82.33 -> 79.67, SR 78.67 ->
75.67. Their standard errors are 2.2 to 2.8 points.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common, common_finetune
from truenegs_jax.configs.common_words import parse_words

# Keys shared with fine-tuning; common.py describes them.
SHARED = {
  "model": ("dtype", "attention"),
  "data": ("vocab", "lowercase", "accents", "wordnet_dir"),
  "mesh": ("preset", "axes"),
}


def get_config(arg: str = "") -> ConfigDict:
  """Configures all but the model, which has to be set."""
  parse_words(arg, {})
  shared = common.get_config()
  finetuning = common_finetune.get_config()
  c = ConfigDict({"task": "robustness", "seed": 0, "init": ""})
  c.dry_run = shared.dry_run
  for section, names in SHARED.items():
    c[section] = ConfigDict({name: shared[section][name] for name in names})
  c.data.vocab = finetuning.data.vocab
  c.batch_size = 32  # rows per batch
  # Tokens of a row, at most; 0: as in fine-tuning, or 512 (GLUE: 128).
  c.length = 0

  c.robustness = ConfigDict()
  # "squad", a task of GLUE or "own"; "": that of the fine-tuning, or squad if
  # the model answers questions.
  c.robustness.task = ""
  # The dev set: a file, a folder or hf:NAME; "": that of the fine-tuning.
  c.robustness.data = ""
  c.robustness.rows = 300  # examples drawn from it; 0: all
  # Transformations: swap_synonyms, add_sentence, typos and case; "paper": the
  # first two, of which add_sentence needs questions.
  c.robustness.sets = "paper"
  c.robustness.files = ""  # published sets: NAME=FILE NAME='hf:NAME split=S'
  # Tokens, tags and parses, for swap_synonyms and add_sentence: "spacy:MODEL",
  # or "stanza", which parses constituents.
  c.robustness.annotations = "spacy:en_core_web_sm"
  # Source of swap_synonyms, as negatives.sources; "": WordNet by TextFlint's
  # rules, as in the paper.
  c.robustness.synonyms = ""
  # Neighbours of words for add_sentence: a file of word vectors, such as
  # glove.6B.100d.txt; "": none.
  c.robustness.neighbours = ""
  c.robustness.against = ""  # another model to compare with, as init
  return c
