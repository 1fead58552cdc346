"""The keys of each task: sections put together, and configs made of them."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.config import sections, task_sections
from truenegs_jax.config.keys import (
  LARGEST,
  Key,
  did_you_mean,
  flatten,
)
from truenegs_jax.runtime.errors import InputError, one_of

Table = dict[str, Key]

PRETRAIN: Table = sections.PretrainConfig.list_keys()
WARMUP = "optim.warmup_steps"  # a share of the steps in fine-tuning


def _derive(
  task: str, names: Iterable[str], own: Table, changes: Mapping[str, Any]
) -> Table:
  """Makes the table of a task from keys of pre-training and its own.

  `changes` are arguments of `Key` that differ for this task, by key.
  """
  table = {name: PRETRAIN[name] for name in names} | own
  for name, change in {"task": {"default": task}, **changes}.items():
    table[name] = dataclasses.replace(table[name], **change)
  return table


TABLES: dict[str, Table] = {
  "pretrain": PRETRAIN,
  "finetune": _derive(  # ELECTRA's recipe (Clark et al. 2020)
    "finetune",
    (
      *("task", "seed", "init", "init_skip", "dry_run"),
      *("batch_size", "length"),
      *("model.dropout", "model.attention_dropout", "model.dtype"),
      *("model.remat", "model.scan", "model.attention", "model.variant"),
      *("data.vocab", "data.lowercase", "data.accents"),
      *(x for x in PRETRAIN if x.startswith("optim.") and x != WARMUP),
      *("mesh.preset", "mesh.axes", "log.every_steps", "log.writers"),
    ),
    task_sections.Finetune.list_keys("finetune."),
    {
      "seed": {"high": LARGEST - 1000, "may_change": True},  # seed + 1, ...
      "init_skip": {"may_change": False},
      "batch_size": {"default": 32, "meaning": "Rows per update."},
      "length": {"meaning": "Tokens of a row, at most."},
      "model.variant": {"default": "init"},
      "data.vocab": {"default": "init"},
      "optim.weight_decay": {"default": 0.0},
      "optim.lr": {
        "default": 0.0,
        "low": 0,
        "meaning": "Learning rate: the peak; 0: from finetune.lrs.",
      },
      "optim.max_skips": {"may_change": False},
    },
  ),
  "corrections": _derive(
    "corrections",
    PRETRAIN,
    task_sections.Corrections.list_keys("corrections."),
    {
      "batch_size": {"default": 32, "meaning": "Lines per batch."},
      "model.variant": {"default": "init"},
      "data.vocab": {"default": "init"},
    },
  ),
  "robustness": _derive(
    "robustness",
    (
      *("task", "seed", "init", "dry_run", "batch_size", "length"),
      *("model.dtype", "model.attention", "data.vocab", "data.lowercase"),
      *("data.accents", "data.wordnet_dir", "mesh.preset", "mesh.axes"),
    ),
    task_sections.Robustness.list_keys("robustness."),
    {
      "batch_size": {"default": 32, "meaning": "Rows per batch."},
      "data.vocab": {"default": "init"},
      "length": {
        "default": 0,
        "low": 0,
        "meaning": "Tokens of a row, at most; 0: as in fine-tuning, or 512"
        " (GLUE: 128).",
      },
    },
  ),
  "study": _derive(
    "study", ("task", "dry_run"), task_sections.Study.list_keys("study."), {}
  ),
}


def make_config(task: str) -> ConfigDict:
  """Makes a config of a task's defaults."""
  config = ConfigDict()
  for name, key in TABLES[task].items():
    section, _, last = name.rpartition(".")
    if section and section not in config:
      config[section] = ConfigDict()
    (config[section] if section else config)[last] = key.default
  if task in ("pretrain", "corrections"):  # unless set, samples follow it
    reference = config.negatives.get_oneway_ref("temperature")
    config.generator.temperature = reference
  return config


def check_values(config: ConfigDict) -> None:
  """Raises InputError for a number out of range or an unknown choice."""
  values = flatten(config.to_dict())
  for name, key in TABLES[config.task].items():
    key.check_value(name, values[name])


def check_keys(path: str, config: ConfigDict) -> None:
  """Raises InputError for an unknown or missing key, or another type.

  `path` is the file of the config, for messages.
  """
  task, values = str(config.get("task")), flatten(config.to_dict())
  one_of("task", task, TABLES)
  table = TABLES[task]
  for name in sorted(values.keys() - table.keys()):
    meanings = {name: key.meaning for name, key in table.items()}
    hint = did_you_mean(name, meanings, "")
    raise InputError(f"'{path}' sets {name}, which is no key.{hint}")
  for name, key in table.items():
    if name not in values:
      raise InputError(
        f"'{path}' has no value of {name}. Start from a packaged config of"
        f" task={task!r}."
      )
    key.check_type(f"'{path}': {name}", values[name])
