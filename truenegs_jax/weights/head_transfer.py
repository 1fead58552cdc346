"""Keeps, drops or refuses the heads of weights that a model starts from.

networks = drop_unused_heads(networks, model, skip=skip)
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.models import finetune, pretrain
from truenegs_jax.runtime.errors import InputError, printable
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights import hf_names
from truenegs_jax.weights.network import Network

MAX_LISTED = 8  # names in a message
HEAD = "task_head/"
KERNEL, BIAS = "task_head/output/kernel", "task_head/output/bias"
SKIP_HEAD = "To draw a new head, set --config.init_skip=head."


def drop_unused_heads(
  networks: Mapping[str, Network],
  model: hf_names.Model,
  *,
  skip: Iterable[str] = (),
  task: task_lib.Task | None = None,
) -> dict[str, Network]:
  """Drops pre-training heads that a fine-tuned model does not use.

  With "head" in `skip`, task heads are dropped too. The networks of a
  pre-trained model are not changed.

  Args:
    task: the task whose classes are named in messages.
  """
  if not isinstance(model, finetune.DownstreamModel):
    if "head" in skip:
      raise InputError(
        "init_skip=head is for fine-tuning only. A pre-trained model has no"
        " task head. Remove it from --config.init_skip."
      )
    return dict(networks)
  return {
    role: _drop_from_network(network, model, role, skip, task)
    for role, network in networks.items()
  }


def detect_task_head(network: Network) -> str:
  """Returns a name in `hf_names.TASK_HEADS`; "" if no head can be loaded."""
  if not network.transposed_kernels:  # only Hugging Face's files have one
    return ""
  for head, modules in hf_names.TASK_HEADS.items():
    names = {f"{name}.weight" for name in modules.values()}
    if names <= set(network.arrays.shapes):
      return head
  return ""


def convert_task_head(
  flat: Mapping[str, np.ndarray],
  network: Network,
  task: task_lib.Task,
  report: Callable[[str], object],
) -> dict[str, np.ndarray]:
  """Converts a head's last layer, `[D, C]` and `[C]`, to a task's convention.

  Classes are put in the order of the task if both have the same names; if not,
  the assumed order is reported. Our head is trained on (score - offset) /
  scale, while Hugging Face's gives the score itself.
  """
  is_hf_head = KERNEL in flat and network.transposed_kernels
  if task.kind == task_lib.SPANS or not is_hf_head:
    return {}
  kernel_DxC, bias_C = flat[KERNEL], flat[BIAS]
  if task.kind == task_lib.SCORE:
    offset, scale = task.scale
    return {KERNEL: kernel_DxC / scale, BIAS: (bias_C - offset) / scale}
  saved = [name.casefold() for name in read_labels(network.fields)]
  expected = [name.casefold() for name in task.labels]
  if sorted(saved) != sorted(expected) or len(set(saved)) < len(saved):
    report(
      f"init: assuming that the classes of {network.location}"
      f" ({_list(saved) or 'unnamed'}) are {_list(expected)}, in this order."
    )
    return {}
  order = [saved.index(name) for name in expected]
  return {KERNEL: kernel_DxC[:, order], BIAS: bias_C[order]}


def read_labels(fields: Mapping[str, Any]) -> list[str]:
  """Returns the class names of a `config.json` by id; [] if it has none."""
  labels = fields.get("id2label")
  if not isinstance(labels, dict):
    return []
  names = (str(labels.get(str(i), i))[:80] for i in range(len(labels)))
  return [printable(ValueError(name)) for name in names]


def _drop_from_network(
  network: Network,
  model: finetune.DownstreamModel,
  role: str,
  skip: Iterable[str],
  task: task_lib.Task | None,
) -> Network:
  shapes, table = network.arrays.shapes, network.name_table(model, role)
  model_head = {name for path, name in table.items() if path.startswith(HEAD)}
  encoder = set(table.values()) - model_head
  c, backbone = model.config, model.backbone
  pre_trained: pretrain.Model = pretrain.ElectraPair(c, c, backbone)
  if role == "bert":
    pre_trained = pretrain.BertMlm(c, backbone, pooler=True)
  pre_training = network.name_table(pre_trained, role).values()
  unused = {*pre_training, *network.tied} - encoder
  # Any other array outside of the encoder belongs to a task head.
  scopes = {_scope(name) for name in encoder}
  task_head = {name for name in shapes if _scope(name) not in scopes} - unused
  if "head" in skip:
    unused |= task_head
  elif task_head:
    _check_head(network, model, task_head, model_head)
    shape = shapes.get(table[BIAS], ())
    if model.head != "spans" and shape != (model.num_outputs,):
      saved = _list(read_labels(network.fields)) or "unnamed"
      expected = _list(task.labels if task else ()) or "unnamed"
      raise InputError(
        f"init: the head of {network.location} has {shape[0] if shape else 1}"
        f" outputs ({saved}), but the task needs {model.num_outputs}"
        f" ({expected}). {SKIP_HEAD}"
      )
  kept = [name for name in shapes if name not in unused]
  arrays = dataclasses.replace(
    network.arrays,
    shapes={name: shapes[name] for name in kept},
    dtypes={name: network.arrays.dtypes[name] for name in kept},
  )
  return dataclasses.replace(network, arrays=arrays, tied={})


def _architecture(network: Network) -> str:
  """Returns the class of transformers in `config.json`; "" for none."""
  names = network.fields.get("architectures")
  if not (isinstance(names, list) and names):
    return ""
  return printable(ValueError(str(names[0])[:80]))


def _list(names: Sequence[str]) -> str:
  return ", ".join(names[:MAX_LISTED]) + (", ..." if names[MAX_LISTED:] else "")


def _scope(name: str) -> str:
  """Returns the first word of an array's name: "electra", "classifier"."""
  return re.split("[./]", name)[0]


def _check_head(
  network: Network,
  model: finetune.DownstreamModel,
  task_head: set[str],
  model_head: set[str],
) -> None:
  """Refuses the head of another class of transformers than the model's."""
  expected = hf_names.architecture(model, model.role)
  saved = _architecture(network) or expected
  if saved != expected or not task_head <= model_head:
    raise InputError(
      f"init: {network.location} has the head of {saved}"
      f" ({_list(sorted(task_head))}), but the task needs that of {expected}."
      f" {SKIP_HEAD}"
    )
