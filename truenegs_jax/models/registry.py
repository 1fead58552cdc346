"""Looks up backbones, which are modules of this folder, and their sizes.

variant_sizes("encoder", "small")
variant_sizes("encoder", "embedding_size=8 width=16 layers=2 heads=2 ffn=64")
"""

import collections
import dataclasses
import importlib
import re
import types
from collections.abc import Mapping
from typing import Any

from truenegs_jax.models import encoder
from truenegs_jax.runtime.errors import InputError

REQUIRED_NAMES = ("Embeddings", "Encoder", "VARIANTS")  # of a backbone
REQUIRED_SIZES = ("embedding_size", "width", "layers", "heads", "ffn")
OPTIONAL_SIZES = ("type_vocab_size",)
SHARED_SIZES = ("embedding_size", *OPTIONAL_SIZES)  # by the networks of a pair


def load_backbone(name: str) -> types.ModuleType:
  """Imports `truenegs_jax.models.NAME`, or raises an InputError."""
  key, module = f"model.backbone={name!r}", f"truenegs_jax.models.{name}"
  if not re.fullmatch(r"[a-z]\w*", name):
    raise InputError(
      f"{key} is not a module name. Set it to the name of a file in"
      " truenegs_jax/models, without .py."
    )
  path = f"truenegs_jax/models/{name}.py"
  try:
    backbone = importlib.import_module(module)
  except ModuleNotFoundError as e:
    if e.name != module:
      raise  # the backbone exists, but a module that it imports does not
    raise InputError(f"{key} is unknown. There is no '{path}'.") from e
  missing = [n for n in REQUIRED_NAMES if not hasattr(backbone, n)]
  if missing:
    raise InputError(
      f"{key} is not a backbone. '{path}' does not define {', '.join(missing)}."
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
  names = [word.partition("=")[0] for word in words]
  size = f"({'|'.join((*REQUIRED_SIZES, *OPTIONAL_SIZES))})=[1-9][0-9]{{0,6}}"
  problems = [word for word in words if not re.fullmatch(size, word)]
  problems += [f"no {name}" for name in REQUIRED_SIZES if name not in names]
  counts = collections.Counter(names)
  problems += [f"{name} twice" for name in counts if counts[name] > 1]
  if problems:
    problem = "is unknown"
    if "=" in variant:
      problem = f"is no list of sizes: {', '.join(problems)}"
    raise InputError(
      f"{key}={variant!r} {problem}. Choose {', '.join(variants)}, or list all"
      f" of {'=, '.join(REQUIRED_SIZES)}=, and optionally"
      f" {'=, '.join(OPTIONAL_SIZES)}=, each an integer from 1 to 9,999,999."
    )
  values = [int(word.partition("=")[2]) for word in words]
  return dict(zip(names, values, strict=True))


def make_network_config(
  backbone: str, variant: str, fields: Mapping[str, Any]
) -> encoder.EncoderConfig:
  """Builds the config of a network: the variant's sizes, replaced by `fields`.

  Raises:
    InputError: heads that do not divide the width, or as `variant_sizes`.
  """
  sizes = variant_sizes(backbone, variant)
  return _check_heads("model", encoder.EncoderConfig(**{**sizes, **fields}))


def make_generator_config(
  discriminator: encoder.EncoderConfig,
  backbone: str,
  *,
  multiplier: float,
  variant: str,
) -> encoder.EncoderConfig:
  """Builds the config of a generator for a discriminator.

  Its sizes are those of `variant`, or if that is "" the discriminator's with
  the width scaled by `multiplier`.

  Raises:
    InputError: embeddings of another size, or as `make_network_config`.
  """
  if not variant:
    scaled = encoder.scale_config(discriminator, multiplier)
    return _check_heads("generator", scaled)
  key = "generator.variant"
  sizes: dict[str, Any] = variant_sizes(backbone, variant, key=key)
  for name in SHARED_SIZES:
    shared = getattr(discriminator, name)
    if sizes.get(name, shared) != shared:
      raise InputError(
        f"generator.variant={variant!r} has {name}={sizes[name]}. It shares its"
        f" embeddings with the discriminator. Set {name}={shared}."
      )
  return _check_heads("generator", dataclasses.replace(discriminator, **sizes))


def _check_heads(
  network: str, config: encoder.EncoderConfig
) -> encoder.EncoderConfig:
  """Returns the config, or raises InputError if its heads do not fit."""
  if config.width < 1 or config.width % config.heads:
    raise InputError(
      f"{network}: {config.heads} heads do not divide a width of"
      f" {config.width}. Choose another width, number of heads or"
      " generator.multiplier."
    )
  return config
