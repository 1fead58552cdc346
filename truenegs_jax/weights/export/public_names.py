"""Names of weights, texts and commands without the folders of this machine."""

import contextlib
import os
import pathlib
import re
import shlex
from typing import Any

from truenegs_jax.runtime.hub_names import is_hub_name

# A path from the root, a home or a parent folder, without its last part.
OUTSIDE = re.compile(
  r"(?<![^\s=,|&:'\"(\[])(hf:)?(~[^/]*|\.\.)?/([^=,|&]*/)?(?=[^\s=,|&])"
)
ROLE_FOLDERS = (
  "",
  "discriminator",
  "bert",
  "export/discriminator",
  "export/bert",
)


def hide_folders(text: str) -> str:
  """Reduces paths that lead out of the working directory to their last part.

  hide_folders("/home/me/my texts/*.txt weight=2, hf:owner/name")
  "*.txt weight=2, hf:owner/name"
  """
  return OUTSIDE.sub("", text)


def hide_in_command(command: str) -> str:
  """Hides folders in a shell command, and --workdir."""
  words = [x for x in shlex.split(command) if not x.startswith("--workdir=")]
  return shlex.join(map(hide_folders, words))


def find_datasets(text: str) -> list[str]:
  """Returns the hub's data sets among the hf:NAME of a config value."""
  names = re.findall(r"\bhf:([^\s,:]+)", text)
  return [x for x in names if is_hub_name(x) and not os.path.exists(x)]


def find_models(init: str) -> list[str]:
  """Returns the models in the hub's cache that `config.init` names."""
  from huggingface_hub import constants

  def is_cached(name: str) -> bool:
    folder = f"models--{name.replace('/', '--')}"
    return pathlib.Path(constants.HF_HUB_CACHE, folder).exists()

  names = [x.strip().partition("@")[0] for x in init.split(",")]
  return [x for x in names if is_cached(x) and not os.path.exists(x)]


def describe_base(init: str) -> dict[str, Any]:
  """Returns the metadata of weights that were trained further."""
  names = find_models(init)
  relation = {"base_model_relation": "finetune"} if names else {}
  return {"base_model": names, **relation}


def read_metadata(init: str) -> dict[str, Any]:
  """Returns language and license that the card of weights names.

  The card is in a folder, or in the hub's cache after a download.
  """
  import huggingface_hub  # slow to import
  import yaml

  name = init.partition(",")[0].strip()
  folder = pathlib.Path(name).expanduser()
  paths = [folder / role / "README.md" for role in ROLE_FOLDERS if init]
  repo, _, revision = name.partition("@")
  if is_hub_name(repo):
    cached = huggingface_hub.try_to_load_from_cache(
      repo, "README.md", revision=revision or None
    )
    paths += [pathlib.Path(cached)] if isinstance(cached, str) else []
  for path in paths:
    with contextlib.suppress(
      OSError, ValueError, RecursionError, yaml.YAMLError
    ):
      metadata = huggingface_hub.metadata_load(path) or {}
      return {name: metadata.get(name) for name in ("language", "license")}
  return {}
