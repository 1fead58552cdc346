"""Fine-tunes on your own task: texts, or pairs of them, with class or score.

  truenegs main --config=finetune_own --config.init=runs/electra_small \\
    --config.finetune.train=train.csv --config.finetune.dev=dev.csv \\
    --config.finetune.text=sentence --config.finetune.label=label

Files are CSV, TSV (no quoting) or JSON lines, plain or compressed, or hf:NAME.
`finetune.text` names one column or two, FIRST,SECOND. The label column contains
names of classes or, with finetune.kind=score, numbers. Examples: reviews with
stars in JSON lines, and pairs of sentences:

    --config.finetune.train=reviews.jsonl.gz
    --config.finetune.dev=held_out.jsonl
    --config.finetune.text=body --config.finetune.label=stars
    --config.finetune.kind=score

    --config.finetune.text=premise,hypothesis --config.finetune.metric=f1

The exported model knows the classes by name.
"""

from ml_collections import ConfigDict

from truenegs_jax.config.load import parse_words
from truenegs_jax.config.tables import make_config


def get_config(arg: str = "") -> ConfigDict:
  """Configures 3 epochs of batches of 32 rows of at most 128 tokens."""
  c = make_config("finetune")
  c.finetune.tasks, c.finetune.epochs = "own", 3.0
  parse_words(arg, {})
  return c
