"""Generates the reference of all config keys, for reference/config.md."""

import importlib
from collections.abc import Iterable, Mapping

from ml_collections import ConfigDict

from truenegs_jax.config.keys import Key, flatten
from truenegs_jax.config.load import packaged_names
from truenegs_jax.config.tables import TABLES, make_config

PLACEHOLDER = "<!-- keys -->"
TITLES = {
  "pretrain": "Pre-training",
  "finetune": "Fine-tuning",
  "corrections": "Measuring corrections",
  "blimp": "Measuring grammar",
  "robustness": "Measuring robustness",
  "study": "Studies",
}
RESUMED = ("pretrain", "finetune")
COLUMNS = ("key", "meaning", "default", "values", "resume")


def render() -> str:
  """Returns sections with a table of keys for each task, in Markdown."""
  blocks = []
  for task, title in TITLES.items():
    blocks += [f"## {title}", *_groups(TABLES[task], resumes=task in RESUMED)]
  configs = (name for name in packaged_names() if _pretrains(name))
  changes = map(_changes, configs)
  return "\n\n".join([*blocks, "## What the configs change", *changes])


def _load(name: str) -> ConfigDict:
  return importlib.import_module(f"truenegs_jax.configs.{name}").get_config()


def _pretrains(name: str) -> bool:
  return _load(name).task == "pretrain"


def _groups(table: Mapping[str, Key], *, resumes: bool) -> list[str]:
  """Returns a table for each group of keys, `model.`, `optim.` and so on."""
  groups: dict[str, list[tuple[str, ...]]] = {}
  for name, key in table.items():
    row = _row(name, key) if resumes else _row(name, key)[:-1]
    groups.setdefault(name.rpartition(".")[0], []).append(row)
  return [
    f"### {name or 'Keys without a group'}\n\n"
    + _table(COLUMNS[: len(rows[0])], rows)
    for name, rows in groups.items()
  ]


def _row(name: str, key: Key) -> tuple[str, ...]:
  values = ", ".join(map(_code, key.choices)) or key.describe_range()
  kind = type(key.default).__name__
  return (
    f"`{name}`",
    key.meaning,
    _code(key.default),
    f"{kind}: {values}" if values else kind,
    "may change" if key.may_change else "fixed",
  )


def _changes(name: str) -> str:
  """Returns how a pre-training config differs from the defaults."""
  config, defaults = _load(name), flatten(make_config("pretrain").to_dict())
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
