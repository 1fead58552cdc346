"""Defaults of the configs of fine-tuning: the recipe of ELECTRA's paper.

Clark et al. 2020, table 7; `as_released` has what their code does otherwise.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common

# Keys that pre-training has, too, with its defaults.
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
  """ELECTRA's recipe, but for the tasks and their data."""
  pretraining = common.get_config()
  c = ConfigDict({"task": "finetune", "seed": 0, "init": "", "init_skip": ""})
  for section, names in SHARED.items():
    c[section] = ConfigDict(
      {name: pretraining[section][name] for name in names}
    )
  # Rows of an update, and tokens of a row at most.
  c.batch_size, c.length = 32, 128
  c.model.variant = c.data.vocab = "init"
  c.optim.weight_decay = 0.0
  c.optim.lr = 0.0  # 0: by width, finetune.lrs

  f = c.finetune = ConfigDict()
  f.tasks = ""  # "mrpc", "cola,rte"
  f.seeds = 5  # runs of a task: seed, seed + 1, ...
  f.data = ""  # folder of the data, or hf:NAME
  f.files = ""  # others than the usual: "mrpc.dev=FILE qqp.train=FILE"
  f.rows = 0  # rows to train on at most; 0: all
  f.epochs = 0.0  # 0: the task's own
  f.predict_test = False  # True: the test set, too, for GLUE's server
  # Of texts "dense", Hugging Face's (BERT: its pooler), or "linear", as
  # released; of questions "spans" or "joint".
  f.head = "dense"
  f.head_dropout = 0.1
  f.loss = "mean"  # over a batch; "sum", as released
  f.warmup = 0.1  # of the steps
  f.lrs = (3e-4, 1e-4, 5e-5)  # small, base (768 wide), large (1,024)
  f.layer_decay = 0.0  # of the rate, a layer down; 0: by width, 1: none
  f.layer_decays = (0.8, 0.8, 0.9)
  f.layer_exponent = "released"  # or "paper": one less below the head
  f.window = 50  # batches whose rows are sorted by length; 1: none
  f.evals_per_epoch = 0  # 0: at the end alone
  f.keep = "last"  # or "best", by the dev set: says so in all results
  f.patience = 0  # evaluations without a better one that end a run; 0: never
  f.export = "all"  # a folder for Hugging Face of each run; "none"
  f.against = ""  # workdir of another fine-tuning to compare with
  return c


def as_released(c: ConfigDict) -> None:
  """Fine-tuning by the values of ELECTRA's code, where its paper has others.

  Source: google-research/electra, `configure_finetuning.py`.
  """
  c.finetune.lrs = (1e-4, 1e-4, 5e-5)
  c.finetune.loss = "sum"
  c.optim.weight_decay = 0.01
  c.finetune.head = "joint" if c.finetune.head == "spans" else "linear"
