"""Counts the floating-point operations (FLOP) of the parts of a study."""

from ml_collections import ConfigDict

from truenegs_jax.finetune import dry_run as finetune_dry_run
from truenegs_jax.finetune import task_data
from truenegs_jax.finetune.config_checks import FinetuneOptions
from truenegs_jax.pretrain import dry_run
from truenegs_jax.train import build_run, plan
from truenegs_jax.train.build_run import Run
from truenegs_jax.train.speed import peak_flops
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.init import config_sizes

UTILIZATION = 0.4  # of an H100's peak in bfloat16, as in docs/tutorials
H100_FLOPS = UTILIZATION * (peak_flops("NVIDIA H100", "bfloat16") or 0.0)


def resolve_run(c: ConfigDict) -> Run:
  """Returns the run of a config of pre-training, without reading its text."""
  c = config_sizes.resolve(c, Weights(c.init), saved=None)
  tokenizer, _ = dry_run.placeholder_tokenizer(c)
  return build_run.build_run(c, tokenizer)


def count_pretraining(run: Run) -> float:
  """Returns the FLOP of all steps, as `plan.row_flops`."""
  return plan.row_flops(run) * run.batch_size * run.steps


def count_finetuning(c: ConfigDict, run: Run) -> float:
  """Estimates the FLOP of a fine-tuning part with all its seeds.

  Rows count with their greatest length, those of SQuAD once; evaluations, heads
  and tasks whose size is not published do not count.

  Args:
    c: the config of the part.
    run: the pre-training, whose kept network is fine-tuned.
  """
  options = FinetuneOptions.from_config(c)
  kept = next(iter(run.model.roles.values()))
  token = plan.TRAINING_PASSES * plan.encoder_flops(kept, options.length)
  tasks = map(task_data.find_published_task, options.tasks)
  rows = sum(
    finetune_dry_run.count_rows(options, task) * (options.epochs or task.epochs)
    for task in tasks
    if task
  )
  return token * options.length * rows * c.finetune.seeds
