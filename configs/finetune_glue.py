"""Fine-tunes on the eight GLUE tasks of the paper's table 3, several seeds.

  truenegs main --config=finetune_glue:mrpc \\
    --config.init=runs/electra_small --config.finetune.data=glue_data

The arguments are tasks (cola sst2 mrpc stsb qqp mnli qnli rte) or `all`.
`finetune.data` is a folder with CoLA/, SST-2/ ..., the unpacked archives of
GLUE, or hf:NAME; by default it is the copy on the Hugging Face hub.

Every finished run (task and seed) is kept: the same command runs only those
that are missing, and --config.finetune.seeds=N adds more seeds.

Expected on the dev sets: ELECTRA-small 80.4 on average, base 87.7 (Zhang et al.
2023, table 3, which does not say of how many runs; its rows are printed next
to the results). Single runs of CoLA and RTE differ by several points.
Hardware: one seed of all tasks takes a small model about 8 hours on 4 CPU
cores, calculated from 4,300 tokens per second, mostly for MNLI and QQP.
"""

from ml_collections import ConfigDict

from truenegs_jax.config.load import parse_words
from truenegs_jax.config.tables import make_config

TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
HUB = "hf:nyu-mll/glue"


def get_config(arg: str = "all") -> ConfigDict:
  """Configures 3 epochs (RTE, STS-B: 10) of batches of 32 rows."""
  c = make_config("finetune")
  c.finetune.data = HUB
  meanings = {task: f"The task {task}." for task in TASKS}
  words = parse_words(arg, {**meanings, "all": "All tasks."})
  c.finetune.tasks = ",".join(TASKS if "all" in words else words or TASKS)
  return c
