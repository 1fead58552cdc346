"""Replaces "init" in a config by sizes and vocabulary of the weights.

c = resolve(c, Weights(c.init), saved=None)  # before anything else

The resolved config holds the model's sizes and the path of its vocabulary. A
run that is saved with it does not need the weights again.
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.configs import common
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.find import Weights

REQUIRED = common.REQUIRED  # value of config.init that the user must replace
FROM_WEIGHTS = "init"  # value of model.variant or data.vocab
ROLES = {"electra": ("discriminator", "generator"), "mlm": ("bert",)}


def resolve(
  c: ConfigDict, weights: Weights, *, saved: Mapping[str, Any] | None
) -> ConfigDict:
  """Returns a copy of a config without "init"; only headers are read.

  If `model.variant` is "init" and `generator.variant` is "", the generator's
  sizes are taken from the weights too.

  Args:
    c: the user's config, not checked yet.
    weights: the weights of `c.init`, opened only if the config needs them.
    saved: the config of the checkpoint from which the run resumes; its values
      are used and the weights are not opened.
  """
  resolved = c.copy_and_resolve_references()
  if saved is not None:
    resolved.init, resolved.init_skip = saved["init"], saved["init_skip"]
    if c.init not in ("", REQUIRED, resolved.init):
      start = repr(resolved.init) if resolved.init else "scratch"
      weights.report(
        f"init={c.init!r} is ignored. This run resumes from its checkpoint; it"
        f" was started from {start}."
      )
  needs_sizes = c.model.variant == FROM_WEIGHTS
  needs_vocab = c.data.vocab == FROM_WEIGHTS
  if not (needs_sizes or needs_vocab):
    return resolved
  values = saved
  if values is None:
    if c.init in ("", REQUIRED) or c.objective not in ROLES:
      raise InputError(
        f"init: model.variant={FROM_WEIGHTS} and data.vocab={FROM_WEIGHTS} take"
        " their values from the weights that the run starts from. Set"
        " --config.init=FOLDER and --config.objective=electra or mlm."
      )
    values = _read_values(weights, ROLES[c.objective], needs_vocab=needs_vocab)
  if needs_sizes:
    resolved.model.variant = values["model"]["variant"]
    if not c.generator.variant:
      resolved.generator.variant = values["generator"]["variant"]
  if needs_vocab:
    resolved.data.vocab = values["data"]["vocab"]
  return resolved


def _read_values(
  weights: Weights, roles: tuple[str, ...], *, needs_vocab: bool
) -> dict[str, dict[str, str]]:
  """Returns the values of a config that the weights determine."""
  networks = weights.for_roles(roles)
  kept = networks[roles[0]]
  if needs_vocab:
    kept.require_vocabulary()
  variants = {role: x.variant for role, x in networks.items()}
  return {
    "model": {"variant": variants[kept.role]},
    "generator": {"variant": variants.get("generator", "")},
    "data": {"vocab": str(kept.vocabulary)},
  }
