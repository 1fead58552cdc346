"""Fine-tunes on SQuAD v1.1, several seeds: answers are spans of a text.

  truenegs main --config=finetune_squad \\
    --config.init=runs/electra_small --config.finetune.data=squad

`finetune.data` is a folder with train-v1.1.json and dev-v1.1.json, plain or
compressed, or hf:NAME; by default it is the copy on the Hugging Face hub.

Long contexts are cut into windows that start every `finetune.stride` tokens,
like BERT's doc_stride (Hugging Face's `stride` is the overlap instead).

Expected (dev EM / F1): ELECTRA-small 75.8 / 83.9, base 85.1 / 91.6 (Zhang et
al. 2023, table 4). Models pre-trained on rows of 128 tokens score less: use
electra_small.py:len512.
"""

from ml_collections import ConfigDict

from truenegs_jax.config.load import parse_words
from truenegs_jax.config.tables import make_config

HUB = "hf:rajpurkar/squad"


def get_config(arg: str = "") -> ConfigDict:
  """Configures 2 epochs of windows of at most 512 tokens."""
  c = make_config("finetune")
  c.length = 512
  c.finetune.tasks = "squad"
  c.finetune.data = HUB
  parse_words(arg, {})
  return c
