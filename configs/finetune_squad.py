"""SQuAD v1.1, on several seeds: questions whose answers are spans of a text.

  python -m truenegs_jax.main --config=configs/finetune_squad.py \\
    --config.init=runs/electra_small --config.finetune.data=squad

`finetune.data` is a folder with train-v1.1.json and dev-v1.1.json, plain or
compressed, or hf:NAME, by default the Hugging Face hub's copy. `:released`
takes the values of ELECTRA's code, its joint head among them: the end is
predicted given the start, by a beam of 20, and an answerable question by a
logit of its own; Hugging Face has no such head, so it is not exported.

Long contexts are cut to windows that start every `finetune.stride` tokens, as
BERT's doc_stride means it (Hugging Face's `stride` is their overlap).

Expected (dev EM / F1): ELECTRA-small 75.8 / 83.9, base 85.1 / 91.6 (Zhang et
al. 2023, table 4); models that were pre-trained with rows of 128 tokens have
less: electra_small.py:len512 is the one for SQuAD.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common_finetune

HUB = "hf:rajpurkar/squad"


def get_config(arg: str = "") -> ConfigDict:
  """Two epochs of windows of at most 512 tokens."""
  c = common_finetune.get_config()
  c.length = 512
  f = c.finetune
  f.tasks, f.data, f.head = "squad", HUB, "spans"
  f.stride = 128  # tokens from the start of a window to that of the next
  f.question_length = 64  # tokens of a question at most
  f.num_best = 20  # starts, and ends, that are candidates
  f.max_answer = 30  # tokens of an answer at most
  if arg not in ("", "released"):
    raise ValueError(
      f"config argument {arg!r}: unknown; give released, or none."
    )
  if arg:
    common_finetune.as_released(c)
  return c
