"""A task of your own: texts, or pairs of texts, with a class or a score.

  python -m truenegs_jax.main --config=configs/finetune_own.py \\
    --config.init=runs/electra_small \\
    --config.finetune.files='train=train.csv dev=dev.csv' \\
    --config.finetune.text=sentence --config.finetune.label=label

Files are CSV, TSV (no quoting), JSON lines, plain or compressed, or hf:NAME;
`finetune.text` names one column or two, FIRST,SECOND. A class is what the label
column says; with finetune.kind=score it holds numbers. Examples, of reviews
with stars in JSON lines, and of pairs of sentences:

    --config.finetune.files='train=reviews.jsonl.gz dev=held_out.jsonl'
    --config.finetune.text=body --config.finetune.label=stars
    --config.finetune.kind=score

    --config.finetune.text=premise,hypothesis --config.finetune.metric=f1

The head of the exported model has the classes by name.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common_finetune


def get_config(arg: str = "") -> ConfigDict:
  """Three epochs of batches of 32 rows of at most 128 tokens."""
  c = common_finetune.get_config()
  f = c.finetune
  f.tasks, f.epochs = "own", 3.0
  f.text = ""  # a column, or two: "first,second"
  f.label = "label"  # its column
  f.kind = "classes"  # or "score": a number
  f.labels = ""  # classes in order: "no,yes"; "": those of the training file
  f.metric = ""  # "": accuracy, of scores spearman; README lists them
  if arg not in ("", "released"):
    raise ValueError(
      f"config argument {arg!r}: unknown; give released, or none."
    )
  if arg:
    common_finetune.as_released(c)
  return c
