"""Defaults of the fine-tuning configs: the recipe of ELECTRA's paper.

Clark et al. 2020, table 7.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common

# Keys shared with pre-training; common.py describes them.
SHARED = {
  "model": (
    "dropout",
    "attention_dropout",
    "dtype",
    "remat",
    "scan",
    "attention",
    "variant",
  ),
  "data": ("vocab", "lowercase", "accents"),
  "optim": (
    "schedule",
    "b1",
    "b2",
    "epsilon",
    "clip_norm",
    "weight_decay",
    "accumulation",
    "max_skips",
    "lr",
  ),
  "mesh": ("preset", "axes"),
  "log": ("every_steps", "writers"),
}


def get_config() -> ConfigDict:
  """Returns ELECTRA's recipe, without tasks and data."""
  pretraining = common.get_config()
  c = ConfigDict({"task": "finetune", "seed": 0, "init": "", "init_skip": ""})
  c.dry_run = pretraining.dry_run
  for section, names in SHARED.items():
    c[section] = ConfigDict(
      {name: pretraining[section][name] for name in names}
    )
  c.batch_size = 32  # rows per update
  c.length = 128  # tokens of a row, at most
  c.model.variant = c.data.vocab = "init"  # those of the weights
  c.optim.weight_decay = 0.0
  c.optim.lr = 0.0  # learning rate: the peak; 0: from finetune.lrs

  f = c.finetune = ConfigDict()
  f.tasks = ""  # names separated by commas: "mrpc", "cola,rte"
  f.seeds = 5  # runs per task, with seeds c.seed, c.seed + 1, ...
  f.data = ""  # folder with the tasks' files, or hf:NAME
  f.files = ""  # replacements for single files: "mrpc.dev=FILE qqp.train=FILE"
  f.rows = 0  # training rows, at most; 0: all
  f.epochs = 0.0  # passes over the training rows; 0: the task's default
  f.predict_test = False  # True: also write test answers, for GLUE's server
  f.head_dropout = 0.1  # dropout before the output layer
  f.loss = "mean"  # over the rows of a batch; "sum": ELECTRA's code
  f.warmup = 0.1  # share of the steps with a growing learning rate
  # Learning rates: networks narrower than 768, narrower than 1,024, wider.
  f.lrs = (3e-4, 1e-4, 5e-5)
  # Factor of the learning rate from one layer to the next lower one; 0: from
  # layer_decays, by width like lrs; 1: the same rate for all layers.
  f.layer_decay = 0.0
  f.layer_decays = (0.8, 0.8, 0.9)  # such factors by width, like lrs
  f.window = 50  # batches whose rows are sorted by length together; 1: no sort
  f.evals_per_epoch = 0  # scores of the dev set; 0: only at the end
  f.save_minutes = 10.0  # between the checkpoints of an unfinished run
  f.export = "all"  # each run's model for Hugging Face; "none": no model
  f.against = ""  # workdir of another fine-tuning to compare with
  return c
