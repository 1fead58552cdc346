"""A head "linear", W h + b, as heads that Hugging Face has, and read back.

params |= linear_heads.behind_tanh(kernel_DxC, bias_C)  # BERT
network = linear_heads.read_back(network, "pooler")     # None: it is no such

It is made of what stands behind [CLS] there: ELECTRA's dense layer, by
gelu(z) - gelu(-z) = z of two units for each output; BERT's pooler, by
tanh(x) = x of small x. It answers alike but trains badly: one step of Adam on
a pooler that small outweighs all that was learnt.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from truenegs_jax.models import finetune
from truenegs_jax.weights.formats import hf_names
from truenegs_jax.weights.formats.network import Arrays, Network

# tanh(x) is x, up to x^3 / 3, and a power of two rounds nothing.
SMALL = 2.0**-14
KERNEL, BIAS = "task_head/output/kernel", "task_head/output/bias"
# Of the layer that is read back.
NAMES = {KERNEL: "classifier.weight", BIAS: "classifier.bias"}


def behind_gelu(kernel: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
  """The head "dense" that is a dense layer `[D, C]`, `[C]`; 2 C <= D."""
  width, outputs = kernel.shape
  plus, minus = slice(0, 2 * outputs, 2), slice(1, 2 * outputs, 2)
  dense_DxD, eye_DxD = np.zeros((width, width), "f4"), np.eye(width, dtype="f4")
  dense_DxD[:, plus], dense_DxD[:, minus] = kernel, -kernel
  return {
    "task_head": {
      "dense": {"kernel": dense_DxD, "bias": np.zeros(width, "f4")},
      "output": {"kernel": eye_DxD[:, plus] - eye_DxD[:, minus], "bias": bias},
    }
  }


def behind_tanh(kernel: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
  """Pooler and head "pooler" that are a dense layer `[D, C]`, `[C]`."""
  width = len(kernel)
  pooler = {
    "kernel": SMALL * np.eye(width, dtype="f4"),
    "bias": np.zeros(width, "f4"),
  }
  return {
    "pooled": {"pooler": pooler},
    "task_head": {"output": {"kernel": kernel / SMALL, "bias": bias}},
  }


def read_back(network: Network, head: str) -> Network | None:
  """The network with that layer for a head "linear"; None: it has none.

  Args:
    network: by Hugging Face's names.
    head: that it has, a name in `tensor_names.TASK_HEADS`, or "". It is only
      read where its shapes are of what is made here.
  """
  if head not in ("dense", "pooler"):
    return None
  old, names = network.arrays, _names(head)
  flat = _read(old, names) if _shapes_fit(old, names, head) else {}
  linear = _layer(flat, head) if flat else None
  if linear is None:
    return None
  new = dict(zip(NAMES.values(), linear, strict=True))
  kept = old.shapes.keys() - set(names.values())
  arrays = dataclasses.replace(
    old,
    shapes={x: old.shapes[x] for x in kept} | {x: new[x].shape for x in new},
    dtypes={x: old.dtypes[x] for x in kept} | dict.fromkeys(new, "float32"),
    read=lambda name: new[name] if name in new else old.read(name),
  )

  def name_table(model: hf_names.Model, role: str) -> dict[str, str]:
    of_task = isinstance(model, finetune.Downstream)
    return {**network.name_table(model, role), **(NAMES if of_task else {})}

  return dataclasses.replace(network, arrays=arrays, name_table=name_table)


def has_small_pooler(arrays: Arrays) -> bool:
  """Whether BERT's pooler was made here: to anything else it is of no use."""
  names = dict(list(_names("pooler").items())[:2])
  weight, bias = (arrays.shapes.get(name, ()) for name in names.values())
  if len(bias) != 1 or weight != bias * 2:
    return False
  made = behind_tanh(np.zeros((*bias, 1), "f4"), np.zeros(1, "f4"))
  return _same({"pooled": made["pooled"]}, _read(arrays, names))


def _names(head: str) -> dict[str, str]:
  """Ours -> theirs of a head: what stands behind [CLS], the last layer."""
  return {
    f"{ours}/{x}": f"{theirs}.{y}"
    for ours, theirs in hf_names.TASK_HEADS[head].items()
    for x, y in (("kernel", "weight"), ("bias", "bias"))
  }


def _shapes_fit(arrays: Arrays, names: Mapping[str, str], head: str) -> bool:
  inner, inner_bias, last, last_bias = (
    arrays.shapes.get(name, ()) for name in names.values()
  )
  if len(last) != 2 or 0 in last or (head == "dense" and 2 * last[0] > last[1]):
    return False
  wanted = (last[1:] * 2, last[1:], last[:1])
  return (inner, inner_bias, last_bias) == wanted


def _read(arrays: Arrays, names: Mapping[str, str]) -> dict[str, np.ndarray]:
  """As ours are laid out, f32."""
  return {
    ours: arrays.read(name).astype("f4", copy=False).T
    for ours, name in names.items()
  }


def _layer(
  flat: Mapping[str, np.ndarray], head: str
) -> tuple[np.ndarray, np.ndarray] | None:
  """Kernel `[C, D]` and bias of the layer that was made into a head, if any.

  The unit of a score is a factor of the last layer.
  """
  last_DxC, bias_C = flat[KERNEL], flat[BIAS]
  if not np.isfinite(last_DxC).all():
    return None
  if head == "pooler":
    kernel_DxC, unit = last_DxC * np.float32(SMALL), np.float32(1)
    made = behind_tanh(kernel_DxC, bias_C)
  else:
    kernel_DxC = flat["task_head/dense/kernel"][:, : 2 * len(bias_C) : 2]
    made, unit = behind_gelu(kernel_DxC, bias_C), last_DxC[0, 0]
  made["task_head"]["output"]["kernel"] *= unit
  return ((kernel_DxC * unit).T, bias_C) if _same(made, flat) else None


def _same(made: Mapping[str, Any], flat: Mapping[str, np.ndarray]) -> bool:
  expected = traverse_util.flatten_dict(made, sep="/")
  return all(np.array_equal(x, flat[ours]) for ours, x in expected.items())
