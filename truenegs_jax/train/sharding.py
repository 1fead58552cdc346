"""Meshes, and which array lies where on them: data, never code in models.

A preset names the mesh axes and an ordered list of (regex, PartitionSpec);
the first rule whose regex matches an array's path decides. Batches are split
over the axis "data" on every mesh.
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

from truenegs_jax.runtime.errors import InputError, one_of

DATA_AXIS = "data"
MODEL_AXIS = "model"
TABLE_PLACEMENTS = ("replicated", "rows")


@dataclasses.dataclass(frozen=True)
class MeshSpec:
  """Axis sizes in order (-1: all devices left over) and the sharding rules."""

  axes: Mapping[str, int]
  rules: tuple[tuple[str, P], ...]


# Paths are those of a whole state: "params/bert/layer_0/query/kernel", and
# "opt_state/1/mean/bert/layer_0/query/kernel" for its moment. Tables are split
# by their width: few vocabularies divide by a number of devices (30,522 by 2).
MESHES = {
  # Every device holds all parameters and a slice of the batch.
  "dp": MeshSpec({DATA_AXIS: -1}, ((".*", P()),)),
  # Every device holds a slice of all that is large, too (ZeRO: Rajbhandari et
  # al. 2020): the step gathers the parameters, and scatters their gradients.
  "fsdp": MeshSpec(
    {DATA_AXIS: -1},
    (
      (".*/embeddings/(word|position)", P(None, DATA_AXIS)),
      (".*/kernel", P(DATA_AXIS, None)),
      (".*", P()),  # biases, norms, scalars
    ),
  ),
  # As fsdp, and two products in a row are split by the outputs of the first and
  # the inputs of the second, the vocabulary by its entries where they divide
  # (Megatron: Shoeybi et al. 2019, section 3).
  "fsdp_tp": MeshSpec(
    {DATA_AXIS: -1, MODEL_AXIS: 2},
    (
      (".*/embeddings/word", P(MODEL_AXIS, DATA_AXIS)),
      (".*/embeddings/position", P(None, DATA_AXIS)),
      (".*/(query|key|value|ffn_input)/kernel", P(DATA_AXIS, MODEL_AXIS)),
      (".*/(attention_output|ffn_output)/kernel", P(MODEL_AXIS, DATA_AXIS)),
      (".*/kernel", P(DATA_AXIS, None)),
      (".*", P()),
    ),
  ),
}


def make_mesh(
  spec: MeshSpec, devices: Sequence[jax.Device] | None = None
) -> Mesh:
  """Lays the devices (default: all there are) out on the preset's axes."""
  devices = jax.devices() if devices is None else devices
  sizes = resolve_axis_sizes(spec.axes, len(devices))
  # Auto: linen cannot be traced over Explicit axes, the default of make_mesh.
  return jax.make_mesh(
    sizes,
    tuple(spec.axes),
    axis_types=(AxisType.Auto,) * len(sizes),
    devices=devices,
  )


def get_mesh_spec(name: str, axes: Mapping[str, int] | str = "") -> MeshSpec:
  """Looks a preset up by name and changes the sizes of some of its axes.

  Args:
    name: a key of MESHES.
    axes: axis -> size, or a text as `parse_axes` takes it; -1 is all the
      devices that are left over.

  Raises:
    InputError: an unknown preset or axis, or a size that cannot be.
  """
  one_of("mesh.preset", name, MESHES)
  spec = MESHES[name]
  axes = parse_axes(axes) if isinstance(axes, str) else axes
  for axis, size in axes.items():
    if axis not in spec.axes:
      known = ", ".join(spec.axes)
      raise InputError(
        f"mesh.axes: the preset {name!r} has no axis {axis!r}; it has: {known}."
      )
    if size < 1 and size != -1:
      raise InputError(
        f"mesh.axes: {axis} is {size}; it must be at least 1, or -1: the rest."
      )
  return dataclasses.replace(spec, axes={**spec.axes, **axes})


def parse_axes(text: str) -> dict[str, int]:
  """Axis sizes as a config has them: "", "model=4" or "data=8,model=4"."""
  axes = {}
  for part in filter(None, text.replace(" ", "").split(",")):
    match = re.fullmatch(r"(\w+)=(-?\d+)", part)
    if not match:
      raise InputError(
        f"mesh.axes {text!r}: {part!r} is not of the form AXIS=NUMBER."
      )
    axes[match[1]] = int(match[2])
  return axes


def resolve_axis_sizes(
  axes: Mapping[str, int], num_devices: int
) -> tuple[int, ...]:
  """Replaces the -1 among the axis sizes by what the others leave."""
  num_open = list(axes.values()).count(-1)
  if num_open > 1:
    raise InputError(f"mesh axes ({_listed(axes)}): only one may be -1.")
  fixed = math.prod(size for size in axes.values() if size != -1)
  if num_devices % fixed or (not num_open and num_devices != fixed):
    needed = f"a multiple of {fixed}" if num_open else str(fixed)
    raise InputError(
      f"mesh axes ({_listed(axes)}) need {needed} devices, but there are"
      f" {num_devices}; change mesh.axes, or have -1 for one of them."
    )
  return tuple(num_devices // fixed if n == -1 else n for n in axes.values())


def data_parallelism(spec: MeshSpec, num_devices: int) -> int:
  """How many slices a batch is split into; arithmetic, no mesh is made."""
  sizes = resolve_axis_sizes(spec.axes, num_devices)
  return dict(zip(spec.axes, sizes, strict=True))[DATA_AXIS]


def tree_shardings(tree: Any, mesh: Mesh, spec: MeshSpec) -> Any:
  """A NamedSharding for each leaf of a tree, by the first rule that matches.

  A dimension that does not divide by its axes is left whole.
  """

  def place(path, leaf):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    for pattern, partition in spec.rules:
      if re.fullmatch(pattern, name):
        return NamedSharding(mesh, _fit(partition, np.shape(leaf), mesh))
    raise InputError(f"no sharding rule of the mesh matches {name!r}.")

  return jax.tree_util.tree_map_with_path(place, tree)


def gather_params(
  objective: Callable[..., Any], mesh: Mesh, spec: MeshSpec
) -> Callable[..., Any]:
  """`objective(params, ...)` with its parameters whole along the data axis.

  Left to itself XLA multiplies by a split kernel where it lies and splits, or
  repeats, the activations instead, which are far larger. So the parameters are
  gathered first; their gradients come back split as the parameters are.
  """

  def gathering(params, *args):
    places = tree_shardings({"params": params}, mesh, spec)["params"]
    return objective(jax.tree.map(_gather, params, places), *args)

  return gathering


def replicated_sharding(mesh: Mesh) -> NamedSharding:
  """The whole array on every device."""
  return NamedSharding(mesh, P())


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Rows split over the data axis."""
  return NamedSharding(mesh, P(DATA_AXIS))


def process_slice(mesh: Mesh, batch_size: int) -> tuple[int, int]:
  """Which slice of the global batch this process reads: (index, count).

  Processes that hold the same rows (an axis beside "data" runs across them)
  read the same slice.

  Raises:
    InputError: the rows do not divide by the data axis, or those of this
      process are not one of `count` equal slices.
  """
  size = mesh.shape[DATA_AXIS]
  if batch_size % size:
    raise InputError(
      f"{batch_size} rows do not divide by the {size} slices of the mesh; try"
      f" {max(batch_size // size, 1) * size}."
    )
  own = jax.process_index()
  places: Any = batch_sharding(mesh).devices_indices_map((batch_size,))
  held = [places[device] for device in places if device.process_index == own]
  rows = sorted({row for (index,) in held for row in range(batch_size)[index]})
  first, num = rows[0], len(rows)
  if rows[-1] - first != num - 1 or batch_size % num or first % num:
    raise InputError(
      f"the mesh ({_listed(mesh.shape)}) gives process {own} rows that are not"
      " one of equal slices of a batch; choose mesh.axes that divide, or are"
      f" multiples of, its {len(held)} devices."
    )
  return first // num, batch_size // num


def shard_batch(
  batch: dict[str, np.ndarray], mesh: Mesh
) -> dict[str, jax.Array]:
  """Makes global arrays of the rows that `process_slice` gives this process."""
  place = batch_sharding(mesh)
  _, count = process_slice(mesh, mesh.shape[DATA_AXIS])
  return {
    name: jax.make_array_from_process_local_data(
      place, array, (len(array) * count, *array.shape[1:])
    )
    for name, array in batch.items()
  }


def abstract_table(
  like: jax.ShapeDtypeStruct | np.ndarray, mesh: Mesh, layout: str
) -> jax.ShapeDtypeStruct:
  """Shape and placement of the result of `place_table`; no array is made."""
  one_of("mesh.synonyms", layout, TABLE_PLACEMENTS)
  axes = mesh.axis_names if layout == "rows" else ()
  rows, columns = like.shape
  padding = -rows % math.prod(mesh.shape[axis] for axis in axes)
  return jax.ShapeDtypeStruct(
    (rows + padding, columns),
    like.dtype,
    sharding=NamedSharding(mesh, P(axes or None)),
  )


def place_table(table: np.ndarray, mesh: Mesh, layout: str) -> jax.Array:
  """Puts the synonym table onto the devices.

  Args:
    table: `bits_VxW` or `ids_VxS`, the same in every process.
    mesh: where they go.
    layout: "replicated", or "rows": split over all devices, with rows of zeros
      up to a multiple of them. A look-up then adds a word (of bits) or a list
      (of ids) a slot over the devices; smoothing a whole row of bits.

  Raises:
    InputError: unknown layout.
  """
  padded = abstract_table(table, mesh, layout)

  def part(index):
    first, stop, _ = index[0].indices(padded.shape[0])
    rows = table[first:stop]
    return np.pad(rows, ((0, stop - first - len(rows)), (0, 0)))

  return jax.make_array_from_callback(padded.shape, padded.sharding, part)


def bytes_per_device(tree: Any) -> int:
  """Bytes one device holds of a tree of (abstract) arrays with shardings."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(tree)
  )


def _fit(partition: P, shape: tuple[int, ...], mesh: Mesh) -> P:
  """The partition without the axes that do not divide their dimension."""
  return P(
    *(
      axis if axis and size % mesh.shape[axis] == 0 else None
      for axis, size in zip(partition, shape, strict=False)
    )
  )


def _gather(x: jax.Array, place: NamedSharding) -> jax.Array:
  if DATA_AXIS not in place.spec:
    return x
  axes = (axis if axis != DATA_AXIS else None for axis in place.spec)
  gathered = NamedSharding(place.mesh, P(*axes))
  to = lambda place, _, x: jax.lax.with_sharding_constraint(x, place)
  # A constraint's own transpose would make all of each gradient everywhere.
  return jax.custom_derivatives.linear_call(
    functools.partial(to, gathered), functools.partial(to, place), (), x
  )


def _listed(axes: Mapping[str, int]) -> str:
  return ", ".join(f"{axis} {size}" for axis, size in axes.items())


def check_batch_size(
  batch_size: int, accumulation: int, spec: MeshSpec
) -> None:
  """Refuses rows that do not divide by the devices and the micro-batches."""
  parallel = data_parallelism(spec, device_count())
  shares = parallel * accumulation
  if batch_size % shares:
    near = max(batch_size // shares, 1) * shares
    raise InputError(
      f"batch_size {batch_size} must be a multiple of {shares} ({parallel}"
      f" slices by the mesh x {accumulation} micro-batches); try"
      f" --config.batch_size={near}."
    )


def device_count() -> int:
  """How many devices jax has; InputError where it finds none."""
  try:
    return jax.device_count()
  except (RuntimeError, AssertionError) as e:  # a bare one, without a plugin
    wanted = os.environ.get("JAX_PLATFORMS", "")
    raise InputError(
      f"jax finds no device of JAX_PLATFORMS={wanted}: {e or 'no plugin'}. GPUs"
      " need pip install 'truenegs_jax[gpu]' (Python 3.12), TPUs [tpu];"
      " JAX_PLATFORMS=cpu does without."
    ) from e
