"""Generates the reference of all config keys, for reference/config.md."""

import importlib
from collections.abc import Iterable

from ml_collections import ConfigDict

from truenegs_jax.configs import common, corrections, robustness, study
from truenegs_jax.runtime.config_files import flatten, packaged_names
from truenegs_jax.runtime.config_keys import Key, describe_keys

PLACEHOLDER = "<!-- keys -->"
FINETUNING = ("finetune_glue", "finetune_squad", "finetune_own")
COLUMNS = ("key", "meaning", "default", "values", "resume")


def render() -> str:
  """Returns sections with a table of keys for each task, in Markdown."""
  pretraining = describe_keys(common.get_config())
  finetuning = dict[str, Key]()
  for name in FINETUNING:
    finetuning |= {key.name: key for key in describe_keys(_load(name))}
  measuring = describe_keys(corrections.get_config())
  transforming = describe_keys(robustness.get_config())
  comparing = describe_keys(study.get_config())
  return "\n\n".join(
    [
      "## Pre-training",
      *_groups(pretraining),
      "## Fine-tuning",
      "Defaults are those of `finetune_glue`, `finetune_squad` or"
      " `finetune_own`.",
      *_groups(finetuning.values()),
      "## Measuring corrections",
      *_groups(measuring, resumes=False),
      "## Measuring robustness",
      *_groups(transforming, resumes=False),
      "## Studies",
      *_groups(comparing, resumes=False),
      "## What the configs change",
      *(_changes(name) for name in packaged_names() if _pretrains(name)),
    ]
  )


def _load(name: str) -> ConfigDict:
  return importlib.import_module(f"truenegs_jax.configs.{name}").get_config()


def _pretrains(name: str) -> bool:
  return _load(name).task == "pretrain"


def _groups(keys: Iterable[Key], *, resumes: bool = True) -> list[str]:
  """Returns a table for each group of keys, `model.`, `optim.` and so on."""
  groups: dict[str, list[Key]] = {}
  for key in keys:
    groups.setdefault(key.name.rpartition(".")[0], []).append(key)
  tables = []
  for name, members in groups.items():
    title = f"### {name or 'Keys without a group'}"
    rows = [COLUMNS, *map(_row, members)]
    if not resumes:
      rows = [row[:-1] for row in rows]
    tables.append(f"{title}\n\n{_table(rows[0], rows[1:])}")
  return tables


def _row(key: Key) -> tuple[str, ...]:
  return (
    f"`{key.name}`",
    key.meaning,
    _code(key.value),
    key.allowed(_code),
    "may change" if key.rule.may_change else "fixed",
  )


def _changes(name: str) -> str:
  """Returns how a pre-training config differs from the defaults."""
  config, defaults = _load(name), flatten(common.get_config().to_dict())
  text = importlib.import_module(f"truenegs_jax.configs.{name}").__doc__ or ""
  changed = [
    (f"`{key}`", _code(value))
    for key, value in flatten(config.to_dict()).items()
    if key in defaults and value != defaults[key]
  ]
  summary = f"### `{name}`\n\n{text.splitlines()[0]}"
  return f"{summary}\n\n{_table(('key', 'value'), changed)}"


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
  lines = [header, ("---" for _ in header), *rows]
  return "\n".join(f"| {' | '.join(map(_escape, line))} |" for line in lines)


def _escape(cell: str) -> str:
  return " ".join(cell.replace("|", "\\|").split())


def _code(value: object) -> str:
  text = repr(value) if isinstance(value, str) else f"{value}"
  return f"`{text}`"
