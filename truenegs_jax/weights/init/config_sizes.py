"""Replaces "init" in a config by sizes and vocabulary of its weights.

c = resolve(c, Weights(c.init), saved=None)  # before all else

Afterwards the config says itself how large the model is, and where its words
are, so that one saved with a run does without the weights.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.models import encoder
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.formats.network import Network

REQUIRED = "?"  # config.init, as configs/common.py has it: the user has to say
FROM_WEIGHTS = "init"  # as the value of model.variant or data.vocab
ROLES = {"electra": ("discriminator", "generator"), "mlm": ("bert",)}
# Ours -> a field of Hugging Face's config.json.
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
  """A copy of a config in which nothing is "init"; only headers are read.

  `model.variant` brings `generator.variant` along, if it is "" and there is a
  generator.

  Args:
    c: the user's config, not checked yet.
    weights: what `c.init` names; opened only where the config needs it.
    saved: the config of the checkpoint that the run goes on from, whose values
      these are then; the weights may be gone. `init` is what it began with.

  Raises:
    InputError: `init` does not say which weights; as `Weights.for_roles`;
      fields that are no sizes; no vocabulary beside the weights, if it is
      wanted.
    CheckpointError: as `Weights.for_roles`.
  """
  changed = c.copy_and_resolve_references()
  if saved is not None:
    changed.init, changed.init_skip = saved["init"], saved.get("init_skip", "")
    if c.init not in ("", REQUIRED, changed.init):
      weights.report(
        f"init={c.init} is not looked at: this run goes on from its checkpoint,"
        f" and began with {changed.init or 'nothing, from scratch'}"
      )
  sized, worded = c.model.variant == FROM_WEIGHTS, c.data.vocab == FROM_WEIGHTS
  if not (sized or worded):
    return changed
  values = _of_weights(c, weights) if saved is None else saved
  if sized:
    changed.model.variant = values["model"]["variant"]
    if not c.generator.variant:
      changed.generator.variant = values["generator"].get("variant", "")
  if worded:
    changed.data.vocab = values["data"]["vocab"]
  return changed


def _of_weights(c: ConfigDict, weights: Weights) -> dict[str, dict[str, Any]]:
  """The part of a config that `c.init` decides."""
  if c.init in ("", REQUIRED) or c.objective not in ROLES:
    raise InputError(
      "init: model.variant=init and data.vocab=init are those of the weights"
      " that the run starts from: give them, --config.init=FOLDER, and their"
      " --config.objective, electra or mlm."
    )
  networks = weights.for_roles(ROLES[c.objective])
  kept = networks[ROLES[c.objective][0]]
  if c.data.vocab == FROM_WEIGHTS and kept.vocabulary is None:
    raise InputError(
      f"init: {kept.location} has no vocabulary beside it; give it:"
      " --config.data.vocab=FILE."
    )
  return {
    "model": {"variant": read_variant(kept, weights.report)},
    "generator": {
      "variant": read_variant(networks["generator"], weights.report)
    }
    if "generator" in networks
    else {},
    "data": {"vocab": str(kept.vocabulary)},
  }


def read_variant(network: Network, report: Callable[[str], Any]) -> str:
  """Its list of sizes, as `backbones.sizes` takes it.

  How many heads it has shows in no shape, and Google's checkpoints of ELECTRA
  do not say it: their code takes one for every 64 units.

  Raises:
    InputError: a field that is no size.
  """
  if "num_attention_heads" not in network.fields:
    heads = max(1, _size(network, "hidden_size") // encoder.HEAD_WIDTH)
    report(
      f"init: nothing beside {network.location} says how many heads there are;"
      f" taken: one for every {encoder.HEAD_WIDTH} units, {heads}"
    )
    fields = {**network.fields, "num_attention_heads": heads}
    network = dataclasses.replace(network, fields=fields)
  fields = {ours: _size(network, theirs) for ours, theirs in FIELDS.items()}
  return " ".join(f"{name}={size}" for name, size in fields.items())


def _size(network: Network, name: str) -> int:
  fields = network.fields
  # BERT's embeddings are as wide as the model.
  if name == "embedding_size" and network.role == "bert":
    name = "hidden_size"
  size = fields.get(name)
  if not isinstance(size, int) or size < 1:
    raise InputError(f"init: {network.location} has {name} {size!r}, no size.")
  return size
