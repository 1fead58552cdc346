"""Defines device meshes and how arrays are sharded on them.

A preset has the mesh axes and an ordered list of (regex, PartitionSpec); the
first regex that matches the path of an array decides. Batches are split over
the axis "data" on every mesh. Models have no sharding code.
"""

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import InputError, one_of

Axes = Mapping[str, int]  # sizes by name
Batch = Mapping[str, np.ndarray]
DATA_AXIS = "data"
MODEL_AXIS = "model"


@dataclasses.dataclass(frozen=True)
class MeshSpec:
  """Axis sizes in order (-1: all remaining devices) and sharding rules."""

  axes: Axes
  rules: tuple[tuple[str, P], ...]


# Paths are those of a train state: "params/bert/layer_0/query/kernel", and
# "opt_state/1/mean/bert/layer_0/query/kernel" for its moment. Embedding tables
# are split by width, because few vocabularies have a size that is divisible by
# the number of devices (30,522 is divisible by 2, but not by 4).
MESHES = {
  # Every device has all parameters and a slice of the batch.
  "dp": MeshSpec({DATA_AXIS: -1}, ((".*", P()),)),
  # Every device has a slice of the batch and of each large array (ZeRO:
  # Rajbhandari et al. 2020). The step gathers the parameters and scatters
  # their gradients.
  "fsdp": MeshSpec(
    {DATA_AXIS: -1},
    (
      (".*/embeddings/(word|position)", P(None, DATA_AXIS)),
      (".*/kernel", P(DATA_AXIS, None)),
      (".*", P()),  # biases, norms, scalars
    ),
  ),
  # As fsdp; in addition two consecutive products are split by the outputs of
  # the first and the inputs of the second, and the vocabulary by its entries if
  # divisible (Megatron: Shoeybi et al. 2019, section 3).
  "fsdp_tp": MeshSpec(
    {DATA_AXIS: -1, MODEL_AXIS: 2},
    (
      (".*/embeddings/word", P(MODEL_AXIS, DATA_AXIS)),
      (".*/embeddings/position", P(None, DATA_AXIS)),
      (".*/(query|key|value|ffn_input)/kernel", P(DATA_AXIS, MODEL_AXIS)),
      (".*/(qkv|ffn_gated)/kernel", P(DATA_AXIS, None, MODEL_AXIS)),
      (".*/(attention_output|ffn_output)/kernel", P(MODEL_AXIS, DATA_AXIS)),
      (".*/kernel", P(DATA_AXIS, None)),
      (".*", P()),
    ),
  ),
}


def make_mesh(
  spec: MeshSpec, devices: Sequence[jax.Device] | None = None
) -> Mesh:
  """Makes the mesh of a preset from devices (default: all devices)."""
  devices = jax.devices() if devices is None else devices
  sizes = resolve_axis_sizes(spec.axes, len(devices))
  # Linen modules cannot be traced over Explicit axes, the default.
  types = (AxisType.Auto,) * len(sizes)
  return jax.make_mesh(
    tuple(sizes.values()), tuple(sizes), types, devices=devices
  )


def get_mesh_spec(name: str, model: int = 0) -> MeshSpec:
  """Returns the preset `name`; `model` is another size of its axis "model"."""
  one_of("mesh.preset", name, MESHES)
  spec = MESHES[name]
  if not model:
    return spec
  if MODEL_AXIS not in spec.axes:
    raise InputError(
      f"mesh.model={model}, but mesh.preset={name!r} splits no layer. Set"
      " --config.mesh.preset=fsdp_tp."
    )
  return dataclasses.replace(spec, axes={**spec.axes, MODEL_AXIS: model})


def resolve_axis_sizes(axes: Axes, num_devices: int) -> dict[str, int]:
  """Replaces -1 by the number of devices that the other axes leave."""
  fixed = math.prod(size for size in axes.values() if size != -1)
  if num_devices % fixed:
    raise InputError(
      f"The mesh ({format_axes(axes)}) needs a multiple of {fixed} devices, but"
      f" there are {num_devices}. Set --config.mesh.model=NUMBER to a divisor."
    )
  remaining = num_devices // fixed
  return {axis: remaining if n == -1 else n for axis, n in axes.items()}


def tree_shardings(tree: Any, mesh: Mesh, spec: MeshSpec) -> Any:
  """Returns a NamedSharding by leaf: the first matching rule, if it fits."""

  def find_sharding(
    path: jax.tree_util.KeyPath, leaf: jax.Array | jax.ShapeDtypeStruct
  ) -> NamedSharding:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    for pattern, partition in spec.rules:
      if re.fullmatch(pattern, name):
        return NamedSharding(mesh, _fit(partition, np.shape(leaf), mesh))
    raise InputError(f"No sharding rule of the mesh matches {name!r}.")

  return jax.tree_util.tree_map_with_path(find_sharding, tree)


def param_shardings(params: Any, mesh: Mesh, spec: MeshSpec) -> Any:
  """Returns the shardings of (abstract) parameters, also of a teacher."""
  return tree_shardings({"params": params}, mesh, spec)["params"]


def gather_params(
  objective: Callable[..., Any], mesh: Mesh, spec: MeshSpec
) -> Callable[..., Any]:
  """Wraps `objective(params, ...)` to gather its parameters along "data".

  Without this XLA multiplies by split kernels and moves the activations
  instead, which are far larger. The gradients of the wrapped objective are
  split like the parameters.
  """

  def wrapped(params: dict, *args: object) -> Any:
    shardings = param_shardings(params, mesh, spec)
    return objective(jax.tree.map(_gather, params, shardings), *args)

  return wrapped


def replicated_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of arrays that every device has in full."""
  return NamedSharding(mesh, P())


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of arrays whose rows are split over "data"."""
  return NamedSharding(mesh, P(DATA_AXIS))


def process_slice(mesh: Mesh, batch_size: int) -> tuple[int, int]:
  """Returns (index, number of slices) of the batch slice of this process.

  Processes read the same slice if an axis other than "data" runs across them.
  """
  process = jax.process_index()
  indices: Any = batch_sharding(mesh).devices_indices_map((batch_size,))
  own = [indices[x] for x in indices if x.process_index == process]
  rows = sorted({row for (index,) in own for row in range(batch_size)[index]})
  first = rows[0]
  num = len(rows)
  if rows[-1] - first != num - 1 or batch_size % num or first % num:
    raise InputError(
      f"The mesh ({format_axes(mesh.shape)}) gives process {process} rows that"
      " are not one of several equal slices of a batch. Set"
      " --config.mesh.model to a divisor or a multiple of its"
      f" {len(own)} devices."
    )
  return first // num, batch_size // num


def shard_batch(batch: Batch, mesh: Mesh) -> dict[str, jax.Array]:
  """Makes the global batch from the slice of `process_slice`."""
  rows = batch_sharding(mesh)
  _, count = process_slice(mesh, mesh.shape[DATA_AXIS])
  return {
    name: jax.make_array_from_process_local_data(
      rows, array, (len(array) * count, *array.shape[1:])
    )
    for name, array in batch.items()
  }


def place_batch(batch: Batch, mesh: Mesh) -> dict[str, jax.Array]:
  """Makes the global batch from one that is complete in every process."""
  return {name: put(x, batch_sharding(mesh)) for name, x in batch.items()}


def put(array: np.ndarray, split: jax.sharding.Sharding) -> jax.Array:
  """Puts an array, equal in all processes, on the devices of a sharding."""
  return jax.make_array_from_callback(array.shape, split, array.__getitem__)


def bytes_per_device(tree: Any) -> int:
  """Returns the bytes that one device has of a tree of (abstract) arrays."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(tree)
  )


def _fit(partition: P, shape: tuple[int, ...], mesh: Mesh) -> P:
  """Removes the axes that do not divide their dimension."""
  axes = [
    axis if axis and size % mesh.shape[axis] == 0 else None
    for axis, size in zip(partition, shape, strict=False)
  ]
  return P(*axes)


def _gather(x: jax.Array, split: NamedSharding) -> jax.Array:
  if DATA_AXIS not in split.spec:
    return x
  axes = (axis if axis != DATA_AXIS else None for axis in split.spec)
  gathered = NamedSharding(split.mesh, P(*axes))
  constrain = jax.lax.with_sharding_constraint
  # The transpose of a constraint alone would put each gradient in full on
  # every device.
  return jax.custom_derivatives.linear_call(
    lambda _, x: constrain(x, gathered), lambda _, g: constrain(g, split), (), x
  )


def format_axes(axes: Axes) -> str:
  """Formats axis sizes like "data 4, model 2"."""
  return ", ".join(f"{axis} {size}" for axis, size in axes.items())


def check_batch_size(
  batch_size: int, accumulation: int, spec: MeshSpec
) -> None:
  """Checks that a batch can be split evenly over mesh and micro-batches."""
  data_size = resolve_axis_sizes(spec.axes, device_count())[DATA_AXIS]
  slices = data_size * accumulation
  if batch_size % slices:
    raise InputError(
      f"batch_size={batch_size} must be a multiple of {slices} ({data_size}"
      f" slices of the mesh x {accumulation} micro-batches). Set"
      f" --config.batch_size={max(batch_size // slices, 1) * slices}."
    )


def device_count() -> int:
  """Returns the number of devices of JAX; InputError if it finds none."""
  try:
    return jax.device_count()
  except (RuntimeError, AssertionError) as e:  # empty if a plugin is missing
    platforms = os.environ.get("JAX_PLATFORMS", "")
    raise InputError(
      f"JAX finds no device for JAX_PLATFORMS={platforms} ({e or 'no plugin'})."
      " In the checkout, run pip install -c launch/constraints.txt '.[gpu]'"
      " (drivers before 580: cuda12; TPUs: tpu), or set JAX_PLATFORMS=cpu."
    ) from e


@functools.cache
def device_memory() -> int:
  """Returns the bytes that JAX may use of a device of the first process."""
  device_count()  # InputError if there is none
  stats = jax.local_devices()[0].memory_stats() or {}
  limit = stats.get("bytes_limit", 16 * 2**30)  # CPUs do not tell
  return int(distributed.from_first("device_memory", str(limit)))


def describe_devices(preset: str, mesh: Mesh) -> str:
  """Describes the devices of a run, its processes and its mesh."""
  device = mesh.devices.flat[0]
  count = jax.process_count()
  processes = "1 process" if count == 1 else f"{count} processes"
  return (
    f"{mesh.devices.size} x {device.device_kind} ({device.platform}),"
    f" {processes}, mesh {preset}: {format_axes(mesh.shape)}"
  )
