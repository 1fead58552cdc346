"""Meshes, and which array lies where on them: data, never code in models.

A preset names the mesh axes and an ordered list of (regex, PartitionSpec);
the first rule whose regex matches a parameter's path decides.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from truenegs_jax.errors import InputError

DATA_AXIS = "data"


@dataclasses.dataclass(frozen=True)
class MeshSpec:
  """Axis sizes in order (-1: all devices left over) and the sharding rules."""

  axes: dict[str, int]
  rules: tuple[tuple[str, P], ...]


MESHES = {
  # Every device holds all parameters and a slice of the batch.
  "dp": MeshSpec({DATA_AXIS: -1}, ((".*", P()),)),
}


def make_mesh(
  spec: MeshSpec, devices: Sequence[jax.Device] | None = None
) -> Mesh:
  """Lays the devices (default: all there are) out on the preset's axes."""
  devices = jax.devices() if devices is None else devices
  sizes = resolve_sizes(spec.axes, len(devices))
  # Auto: linen cannot be traced over Explicit axes, the default of make_mesh.
  return jax.make_mesh(
    sizes,
    tuple(spec.axes),
    axis_types=(AxisType.Auto,) * len(sizes),
    devices=devices,
  )


def get_spec(name: str) -> MeshSpec:
  """Looks a preset up by name; InputError lists the known ones."""
  if name not in MESHES:
    known = ", ".join(MESHES)
    raise InputError(f"mesh.preset {name!r} is unknown; known: {known}.")
  return MESHES[name]


def resolve_sizes(axes: dict[str, int], num_devices: int) -> tuple[int, ...]:
  """Replaces the -1 among the axis sizes by what the others leave."""
  if list(axes.values()).count(-1) > 1:
    raise InputError(f"mesh axes {axes}: only one may be -1.")
  fixed = math.prod(size for size in axes.values() if size != -1)
  if num_devices % fixed:
    raise InputError(
      f"mesh axes {axes} need a multiple of {fixed} devices, but there are"
      f" {num_devices}."
    )
  return tuple(num_devices // fixed if n == -1 else n for n in axes.values())


def tree_shardings(tree: Any, mesh: Mesh, spec: MeshSpec) -> Any:
  """A NamedSharding for each leaf of a tree, by the first rule that matches."""

  def place(path, _):
    name = "/".join(_key_name(key) for key in path)
    for pattern, partition in spec.rules:
      if re.fullmatch(pattern, name):
        return NamedSharding(mesh, partition)
    raise InputError(f"no sharding rule of the mesh matches {name!r}.")

  return jax.tree_util.tree_map_with_path(place, tree)


def replicated(mesh: Mesh) -> NamedSharding:
  """The whole array on every device."""
  return NamedSharding(mesh, P())


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Rows split over the data axis."""
  return NamedSharding(mesh, P(DATA_AXIS))


def to_device(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """Makes global arrays of this process's rows of a batch."""
  place = batch_sharding(mesh)
  return {
    name: jax.make_array_from_process_local_data(place, array)
    for name, array in batch.items()
  }


def bytes_per_device(tree: Any) -> int:
  """Bytes one device holds of a tree of (abstract) arrays with shardings."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(tree)
  )


def _key_name(key: Any) -> str:
  for attribute in ("key", "name", "idx"):
    if hasattr(key, attribute):
      return str(getattr(key, attribute))
  return str(key)
