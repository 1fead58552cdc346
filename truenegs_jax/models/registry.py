"""Looks up backbones, which are modules of this folder, and their sizes.

variant_sizes("encoder", "small")
variant_sizes("encoder", "embedding_size=8 width=16 layers=2 heads=2 ffn=64")
"""

import dataclasses
import importlib
import re
from collections.abc import Mapping
from typing import Any

from truenegs_jax.models import encoder
from truenegs_jax.runtime.errors import InputError

REQUIRED_NAMES = ("Embeddings", "Encoder", "VARIANTS")  # of a backbone
REQUIRED_SIZES = ("embedding_size", "width", "layers", "heads", "ffn")
OPTIONAL_SIZES = ("type_vocab_size",)
SHARED_SIZES = ("embedding_size", *OPTIONAL_SIZES)  # by the networks of a pair


def load_backbone(name: str) -> Any:
  """Imports `truenegs_jax.models.NAME`, or raises an InputError."""
  module = f"truenegs_jax.models.{name}"
  path = f"truenegs_jax/models/{name}.py"
  if not re.fullmatch(r"[a-z]\w*", name):
    raise InputError(
      f"model.backbone={name!r} is not a module name. Set it to the name of a"
      " file in truenegs_jax/models, without .py."
    )
  try:
    backbone = importlib.import_module(module)
  except ModuleNotFoundError as e:
    if e.name != module:
      raise  # the backbone exists, but a module that it imports does not
    raise InputError(
      f"model.backbone={name!r} is unknown. There is no '{path}'."
    ) from e
  missing = [n for n in REQUIRED_NAMES if not hasattr(backbone, n)]
  if missing:
    raise InputError(
      f"model.backbone={name!r} is not a backbone. '{path}' does not define"
      f" {', '.join(missing)}."
    )
  return backbone


def variant_sizes(
  backbone: str, variant: str, *, key: str = "model.variant"
) -> dict[str, int]:
  """Returns the sizes of a variant, which are fields of `EncoderConfig`.

  Args:
    backbone: its name.
    variant: a name in the backbone's VARIANTS, or a list of all REQUIRED_SIZES
      and maybe OPTIONAL_SIZES, "width=16 layers=2 ...", by spaces or commas.
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
  pattern = "|".join((*REQUIRED_SIZES, *OPTIONAL_SIZES))
  pattern = f"({pattern})=[1-9][0-9]{{0,6}}"
  problems = [word for word in words if not re.fullmatch(pattern, word)]
  problems += [f"no {size}" for size in REQUIRED_SIZES if size not in names]
  problems += [
    f"{name} twice" for name in dict.fromkeys(names) if names.count(name) > 1
  ]
  if problems:
    problem = "is unknown"
    if "=" in variant:
      problem = f"is no list of sizes: {', '.join(problems)}"
    raise InputError(
      f"{key}={variant!r} {problem}. Choose {', '.join(variants)}, or list all"
      f" of {'=, '.join(REQUIRED_SIZES)}=, and optionally"
      f" {'=, '.join(OPTIONAL_SIZES)}=, each an integer from 1 to 9,999,999."
    )
  return {word.partition("=")[0]: int(word.partition("=")[2]) for word in words}


def make_network_config(
  backbone: str, variant: str, fields: Mapping[str, Any]
) -> encoder.EncoderConfig:
  """Builds the config of a network: the variant's sizes, replaced by `fields`.

  Raises:
    InputError: as `variant_sizes`; or heads that do not divide the width.
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
    InputError: as `make_network_config`; or embeddings of different sizes.
  """
  if not variant:
    scaled = encoder.scale_config(discriminator, multiplier)
    return _check_heads("generator", scaled)
  sizes: dict[str, Any] = variant_sizes(
    backbone, variant, key="generator.variant"
  )
  for name in SHARED_SIZES:
    shared = getattr(discriminator, name)
    if sizes.get(name, shared) != shared:
      raise InputError(
        f"generator.variant={variant!r} has {name}={sizes[name]}. The networks"
        f" share their embeddings. Set {name}={shared}, as in the"
        " discriminator."
      )
  return _check_heads("generator", dataclasses.replace(discriminator, **sizes))


def _check_heads(
  network: str, config: encoder.EncoderConfig
) -> encoder.EncoderConfig:
  """Returns the config if its heads divide its width."""
  if config.width < 1 or config.width % config.heads:
    raise InputError(
      f"{network}: {config.heads} heads do not divide a width of"
      f" {config.width}. Choose another width, number of heads or"
      " generator.multiplier."
    )
  return config
