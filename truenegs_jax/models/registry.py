"""Looks up backbones, which are modules of this folder, and their sizes.

variant_sizes("encoder", "small")
variant_sizes("encoder", "embedding_size=8 width=16 layers=2 heads=2 ffn=64")
"""

import importlib
import pkgutil
import types
from typing import Any

from truenegs_jax import models
from truenegs_jax.config import grammar
from truenegs_jax.runtime.errors import InputError

REQUIRED_NAMES = ("Embeddings", "Encoder", "VARIANTS")  # of a backbone
REQUIRED_SIZES = ("embedding_size", "width", "layers", "heads", "ffn")
OPTIONAL_SIZES = ("type_vocab_size",)
LARGEST_SIZE = 9_999_999
FAMILY = ("small", "base", "large")  # of released models


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
      and maybe OPTIONAL_SIZES, "width=16 layers=2 ...".
    key: the config key of the variant, for messages.

  Raises:
    InputError: an unknown name, or a list with a missing, repeated, unknown or
      wrong size.
  """
  variants = load_backbone(backbone).VARIANTS
  if variant in variants:
    return dict(variants[variant])
  item = grammar.parse_item(variant, key=key)
  names = (*REQUIRED_SIZES, *OPTIONAL_SIZES)
  if item.name or not item.options.keys() >= set(REQUIRED_SIZES):
    raise InputError(
      f"{key}={variant!r} is neither a name nor a list of sizes. Choose"
      f" {', '.join(variants)}, or list each of {'=, '.join(REQUIRED_SIZES)}="
      f" once, and optionally {'=, '.join(OPTIONAL_SIZES)}=."
    )
  sizes = item.convert(dict.fromkeys(names, 1), subject=key)
  for name, size in sizes.items():
    if not 1 <= size <= LARGEST_SIZE:
      raise InputError(
        f"{key}: {name}={size} must be from 1 to {LARGEST_SIZE:,}."
      )
  return {name: sizes[name] for name in item.options}


def find_family(width: int) -> str:
  """Returns the name in FAMILY for a width: base from 768, large from 1,024."""
  return FAMILY[(width >= 768) + (width >= 1024)]
