"""Fine-tunes on your own task: texts, or pairs of them, with class or score.

  python -m truenegs_jax.main --config=configs/finetune_own.py \\
    --config.init=runs/electra_small \\
    --config.finetune.files='train=train.csv dev=dev.csv' \\
    --config.finetune.text=sentence --config.finetune.label=label

Files are CSV, TSV (no quoting) or JSON lines, plain or compressed, or hf:NAME.
`finetune.text` names one column or two, FIRST,SECOND. The label column contains
names of classes or, with finetune.kind=score, numbers. Examples: reviews with
stars in JSON lines, and pairs of sentences:

    --config.finetune.files='train=reviews.jsonl.gz dev=held_out.jsonl'
    --config.finetune.text=body --config.finetune.label=stars
    --config.finetune.kind=score

    --config.finetune.text=premise,hypothesis --config.finetune.metric=f1

The exported model knows the classes by name.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common_finetune
from truenegs_jax.configs.common_words import parse_words


def get_config(arg: str = "") -> ConfigDict:
  """Configures 3 epochs of batches of 32 rows of at most 128 tokens."""
  c = common_finetune.get_config()
  f = c.finetune
  f.tasks, f.epochs = "own", 3.0
  f.text = ""  # column of the text, or of two texts: "first,second"
  f.label = "label"  # column of the class or score
  f.kind = "classes"  # or "score": labels are numbers
  f.labels = ""  # classes in order: "no,yes"; "": those of the training file
  # "accuracy", "matthews", "f1"; for scores "spearman", "pearson"; "": the
  # first of them.
  f.metric = ""
  parse_words(arg, {})
  return c
