"""Finds a backbone, a file of this folder, by its name in a config."""

import importlib
import re
from typing import Any

from truenegs_jax.errors import InputError

NAMES = ("Embeddings", "Encoder", "VARIANTS")  # what a backbone has to have


def load(name: str) -> Any:
  """The module `truenegs_jax.models.<name>`; InputError if it is none."""
  module = f"truenegs_jax.models.{name}"
  if not re.fullmatch(r"[a-z]\w*", name):
    raise InputError(
      f"model.backbone {name!r}: give the name of a file of truenegs_jax/models"
      " without its .py."
    )
  try:
    found = importlib.import_module(module)
  except ModuleNotFoundError as e:
    if e.name != module:
      raise  # the backbone is there, and what it imports is not
    raise InputError(
      f"model.backbone {name!r}: there is no truenegs_jax/models/{name}.py."
    ) from e
  missing = [n for n in NAMES if not hasattr(found, n)]
  if missing:
    raise InputError(
      f"model.backbone {name!r}: truenegs_jax/models/{name}.py has no"
      f" {', '.join(missing)}."
    )
  return found
