"""Looks up backbones, which are modules of this folder, and their sizes.

variant_sizes("encoder", "small")
variant_sizes("encoder", "embedding_size=8 width=16 layers=2 heads=2 ffn=64")
"""

import importlib
import pkgutil
import re
import types
from typing import Any

from truenegs_jax import models
from truenegs_jax.runtime.errors import InputError

REQUIRED_NAMES = ("Embeddings", "Encoder", "VARIANTS")  # of a backbone
REQUIRED_SIZES = ("embedding_size", "width", "layers", "heads", "ffn")
OPTIONAL_SIZES = ("type_vocab_size",)


def load_backbone(name: str) -> types.ModuleType:
  """Imports a module of `models.__path__`, or raises an InputError."""
  backbone: Any = None
  if name in {module.name for module in pkgutil.iter_modules(models.__path__)}:
    backbone = importlib.import_module(f"truenegs_jax.models.{name}")
  if not all(hasattr(backbone, required) for required in REQUIRED_NAMES):
    raise InputError(
      f"model.backbone={name!r} is not a backbone. Choose encoder, rotary or"
      " another file of truenegs_jax/models that defines"
      f" {', '.join(REQUIRED_NAMES)}."
    )
  return backbone


def variant_sizes(
  backbone: str, variant: str, *, key: str = "model.variant"
) -> dict[str, int]:
  """Returns the sizes of a variant, which are fields of `EncoderConfig`.

  Args:
    backbone: its name.
    variant: a name in the backbone's VARIANTS, or a list of all REQUIRED_SIZES
      and maybe OPTIONAL_SIZES, "width=16 layers=2 ...", separated by spaces or
      commas.
    key: the config key of the variant, for messages.

  Raises:
    InputError: an unknown name; or a list with a missing, repeated or unknown
      size, or with a value that is not an integer from 1 to 9,999,999.
  """
  variants = load_backbone(backbone).VARIANTS
  if variant in variants:
    return dict(variants[variant])
  words = variant.replace(",", " ").split()
  pattern = (
    f"({'|'.join((*REQUIRED_SIZES, *OPTIONAL_SIZES))})=([1-9][0-9]{{0,6}})"
  )
  matches = [re.fullmatch(pattern, word) for word in words]
  sizes = {match[1]: int(match[2]) for match in matches if match}
  if len(sizes) < len(words) or not sizes.keys() >= set(REQUIRED_SIZES):
    raise InputError(
      f"{key}={variant!r} is neither a name nor a list of sizes. Choose"
      f" {', '.join(variants)}, or list each of {'=, '.join(REQUIRED_SIZES)}="
      f" once, and optionally {'=, '.join(OPTIONAL_SIZES)}=, with integers from"
      " 1 to 9,999,999."
    )
  return sizes
