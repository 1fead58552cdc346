"""Fills in what a config leaves to the weights that it starts from."""

import operator
from collections.abc import Mapping
from typing import Any

from truenegs_jax.config import sections
from truenegs_jax.config.keys import flatten
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs.common import REQUIRED
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights import find, hf_config

ROLES = {"electra": ("discriminator", "generator"), "mlm": ("bert",)}


def replace_init(
  config: PretrainConfig,
  weights: find.Weights,
  *,
  saved: Mapping[str, Any] | None,
) -> PretrainConfig:
  """Fills in what "init" leaves open: sizes and vocabulary of the weights.

  A run that resumes takes them from the config of its checkpoint, `saved`.
  `model.variant`="init" is for the generator, too, if the weights have one.
  With the backbone `modern`, it replaces thetas of rotary positions that are 0.
  """
  changes = {}
  if saved is not None:
    changes = {name: saved[name] for name in ("init", "init_skip")}
    if config.init not in ("", REQUIRED, saved["init"]):
      start = repr(saved["init"]) if saved["init"] else "scratch"
      weights.report(
        f"init={config.init!r} is ignored. This run resumes from its"
        f" checkpoint; it was started from {start}."
      )
  own = _list_open_keys(config)
  known = _read_known_keys(config, weights, own, saved)
  for name, value in own.items():
    new = known.get(name) or value
    if value and value not in (new, sections.FROM_WEIGHTS):
      weights.report(
        f"{name}={value} is ignored. With model.variant=init it is that of the"
        f" weights, {new}."
      )
    changes[name] = new
  return config.replace(changes)


def _list_open_keys(config: PretrainConfig) -> dict[str, Any]:
  """Returns the keys that `init` decides, with their values in the config."""
  names = []
  if config.model.variant == sections.FROM_WEIGHTS:
    names += [f"model.{name}" for name in sections.SIZES]
    names += [f"generator.{name}" for name in sections.GENERATOR_SIZES]
  else:
    open_sizes = (f"model.{name}" for name in sections.OPEN_SIZES)
    names += [x for x in open_sizes if not operator.attrgetter(x)(config)]
  if config.data.vocab == sections.FROM_WEIGHTS:
    names.append("data.vocab")
  if config.model.backbone == "modern":
    thetas = (f"model.{name}" for name in hf_config.THETAS)
    names += [x for x in thetas if not operator.attrgetter(x)(config)]
  return {name: operator.attrgetter(name)(config) for name in names}


def _read_known_keys(
  config: PretrainConfig,
  weights: find.Weights,
  own: Mapping[str, Any],
  saved: Mapping[str, Any] | None,
) -> dict[str, Any]:
  """Returns the keys of the checkpoint's config, or else of the weights."""
  if saved is not None:
    return flatten(saved)
  needs_weights = sections.FROM_WEIGHTS in (
    config.model.variant,
    config.data.vocab,
  )
  has_weights = config.init not in ("", REQUIRED)
  if needs_weights and not has_weights:
    raise InputError(
      "init: model.variant=init and data.vocab=init take their values from the"
      " weights that the run starts from. Set --config.init=FOLDER."
    )
  needs_download = config.dry_run and not find.is_local(config.init)
  if not needs_weights and (not own or not has_weights or needs_download):
    return {}
  networks = weights.for_roles(ROLES[config.objective])
  kept = next(iter(networks.values()))
  known: dict[str, Any] = {}
  for name, value in (kept.sizes | kept.thetas).items():
    known[f"model.{name}"] = value
  if "data.vocab" in own:
    _ = kept.tokenizer  # raises if there is none
    known["data.vocab"] = str(kept.vocabulary)
  if generator := networks.get("generator"):
    for name in sections.GENERATOR_SIZES:
      known[f"generator.{name}"] = generator.values[name]
  return known
