"""Replaces "init" in a config by sizes and vocabulary of the weights.

c = resolve(c, Weights(c.init), saved=None)  # before anything else

The resolved config holds the model's sizes and the path of its vocabulary. A
run that is saved with it does not need the weights again.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.configs import common
from truenegs_jax.models import encoder
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.formats.network import Network

REQUIRED = common.REQUIRED  # value of config.init that the user must replace
FROM_WEIGHTS = "init"  # value of model.variant or data.vocab
ROLES = {"electra": ("discriminator", "generator"), "mlm": ("bert",)}
# Sizes of a variant -> fields of Hugging Face's config.json.
FIELDS = {
  "embedding_size": "embedding_size",
  "width": "hidden_size",
  "layers": "num_hidden_layers",
  "heads": "num_attention_heads",
  "ffn": "intermediate_size",
  "type_vocab_size": "type_vocab_size",
}


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

  Raises:
    InputError: `init` is missing; a field of the weights is not a valid size;
      the weights come without the vocabulary that the config asks for; as
      `Weights.for_roles`.
    CheckpointError: as `Weights.for_roles`.
  """
  resolved = c.copy_and_resolve_references()
  if saved is not None:
    resolved.init = saved["init"]
    resolved.init_skip = saved.get("init_skip", "")
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
  values = _read_values(c, weights) if saved is None else saved
  if needs_sizes:
    resolved.model.variant = values["model"]["variant"]
    if not c.generator.variant:
      resolved.generator.variant = values["generator"].get("variant", "")
  if needs_vocab:
    resolved.data.vocab = values["data"]["vocab"]
  return resolved


def _read_values(c: ConfigDict, weights: Weights) -> dict[str, dict[str, str]]:
  """Returns the values of a config that the weights determine."""
  if c.init in ("", REQUIRED) or c.objective not in ROLES:
    raise InputError(
      f"init: model.variant={FROM_WEIGHTS} and data.vocab={FROM_WEIGHTS} take"
      " their values from the weights that the run starts from. Set"
      " --config.init=FOLDER and --config.objective=electra or mlm."
    )
  networks = weights.for_roles(ROLES[c.objective])
  kept = networks[ROLES[c.objective][0]]
  if c.data.vocab == FROM_WEIGHTS:
    kept.require_vocabulary()
  variants = {
    role: read_variant(network, weights.report)
    for role, network in networks.items()
  }
  return {
    "model": {"variant": variants[kept.role]},
    "generator": {"variant": variants.get("generator", "")},
    "data": {"vocab": str(kept.vocabulary)},
  }


def read_variant(network: Network, report: Callable[[str], object]) -> str:
  """Returns a network's sizes in the form that `model.variant` accepts.

  The number of heads affects no shape, and Google's ELECTRA checkpoints do not
  store it. Google's code uses one head for every 64 units, as is done here.

  Raises:
    InputError: a field is not a valid size.
  """
  if "num_attention_heads" not in network.fields:
    heads = max(1, _read_size(network, "hidden_size") // encoder.HEAD_WIDTH)
    report(
      f"init: {network.location} does not store how many heads it has. Assuming"
      f" {heads}, one for every {encoder.HEAD_WIDTH} units."
    )
    fields = {**network.fields, "num_attention_heads": heads}
    network = dataclasses.replace(network, fields=fields)
  return " ".join(
    f"{name}={_read_size(network, field)}" for name, field in FIELDS.items()
  )


def _read_size(network: Network, name: str) -> int:
  # BERT's embeddings are as wide as the model.
  if name == "embedding_size" and network.role == "bert":
    name = "hidden_size"
  size = network.fields.get(name)
  if not isinstance(size, int) or size < 1:
    raise InputError(
      f"init: {network.location} has {name}={size!r}, which is not a valid"
      " size."
    )
  return size
