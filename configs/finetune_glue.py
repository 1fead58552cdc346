"""GLUE's eight tasks of the paper's table 3, each on several seeds.

  python -m truenegs_jax.main --config=configs/finetune_glue.py:mrpc \\
    --config.init=runs/electra_small --config.finetune.data=glue_data

The words after the config's name are tasks (cola sst2 mrpc stsb qqp mnli qnli
rte), or `all`; `released` takes the values of ELECTRA's code (a rate of 1e-4,
weight decay 0.01, summed losses, a linear head) where its paper has others.
`finetune.data` is a folder with CoLA/, SST-2/ ... as GLUE's files are unpacked,
or hf:NAME, by default the Hugging Face hub's copy.

Every finished run of a task and a seed is kept: the same command goes on with
those that are missing, and more seeds are added by --config.finetune.seeds=N.

Expected on the dev sets: ELECTRA-small 80.4 on average, base 87.7 (Zhang et al.
2023, table 3, whose rows are printed beside the results, and who do not say of
how many runs). Single runs of CoLA and RTE differ by several points.
Hardware: a small model takes about 8 hours of 4 CPU cores for all eight tasks
and one seed, by arithmetic from 4,300 tokens a second; MNLI and QQP are three
quarters of it.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs import common_finetune

TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
HUB = "hf:nyu-mll/glue"


def get_config(arg: str = "all") -> ConfigDict:
  """Batches of 32 rows of at most 128 tokens, 3 epochs (RTE and STS-B 10)."""
  c = common_finetune.get_config()
  c.finetune.data = HUB
  words = [word for word in arg.split(",") if word]
  known = (*TASKS, "all", "released")
  if unknown := [word for word in words if word not in known]:
    raise ValueError(
      f"config argument {arg!r}: unknown: {unknown}; give tasks or words of"
      f" {', '.join(known)}."
    )
  if "released" in words:
    common_finetune.as_released(c)
  chosen = [word for word in words if word in TASKS]
  c.finetune.tasks = ",".join(TASKS if "all" in words else chosen or TASKS)
  return c
