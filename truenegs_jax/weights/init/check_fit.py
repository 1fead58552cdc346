"""Do weights fit a model? Sizes and shapes, before any number is read."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax
from flax import traverse_util

from truenegs_jax.models import encoder, finetune, pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats import hf_folder, hf_names
from truenegs_jax.weights.formats.network import Network
from truenegs_jax.weights.init import head_transfer

FLOATS = ("float32", "float16", "bfloat16")
# What `init_skip` may name: rows that need not be those of the weights, and the
# head of a task.
SKIPS = ("words", "positions", "head")
# Parts that are drawn at random where the weights have nothing of them: BERT as
# an encoder comes without heads, and few keep the next sentences'.
HEADS = (
  "bert_head/",
  "discriminator_head/",
  "generator_head/",
  "pooled/next_sentence/",
)
FINE_TUNED_HEADS = (head_transfer.HEAD, "pooled/pooler/")
LISTED = 30  # lines of a message
_LAYER = re.compile(r"layer[._/]\d+")


def parse_skip(text: str) -> frozenset[str]:
  """The words of `init_skip`, separated by commas; InputError if unknown."""
  words = frozenset(filter(None, text.replace(" ", "").split(",")))
  if unknown := words - set(SKIPS):
    raise InputError(
      f"init_skip {', '.join(sorted(unknown))!r} is unknown; known:"
      f" {', '.join(SKIPS)}."
    )
  return words


def check_networks(
  networks: Mapping[str, Network],
  model: hf_names.Model,
  *,
  skip: Iterable[str] = (),
) -> None:
  """Refuses weights of another model, with all that differs.

  Args:
    networks: by role, as `places.find` has them.
    model: what they are to fit; of a pair the generator may be lacking.
    skip: of SKIPS: what may have other rows.

  Raises:
    InputError: another backbone or size; arrays that are missing, unexpected,
      of another shape or no floating-point numbers; as `task_heads.trimmed`.
  """
  networks = head_transfer.drop_unused_heads(networks, model, skip=skip)
  theirs = with_their_table_sizes(model, networks, skip)
  problems = []
  for role, network in networks.items():
    if network.transposed_kernels:
      hf_folder.check_backbone(model)
    if network.backbone != model.backbone:
      raise InputError(
        f"init: {network.location} is of the backbone {network.backbone!r}, and"
        f" model.backbone is {model.backbone!r}."
      )
    if lines := _misfits(network, theirs, role):
      problems += [f"{network.location} does not fit the model:", *lines]
  if problems:
    raise InputError("init: " + "\n  ".join(problems) + _hints(problems))


def with_their_table_sizes(
  model: hf_names.Model,
  networks: Mapping[str, Network],
  skip: Iterable[str],
) -> hf_names.Model:
  """The model with as many words or positions as the weights have."""
  fields = next(iter(networks.values())).fields
  changed = {}
  if "words" in skip:
    changed["vocab_size"] = fields["vocab_size"]
  if "positions" in skip:
    changed["max_positions"] = fields["max_position_embeddings"]
  configs: dict[str, Any] = {
    name: dataclasses.replace(config, **changed)
    for name, config in vars(model).items()
    if isinstance(config, encoder.EncoderConfig)
  }
  return model.clone(**configs)


def flat_shapes(model: hf_names.Model) -> dict[str, jax.ShapeDtypeStruct]:
  """Path -> shape of every parameter."""
  return traverse_util.flatten_dict(pretrain.param_shapes(model), sep="/")


def loadable_names(
  network: Network, model: hf_names.Model, role: str
) -> dict[str, str]:
  """`Network.name_table` without the heads that the weights lack entirely."""
  table, names = dict(network.name_table(model, role)), network.arrays.shapes
  fine_tuned = isinstance(model, finetune.DownstreamModel)
  for head in FINE_TUNED_HEADS if fine_tuned else HEADS:
    of_head = {ours for ours in table if ours.startswith(head)}
    # A pooler that is not there either: a file that was meant to have both.
    alone = head == "pooled/next_sentence/" and not any(
      table[ours] in names for ours in table if ours.startswith("pooled/pooler")
    )
    if not alone and not any(table[ours] in names for ours in of_head):
      table = {
        ours: name for ours, name in table.items() if ours not in of_head
      }
  return table


def unused_pooler_names(
  network: Network, model: hf_names.Model, role: str
) -> list[str]:
  """Names of a pooler and its classifier that this model has no use for."""
  if not isinstance(model, pretrain.BertMlm) or model.pooler:
    return []
  every = network.name_table(model.clone(pooler=True), role)
  used = set(network.name_table(model, role).values())
  return sorted((set(every.values()) - used) & set(network.arrays.shapes))


def _misfits(network: Network, model: hf_names.Model, role: str) -> list[str]:
  """One line for each field and each array that is not the model's."""
  fields = hf_folder.field_mismatches(network.fields, model, role)
  return fields + _array_misfits(network, model, role)


def _array_misfits(
  network: Network, model: hf_names.Model, role: str
) -> list[str]:
  shapes, table = flat_shapes(model), loadable_names(network, model, role)
  turned = lambda ours: (
    hf_names.transposed_shape(ours, shapes[ours].shape)
    if network.transposed_kernels
    else shapes[ours].shape
  )
  expected = {theirs: turned(ours) for ours, theirs in table.items()}
  known = expected | {
    theirs: turned(ours)
    for theirs, ours in network.tied.items()
    if ours in table
  }
  ignored = unused_pooler_names(network, model, role)
  misfits = []
  for name, shape in sorted(network.arrays.shapes.items()):
    dtype = network.arrays.dtypes[name]
    if name in ignored:
      continue
    if name not in known:
      misfits.append((name, f"{shape} is not in the model"))
    elif shape != known[name]:
      misfits.append((name, f"is {shape}, the model's {known[name]}"))
    elif dtype not in FLOATS:
      misfits.append((name, f"is of type {dtype}, not {', '.join(FLOATS)}"))
  misfits += [
    (name, f"is missing, the model's is {shape}")
    for name, shape in sorted(expected.items())
    if name not in network.arrays.shapes
  ]
  lines = [f"{name} {text}" for name, text in misfits]
  more = f"and {len(lines) - LISTED} more"
  return lines if len(lines) <= LISTED else [*lines[:LISTED], more]


def _hints(problems: list[str]) -> str:
  """Ways out, for the end of the message."""
  text = " ".join(problems)
  strange = [line for line in problems if line.endswith("is not in the model")]
  if len(strange) == len(problems) - 1 and not _LAYER.search(" ".join(strange)):
    return (
      "\nThe rest fits: these are of another task. Save the encoder without"
      " them, or give the weights that they were trained from."
    )
  ways = ["\nGive weights of this model, or change it."]
  if "hidden_size is" in text or "num_hidden_layers is" in text:
    ways.append("--config.model.variant=init takes the size of the weights.")
  if "vocab_size is" in text:
    ways.append(
      "The model has as many words as the vocabulary; --config.init_skip=words"
      " carries the rows of known words over, and leaves out those of padding."
    )
  if "max_position_embeddings is" in text:
    ways.append("--config.model.max_positions takes their number.")
    ways.append(
      "--config.init_skip=positions does so with the first positions."
    )
  if "pooler" in text and "is missing" in text:
    ways.append("--config.model.pooler=False goes without a pooler.")
  return " ".join(ways)
