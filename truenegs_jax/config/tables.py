"""The keys of each task: sections put together, and configs made of them."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.config import sections, task_sections
from truenegs_jax.config.keys import (
  LARGEST,
  Key,
  did_you_mean,
  flatten,
  list_keys,
)
from truenegs_jax.runtime.errors import InputError, one_of

Table = dict[str, Key]

PRETRAIN: Table = {
  **list_keys(sections.Top),
  **list_keys(sections.Model, "model."),
  **list_keys(sections.Masking, "masking."),
  **list_keys(sections.Negatives, "negatives."),
  **list_keys(sections.Generator, "generator."),
  **list_keys(sections.Data, "data."),
  **list_keys(sections.Optim, "optim."),
  **list_keys(sections.Mesh, "mesh."),
  **list_keys(sections.Checkpoint, "checkpoint."),
  **list_keys(sections.Log, "log."),
  **list_keys(sections.Eval, "eval."),
}


def _select(names: Iterable[str]) -> Table:
  """Returns keys of pre-training; "optim" stands for all of its section."""
  return {
    name: key
    for wanted in names
    for name, key in PRETRAIN.items()
    if name == wanted or name.startswith(f"{wanted}.")
  }


def _change(table: Table, name: str, **changes: Any) -> None:
  table[name] = dataclasses.replace(table[name], **changes)


def _make_finetune() -> Table:
  """Makes the table of fine-tuning: ELECTRA's recipe (Clark et al. 2020)."""
  network = ("dropout", "attention_dropout", "dtype", "remat", "scan")
  table = _select(
    (
      *("task", "seed", "init", "init_skip", "dry_run"),
      *("batch_size", "length"),
      *(f"model.{name}" for name in (*network, "attention", "variant")),
      *("data.vocab", "data.lowercase", "data.accents"),
      *("optim", "mesh.preset", "mesh.axes"),
      *("log.every_steps", "log.writers"),
    )
  ) | list_keys(task_sections.Finetune, "finetune.")
  del table["optim.warmup_steps"]  # a share of the steps here
  _change(table, "task", default="finetune")
  _change(table, "seed", high=LARGEST - 1000, may_change=True)  # seed + 1, ...
  _change(table, "init_skip", may_change=False)
  _change(table, "batch_size", default=32, meaning="Rows per update.")
  _change(table, "length", meaning="Tokens of a row, at most.")
  _change(table, "model.variant", default="init")
  _change(table, "data.vocab", default="init")
  _change(table, "optim.weight_decay", default=0.0)
  _change(
    table,
    "optim.lr",
    default=0.0,
    low=0,
    meaning="Learning rate: the peak; 0: from finetune.lrs.",
  )
  _change(table, "optim.max_skips", may_change=False)
  return table


def _make_corrections() -> Table:
  table = PRETRAIN | list_keys(task_sections.Corrections, "corrections.")
  _change(table, "task", default="corrections")
  _change(table, "batch_size", default=32, meaning="Lines per batch.")
  _change(table, "model.variant", default="init")
  _change(table, "data.vocab", default="init")
  return table


def _make_robustness() -> Table:
  table = _select(
    (
      *("task", "seed", "init", "dry_run", "batch_size", "length"),
      *("model.dtype", "model.attention", "data.vocab", "data.lowercase"),
      *("data.accents", "data.wordnet_dir", "mesh.preset", "mesh.axes"),
    )
  ) | list_keys(task_sections.Robustness, "robustness.")
  _change(table, "task", default="robustness")
  _change(table, "batch_size", default=32, meaning="Rows per batch.")
  _change(table, "data.vocab", default="init")
  _change(
    table,
    "length",
    default=0,
    low=0,
    meaning="Tokens of a row, at most; 0: as in fine-tuning, or 512 (GLUE:"
    " 128).",
  )
  return table


def _make_study() -> Table:
  table = _select(("task", "dry_run")) | list_keys(
    task_sections.Study, "study."
  )
  _change(table, "task", default="study")
  return table


TABLES: dict[str, Table] = {
  "pretrain": PRETRAIN,
  "finetune": _make_finetune(),
  "corrections": _make_corrections(),
  "robustness": _make_robustness(),
  "study": _make_study(),
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


def find_table(task: str | None) -> Table:
  """Returns the keys of a task; InputError for an unknown one."""
  one_of("task", str(task), TABLES)
  return TABLES[str(task)]


def check_values(config: ConfigDict) -> None:
  """Raises InputError for a number out of range or an unknown choice."""
  values = flatten(config.to_dict())
  for name, key in find_table(config.task).items():
    key.check_value(name, values[name])


def list_changeable(task: str) -> frozenset[str]:
  """Returns the keys that a resume may change."""
  return frozenset(
    name for name, key in TABLES.get(task, {}).items() if key.may_change
  )


def check_keys(path: str, config: ConfigDict) -> None:
  """Raises InputError for an unknown or missing key, or another type.

  `path` is the file of the config, for messages.
  """
  table, values = find_table(config.get("task")), flatten(config.to_dict())
  for name in sorted(values.keys() - table.keys()):
    meanings = {name: key.meaning for name, key in table.items()}
    hint = did_you_mean(name, meanings, "")
    raise InputError(f"'{path}' sets {name}, which is no key.{hint}")
  for name, key in table.items():
    if name not in values:
      raise InputError(
        f"'{path}' has no value of {name}. Start from a packaged config of"
        f" task={config.task!r}."
      )
    key.check_type(f"'{path}': {name}", values[name])
