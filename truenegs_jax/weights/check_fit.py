"""Checks sizes and shapes of weights against a model, before reading them."""

import re
from collections.abc import Iterable, Mapping

import jax
from flax import traverse_util

from truenegs_jax.models import encoder, finetune, pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights import head_transfer, hf_folder, hf_names
from truenegs_jax.weights.network import Network

FLOATS = ("float32", "float16", "bfloat16")
NEXT_SENTENCE = "pooled/next_sentence/"
# Heads drawn at random if the weights hold none of their arrays. Many files
# hold only BERT's encoder, few hold the next-sentence classifier.
HEADS = ("bert_head/", "discriminator_head/", "generator_head/", NEXT_SENTENCE)
FINE_TUNED_HEADS = (head_transfer.HEAD, "pooled/pooler/")
MAX_LINES = 30  # of a message
# Mismatches of a message -> what to type.
HINTS = {
  "(hidden_size|num_hidden_layers) is": (
    "Use the size of the weights: --config.model.variant=init."
  ),
  "vocab_size is": (
    "The model has as many words as the vocabulary. Copy the rows of known"
    " words and leave out rows of padding: --config.init_skip=words."
  ),
  "max_position_embeddings is": (
    "Set --config.model.max_positions to the number of the weights, or copy"
    " only the first positions: --config.init_skip=positions."
  ),
  r"pooler\S* is missing": (
    "Leave out the pooler: --config.model.pooler=False."
  ),
}


def check_networks(
  networks: Mapping[str, Network],
  model: hf_names.Model,
  *,
  skip: Iterable[str] = (),
  task: task_lib.Task | None = None,
) -> dict[str, Network]:
  """Refuses weights that do not fit a model and lists every mismatch.

  Args:
    networks: by role; may lack the generator of a pair.
    skip: values of `match_vocabulary.SKIPS`: what may differ.
    task: of a fine-tuned model, whose classes are named in messages.

  Returns:
    The networks, without the heads that a fine-tuned model does not use.
  """
  networks = head_transfer.drop_unused_heads(
    networks, model, skip=skip, task=task
  )
  resized = resize_embeddings(model, networks, skip)
  problems = []
  for role, network in networks.items():
    if network.transposed_kernels:
      hf_folder.check_backbone(model)
    if network.backbone != model.backbone:
      raise InputError(
        f"init: {network.location} has the backbone {network.backbone!r}, but"
        f" model.backbone={model.backbone!r}. Use the backbone of the weights:"
        f" --config.model.backbone={network.backbone}."
      )
    lines = hf_folder.field_mismatches(network.fields, resized, role)
    lines += _array_mismatches(network, resized, role)
    if lines:
      problems += [f"{network.location} does not fit the model:", *lines]
  if problems:
    text = "\n  ".join(problems)
    hints = [hint for words, hint in HINTS.items() if re.search(words, text)]
    raise InputError(
      f"init: {text}\nPass weights that fit, without the head of another task,"
      f" or change the model. {' '.join(hints)}".strip()
    )
  return networks


def resize_embeddings(
  model: hf_names.Model,
  networks: Mapping[str, Network],
  skip: Iterable[str],
) -> hf_names.Model:
  """Returns a model with the weights' numbers of words and of positions.

  Only those named in `skip`, "words" or "positions", are changed.
  """
  fields = next(iter(networks.values())).fields
  changed = {}
  if "words" in skip:
    changed["vocab_size"] = fields["vocab_size"]
  if "positions" in skip:
    changed["max_positions"] = fields["max_position_embeddings"]
  return encoder.replace_configs(model, **changed)


def flat_shapes(model: hf_names.Model) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shape of every parameter by path."""
  return traverse_util.flatten_dict(pretrain.param_shapes(model), sep="/")


def loadable_names(
  network: Network, model: hf_names.Model, role: str
) -> dict[str, str]:
  """Returns the names of a network's arrays by path, without absent heads."""
  table, names = network.name_table(model, role), network.arrays.shapes
  stored = [path for path, name in table.items() if name in names]

  def is_missing(prefix: str) -> bool:
    return not any(path.startswith(prefix) for path in stored)

  is_fine_tuned = isinstance(model, finetune.DownstreamModel)
  heads = FINE_TUNED_HEADS if is_fine_tuned else HEADS
  missing = {head for head in heads if is_missing(head)}
  # If the pooler is missing too, both are reported as missing.
  if is_missing("pooled/pooler/"):
    missing.discard(NEXT_SENTENCE)
  return {
    path: name
    for path, name in table.items()
    if not path.startswith(tuple(missing))
  }


def unused_pooler_names(
  network: Network, model: hf_names.Model, role: str
) -> list[str]:
  """Returns the names of stored pooler arrays for which a model has no use."""
  if not isinstance(model, pretrain.BertMlm) or model.pooler:
    return []
  with_pooler = network.name_table(model.clone(pooler=True), role)
  used = set(network.name_table(model, role).values())
  return sorted((set(with_pooler.values()) - used) & set(network.arrays.shapes))


def _array_mismatches(
  network: Network, model: hf_names.Model, role: str
) -> list[str]:
  """Returns one line for each array that does not match the model."""
  shapes, table = flat_shapes(model), loadable_names(network, model, role)

  def stored_shape(path: str) -> tuple[int, ...]:
    shape = shapes[path].shape
    if network.transposed_kernels:
      return hf_names.transposed_shape(path, shape)
    return shape

  required = {name: stored_shape(path) for path, name in table.items()}
  tied = {n: stored_shape(x) for n, x in network.tied.items() if x in table}
  accepted = required | tied
  ignored = unused_pooler_names(network, model, role)
  lines = []
  for name, shape in sorted(network.arrays.shapes.items()):
    dtype = network.arrays.dtypes[name]
    if name in ignored:
      continue
    if name not in accepted:
      lines.append(f"{name} {shape} is not in the model")
    elif shape != accepted[name]:
      lines.append(f"{name} is {shape}, the model's is {accepted[name]}")
    elif dtype not in FLOATS:
      lines.append(f"{name} is of type {dtype}, not {', '.join(FLOATS)}")
  lines += [
    f"{name} is missing, the model's is {shape}"
    for name, shape in sorted(required.items())
    if name not in network.arrays.shapes
  ]
  if len(lines) > MAX_LINES:
    lines[MAX_LINES:] = [f"and {len(lines) - MAX_LINES} more"]
  return lines
