"""Scores a fine-tuned model on changed texts: the paper's table 5.

  truenegs main --config=robustness --config.init=runs/finetune_squad

`init` is the workdir of a fine-tuning on SQuAD, whose seeds are pooled, or any
model of Hugging Face for questions, as a folder or by its name on the hub. By
default, the dev set is that of the fine-tuning, and the sample has 300
questions, as the paper's; --config.robustness.rows=0 takes all.

    --config.robustness.sets=swap_synonyms
    --config.robustness.files=trans_AddSentDiverse.json

`files` are published sets as they are: TextFlint's ori/trans pairs,
sets/trans_NAME.json of another workdir, any file of SQuAD's form, or hf:NAME.

Zhang et al. 2023 give exact match before and after for small models, of 293
questions with a distractor: 80.55 -> 25.60, HC 82.59 -> 34.13, SR 78.84 ->
37.20; and of 300 with synonyms: 80.67 -> 74.67, HC 82.33 -> 79.67, SR 78.67 ->
75.67. Their standard errors are 2.2 to 2.8 points.
"""

from ml_collections import ConfigDict

from truenegs_jax.config.load import parse_words
from truenegs_jax.config.tables import make_config


def get_config(arg: str = "") -> ConfigDict:
  """Configures all but the model, which has to be set."""
  parse_words(arg, {})
  return make_config("robustness")
