"""Heads of weights that a model is fine-tuned from: kept, left out, refused.

networks = trimmed(networks, model, skip=skip)  # a DownstreamModel's
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.models import finetune, pretrain
from truenegs_jax.runtime.errors import InputError, printable
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights.formats import hf_names
from truenegs_jax.weights.formats.network import Network

LISTED = 8  # names in a message
HEAD = "task_head/"
KERNEL, BIAS = "task_head/output/kernel", "task_head/output/bias"


def drop_unused_heads(
  networks: Mapping[str, Network],
  model: hf_names.Model,
  *,
  skip: Iterable[str] = (),
  task: task_lib.Task | None = None,
) -> dict[str, Network]:
  """The networks without heads that are of no use to a model of a task.

  Those of pre-training go, and with "head" in `skip` any other. Networks for a
  model that is pre-trained stay as they are.

  Args:
    task: whose classes are named in messages.

  Raises:
    InputError: the head of another kind of task, or of as many classes as the
      model has not.
  """
  if not isinstance(model, finetune.DownstreamModel):
    if "head" in skip:
      raise InputError(
        "init_skip=head is of fine-tuning; a model that is pre-trained has no"
        " head of a task: leave it out."
      )
    return dict(networks)
  return {
    role: _trimmed(network, model, role, skip, task)
    for role, network in networks.items()
  }


def detect_task_head(network: Network) -> str:
  """The head that a task left in weights, a name in `downstream.HEADS`.

  "" where there is none that could go on here.
  """
  if not network.transposed_kernels:  # a run of ours: its model is known
    return ""
  for head, modules in hf_names.TASK_HEADS.items():
    if head == "linear" and not _architecture(network).endswith("Model"):
      continue
    if {f"{name}.weight" for name in modules.values()} <= set(
      network.arrays.shapes
    ):
      return head
  return ""


def convert_task_head(
  flat: Mapping[str, np.ndarray],
  network: Network,
  task: task_lib.Task,
  report: Callable[[str], Any],
) -> dict[str, np.ndarray]:
  """The last layer of Hugging Face's head, `[D, C]` and `[C]`, as a task's.

  Classes come in the order of the task, if both name them alike; if not, that
  is said. A score is trained on (score - offset) / scale, and their head gives
  the score itself.
  """
  is_theirs = KERNEL in flat and network.transposed_kernels
  if task.kind == task_lib.SPANS or not is_theirs:
    return {}
  kernel_DxC, bias_C = flat[KERNEL], flat[BIAS]
  if task.kind == task_lib.SCORE:
    offset, scale = task.scale
    return {KERNEL: kernel_DxC / scale, BIAS: (bias_C - offset) / scale}
  theirs = [name.casefold() for name in read_labels(network.fields)]
  ours = [name.casefold() for name in task.labels]
  if sorted(theirs) != sorted(ours) or len(set(ours)) < len(ours):
    report(
      f"init: the classes of {network.location},"
      f" {_listed(theirs) or 'unnamed'}, are taken to be"
      f" {_listed(ours)}, in this order"
    )
    return {}
  order = [theirs.index(name) for name in ours]
  return {KERNEL: kernel_DxC[:, order], BIAS: bias_C[order]}


def read_labels(fields: Mapping[str, Any]) -> list[str]:
  """The names of the classes of a `config.json`, by their ids; none: []."""
  given = fields.get("id2label")
  if not isinstance(given, dict):
    return []
  names = (str(given.get(str(i), i))[:80] for i in range(len(given)))
  return [printable(ValueError(name)) for name in names]


def _trimmed(
  network: Network,
  model: finetune.DownstreamModel,
  role: str,
  skip: Iterable[str],
  task: task_lib.Task | None,
) -> Network:
  shapes = network.arrays.shapes
  table = dict(network.name_table(model, role))
  own = {name for ours, name in table.items() if ours.startswith(HEAD)}
  encoder = {name for ours, name in table.items() if name not in own}
  pre_trained = set(network.name_table(_pre_trained(model), role).values())
  unused = (pre_trained | set(network.tied)) - encoder
  tops = {_top(name) for name in encoder}
  heads = {n for n in shapes if _top(n) not in tops and n not in unused}
  if "head" in skip:
    unused |= heads
  elif heads:
    _check_kind(network, model, heads, own)
    _check_classes(network, model, table, task)
  kept = [name for name in shapes if name not in unused]
  arrays = dataclasses.replace(
    network.arrays,
    shapes={name: shapes[name] for name in kept},
    dtypes={name: network.arrays.dtypes[name] for name in kept},
  )
  return dataclasses.replace(network, arrays=arrays, tied={})


def _pre_trained(model: finetune.DownstreamModel) -> pretrain.Model:
  """The pre-trained model of a network, with all heads."""
  if model.role == "bert":
    return pretrain.BertMlm(model.config, model.backbone, pooler=True)
  return pretrain.ElectraPair(model.config, model.config, model.backbone)


def _architecture(network: Network) -> str:
  """The class of transformers that `config.json` names; "" for none."""
  given = network.fields.get("architectures")
  if not (isinstance(given, list) and given):
    return ""
  return printable(ValueError(str(given[0])[:80]))


def _listed(names: Sequence[str]) -> str:
  return ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")


def _top(name: str) -> str:
  return re.split("[./]", name)[0]


def _check_kind(
  network: Network,
  model: finetune.DownstreamModel,
  heads: set[str],
  own: set[str],
) -> None:
  wanted = hf_names.architecture(model, model.role)
  theirs = _architecture(network) or wanted
  if heads <= own and theirs == wanted:
    return
  way = "--config.init_skip=head draws a new one"
  head, of_spans = detect_task_head(network), model.head in ("spans", "joint")
  if head not in ("", model.head) and (head == "spans") == of_spans:
    way = f"--config.finetune.head={head} takes it, {way}"
  raise InputError(
    f"init: {network.location} has the head of {theirs}"
    f" ({_listed(sorted(heads))}), which is not finetune.head={model.head}:"
    f" {way}."
  )


def _check_classes(
  network: Network,
  model: finetune.DownstreamModel,
  table: Mapping[str, str],
  task: task_lib.Task | None,
) -> None:
  shape = network.arrays.shapes.get(table.get(BIAS, ""))
  if shape is None or model.head == "spans" or shape == (model.num_outputs,):
    return
  named = lambda names: f" ({_listed(names)})" if names else ""
  raise InputError(
    f"init: the head of {network.location} has {shape[0] if shape else 1}"
    f" outputs{named(read_labels(network.fields))}, and this task wants"
    f" {model.num_outputs}{named(task.labels if task else ())}:"
    " --config.init_skip=head draws a new one."
  )
