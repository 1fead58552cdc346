"""Looks up a backbone, a file of this folder, and the sizes of its networks.

sizes("encoder", "small")
sizes("encoder", "embedding_size=128 width=256 layers=12 heads=4 ffn=1024")
"""

import dataclasses
import importlib
import re
from collections.abc import Mapping
from typing import Any

from truenegs_jax.models import encoder
from truenegs_jax.runtime.errors import InputError

REQUIRED_NAMES = (
  "Embeddings",
  "Encoder",
  "VARIANTS",
)  # what a backbone has to have
# What a list of sizes gives: all of the first, if need be the second.
REQUIRED_SIZES = ("embedding_size", "width", "layers", "heads", "ffn")
OPTIONAL_SIZES = ("type_vocab_size",)
SHARED_SIZES = (
  "embedding_size",
  *OPTIONAL_SIZES,
)  # by the two networks of a pair


def load_backbone(name: str) -> Any:
  """The module `truenegs_jax.models.<name>`; InputError if it is none."""
  module = f"truenegs_jax.models.{name}"
  if not re.fullmatch(r"[a-z]\w*", name):
    raise InputError(
      f"model.backbone {name!r}: give the name of a file of truenegs_jax/models"
      " without its .py."
    )
  try:
    backbone = importlib.import_module(module)
  except ModuleNotFoundError as e:
    if e.name != module:
      raise  # the backbone is there, and what it imports is not
    raise InputError(
      f"model.backbone {name!r}: there is no truenegs_jax/models/{name}.py."
    ) from e
  missing = [n for n in REQUIRED_NAMES if not hasattr(backbone, n)]
  if missing:
    raise InputError(
      f"model.backbone {name!r}: truenegs_jax/models/{name}.py has no"
      f" {', '.join(missing)}."
    )
  return backbone


def variant_sizes(
  backbone: str, variant: str, *, name: str = "model.variant"
) -> dict[str, int]:
  """The sizes of a variant: fields of `encoder.EncoderConfig`.

  Args:
    backbone: its name.
    variant: a name in the backbone's VARIANTS, or a list of all of SIZES and,
      if they are not the default, MORE: "width=256 layers=12 ..."; commas do
      as well.
    name: what the config calls it, for messages.

  Raises:
    InputError: an unknown variant; a list that lacks a size, has one twice, or
      has another or what is no whole number >= 1.
  """
  variants = load_backbone(backbone).VARIANTS
  if variant in variants:
    return dict(variants[variant])
  words = variant.replace(",", " ").split()
  keys = [word.partition("=")[0] for word in words]
  pattern = (
    f"({'|'.join((*REQUIRED_SIZES, *OPTIONAL_SIZES))})=[1-9][0-9]{{0,6}}"
  )
  wrong = [word for word in words if not re.fullmatch(pattern, word)]
  wrong += [f"no {key}" for key in REQUIRED_SIZES if key not in keys]
  wrong += [
    f"{key} twice" for key in dict.fromkeys(keys) if keys.count(key) > 1
  ]
  if wrong:
    problem = f": {', '.join(wrong)}" if "=" in variant else " is unknown"
    raise InputError(
      f"{name} {variant!r}{problem}; known: {', '.join(variants)}, or all of"
      f" {'=, '.join(REQUIRED_SIZES)}=, and maybe"
      f" {'=, '.join(OPTIONAL_SIZES)}=, whole numbers"
      " below 10,000,000."
    )
  return {word.partition("=")[0]: int(word.partition("=")[2]) for word in words}


def make_network_config(
  backbone: str, variant: str, fields: Mapping[str, Any]
) -> encoder.EncoderConfig:
  """A network of a variant, with `fields`, which are stronger.

  Raises:
    InputError: as `variant_sizes`; heads that do not divide the width.
  """
  config = encoder.EncoderConfig(
    **{**variant_sizes(backbone, variant), **fields}
  )
  return _checked("model", config)


def make_generator_config(
  discriminator: encoder.EncoderConfig,
  backbone: str,
  *,
  multiplier: float,
  variant: str,
) -> encoder.EncoderConfig:
  """The generator beside a discriminator: of a variant, or "" to scale it.

  Raises:
    InputError: as `make_network_config`; or different embeddings.
  """
  if not variant:
    scaled = encoder.scale_config(discriminator, multiplier)
    return _checked("generator", scaled)
  given: dict[str, Any] = variant_sizes(
    backbone, variant, name="generator.variant"
  )
  for key in SHARED_SIZES:
    shared = getattr(discriminator, key)
    if given.get(key, shared) != shared:
      raise InputError(
        f"generator.variant {variant!r}: the two networks share their"
        f" embeddings, and the discriminator's {key} is {shared}; give that."
      )
  return _checked("generator", dataclasses.replace(discriminator, **given))


def _checked(name: str, config: encoder.EncoderConfig) -> encoder.EncoderConfig:
  if config.width < 1 or config.width % config.heads:
    raise InputError(
      f"{name}: {config.heads} heads do not divide a width of {config.width};"
      " choose another width, number of heads or generator.multiplier."
    )
  return config
