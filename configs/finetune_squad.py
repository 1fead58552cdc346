"""Fine-tunes on SQuAD v1.1, several seeds: answers are spans of a text.

  python -m truenegs_jax.main --config=configs/finetune_squad.py \\
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

from truenegs_jax.configs import common_finetune
from truenegs_jax.configs.common_words import parse_words

HUB = "hf:rajpurkar/squad"


def get_config(arg: str = "") -> ConfigDict:
  """Configures 2 epochs of windows of at most 512 tokens."""
  c = common_finetune.get_config()
  c.length = 512
  f = c.finetune
  f.tasks, f.data = "squad", HUB
  f.stride = 128  # tokens from the start of a window to that of the next
  f.question_length = 64  # tokens of a question, at most
  f.num_best = 20  # candidates for the start, and for the end, of an answer
  f.max_answer = 30  # tokens of an answer, at most
  parse_words(arg, {})
  return c
