"""Prints the plan of a fine-tuning in seconds, without reading rows.

  python -m truenegs_jax.main --config=finetune_glue:mrpc \\
    --config.init=runs/mine --config.dry_run=True

Weights on this machine are opened and checked, but not their arrays.
"""

import pathlib
import sys
from collections.abc import Sequence

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.finetune import initial_weights, results, task_data
from truenegs_jax.finetune.config_checks import FinetuneOptions
from truenegs_jax.tasks import batches
from truenegs_jax.tasks.task import SPANS, Task
from truenegs_jax.train import plan, sharding
from truenegs_jax.weights.export import finetuned
from truenegs_jax.weights.formats import find


def dry_run(
  c: ConfigDict,
  options: FinetuneOptions,
  seeds: Sequence[int],
  workdir: pathlib.Path,
  console: Console,
) -> int:
  """Prints weights, data, seeds and steps; returns 0.

  Raises:
    InputError: the weights on this machine do not fit.
  """
  mesh = sharding.make_mesh(options.mesh)
  missing = results.count_missing(workdir, options.tasks, seeds)
  lines = {
    "dry run": "reads no rows; writes and compiles nothing",
    "devices": plan.describe_devices(c.mesh.preset, mesh),
    "weights": find.describe(c.init) if c.init else "drawn at random",
  }
  if not c.init or find.is_local(c.init):
    lines |= _describe_network(c, options, console)
  lines["batches"] = (
    f"{options.batch_size} rows of at most {options.length} tokens"
  )
  lines["runs"] = (
    f"seeds {seeds[0]} to {seeds[-1]}; {missing:,} of"
    f" {len(seeds) * len(options.tasks):,} runs are to train"
  )
  lines |= {name: _describe_task(options, name) for name in options.tasks}
  console.print(plan.report_table(lines))
  return 0


def _describe_network(
  c: ConfigDict, options: FinetuneOptions, console: Console
) -> dict[str, str]:
  initial = initial_weights.open_weights(
    c, report=lambda text: console.print(text, soft_wrap=True)
  )
  for name in options.tasks:
    if task := task_data.find_published_task(name):
      model = initial.make_model(max(1, len(task.labels)))
      initial.open_networks(model, task)
  model = initial.make_model(1)
  config = model.config
  return {
    "network": f"{initial.role}, {config.layers} layers of {config.width}"
    f" units, vocabulary of {config.vocab_size:,} entries",
    "optimizer": f"peak learning rate {options.peak_rate(config.width):g},"
    f" layer decay {options.decay(config.width):g}",
    "export": finetuned.unsupported_reason(model) or c.finetune.export,
  }


def _describe_task(options: FinetuneOptions, name: str) -> str:
  """Describes the files of a task and, for the published ones, its steps."""
  splits = ["train", "dev", *["test"] * options.predict_test]
  text = "; ".join(
    f"{split}: {task_data.find_split(options, name, split)}" for split in splits
  )
  task = task_data.find_published_task(name)
  epochs = options.epochs or (task.epochs if task else 0)
  if task is None or "train" in task_data.parse_files(options, name):
    return f"{text}; {epochs:g} epochs"
  rows = count_rows(options, task)
  steps = batches.num_steps(rows, options.batch_size, epochs)
  least = "at least " * (task.kind == SPANS)  # a long context has several rows
  return f"{text}; {epochs:g} epochs of {least}{rows:,} rows, {steps:,} steps"


def count_rows(options: FinetuneOptions, task: Task) -> int:
  """Counts the training rows of a published task; of questions the least."""
  rows = min(task.split_sizes["train"], options.rows or sys.maxsize)
  return rows * (1 + task.both_orders)
