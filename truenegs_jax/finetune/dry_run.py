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
from truenegs_jax.finetune.config_checks import SQUAD, FinetuneOptions
from truenegs_jax.models import pretrain
from truenegs_jax.tasks import batches, glue, squad
from truenegs_jax.tasks.task import Task
from truenegs_jax.train import plan, sharding
from truenegs_jax.weights.export import finetuned
from truenegs_jax.weights.formats import find

TASKS = {**glue.TASKS, SQUAD: squad.TASK}


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
    **_describe_network(c, options, console),
    "recipe": f"batches of {options.batch_size} rows of at most"
    f" {options.length} tokens, {options.schedule} schedule,"
    f" {options.warmup:.0%} warm-up, head {c.finetune.head!r}",
    "seeds": f"{seeds[0]} to {seeds[-1]}; {missing:,} of"
    f" {len(seeds) * len(options.tasks):,} runs are to train",
  }
  for name in options.tasks:
    lines[name] = _describe_task(options, name)
  console.print(plan.report_table(lines))
  return 0


def _describe_network(
  c: ConfigDict, options: FinetuneOptions, console: Console
) -> dict[str, str]:
  if c.init and not find.is_local(c.init):
    return {"weights": find.describe(c.init)}
  initial = initial_weights.open_weights(
    c, report=lambda text: console.print(text, soft_wrap=True)
  )
  model = initial.make_model(1)
  for name in TASKS.keys() & set(options.tasks):
    task = TASKS[name]
    initial.open_networks(initial.make_model(len(task.labels or "1")), task)
  shapes, width = pretrain.param_shapes(model), model.config.width
  network = [shapes["embeddings"], shapes[initial.role]]
  return {
    "weights": find.describe(c.init) if c.init else "drawn at random",
    "network": f"{initial.role}, {model.config.layers} layers of {width} units,"
    f" {pretrain.count_parameters(network):,} parameters without a head",
    "vocabulary": f"{len(initial.tokenizer.vocab):,} entries",
    "optimizer": f"peak learning rate {options.peak_rate(width):g}, layer decay"
    f" {options.decay(width):g}",
    "export": finetuned.unsupported_reason(model) or c.finetune.export,
  }


def _describe_task(options: FinetuneOptions, name: str) -> str:
  """Describes the files of a task and, for the published ones, its steps."""
  splits = ["train", "dev", *["test"] * options.predict_test]
  files = "; ".join(
    f"{split}: {task_data.find_split(options, name, split)}" for split in splits
  )
  epochs = options.epochs or TASKS[name].epochs
  if "train" in task_data.parse_files(options, name):
    return f"{files}; {epochs:g} epochs"
  task: Task = TASKS[name]
  rows = min(task.split_sizes["train"], options.rows or sys.maxsize)
  rows *= 1 + task.both_orders
  steps = batches.num_steps(rows, options.batch_size, epochs)
  kind = "questions, at least" if name == SQUAD else "rows,"
  return f"{files}; {epochs:g} epochs of {rows:,} {kind} {steps:,} steps"
