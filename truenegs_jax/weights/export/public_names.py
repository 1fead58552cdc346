"""Names of weights, texts and commands without the folders of this machine."""

import contextlib
import os
import pathlib
import re
import shlex
from typing import Any

from truenegs_jax.runtime.hub_names import is_hub_name
from truenegs_jax.weights.formats import hf_hub
from truenegs_jax.workdir import files

HUB_DATASET = re.compile(r"\bhf:([^\s,:]+)")
SEPARATOR = re.compile(r"([=,|&]\s*)")


def hide_folders(text: str) -> str:
  """Reduces each path in a config value to its last part; keeps hub names.

  hide_folders("/home/me/my texts/*.txt weight=2, hf:owner/name")
  "*.txt weight=2, hf:owner/name"
  """
  return "".join(map(_hide_folder, SEPARATOR.split(text)))


def _hide_folder(segment: str) -> str:
  """Reduces a value and what follows it, without a separator."""
  first, space, rest = segment.partition(" ")
  name = re.split("[@:]", first.removeprefix("hf:"))[0]
  if "/" not in rest and (_is_hub_name(name) or name.startswith("refs/")):
    return segment
  return segment.rstrip("/").rpartition("/")[2]


def hide_in_command(command: str) -> str:
  """Reduces each path in a shell command to its last part."""
  return shlex.join(map(hide_folders, shlex.split(command)))


def find_datasets(text: str) -> list[str]:
  """Returns the hub's data sets among the hf:NAME of a config value."""
  return [name for name in HUB_DATASET.findall(text) if _is_hub_name(name)]


def find_models(init: str) -> list[str]:
  """Returns the models in the hub's cache that `config.init` names."""
  import huggingface_hub  # slow to import

  models = []
  for location in map(str.strip, init.split(",")):
    repo, _, revision = location.partition("@")
    if hf_hub.is_model_name(location) and _is_hub_name(repo):
      config = huggingface_hub.try_to_load_from_cache(
        repo, "config.json", revision=revision or None
      )
      models += [repo] if isinstance(config, str) else []
  return models


def read_metadata(init: str) -> dict[str, Any]:
  """Returns language and license, if weights in a folder state them."""
  import huggingface_hub  # slow to import
  import yaml

  folder = pathlib.Path(init.partition(",")[0].strip()).expanduser()
  if run := files.parse_run_path(folder):
    saved = files.read_saved_config(run[0])
    return {"language": saved["data"]["language"] or None} if saved else {}
  for path in (folder, folder / "discriminator", folder / "bert"):
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
      metadata = huggingface_hub.metadata_load(path / "README.md") or {}
      return {k: metadata.get(k) for k in ("language", "license")}
  return {}


def _is_hub_name(name: str) -> bool:
  """Whether the hub could have the name, and this machine has no such path."""
  return is_hub_name(name) and not os.path.exists(name)
