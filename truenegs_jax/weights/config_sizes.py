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
  if saved is not None:
    variant, vocab = saved["model"]["variant"], saved["data"]["vocab"]
    generator_variant = saved["generator"]["variant"]
  elif c.init in ("", REQUIRED) or c.objective not in ROLES:
    raise InputError(
      f"init: model.variant={FROM_WEIGHTS} and data.vocab={FROM_WEIGHTS} take"
      " their values from the weights that the run starts from. Set"
      " --config.init=FOLDER and --config.objective=electra or mlm."
    )
  else:
    networks = weights.for_roles(ROLES[c.objective])
    kept, generator = next(iter(networks.values())), networks.get("generator")
    variant, vocab = kept.variant, str(kept.vocabulary)
    generator_variant = generator.variant if generator else ""
    if needs_vocab:
      _ = kept.tokenizer  # raises if there is none
  if needs_sizes:
    resolved.model.variant = variant
    if not c.generator.variant:
      resolved.generator.variant = generator_variant
  if needs_vocab:
    resolved.data.vocab = vocab
  return resolved
