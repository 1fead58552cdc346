"""Meshes lay arrays out by rules, and refuse what cannot be."""

import dataclasses
import functools
import math
import pathlib
import re
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from support import tiny
from truenegs_jax.configs import bert_base
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import negatives
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import sharding, step


def mesh_of(preset: str, **axes: int) -> Mesh:
  return sharding.make_mesh(sharding.get_mesh_spec(preset, axes))


def test_the_rest_of_the_devices_goes_to_the_open_axis():
  assert sharding.resolve_axis_sizes({"data": -1}, 8) == (8,)
  assert sharding.resolve_axis_sizes({"data": -1, "model": 2}, 8) == (4, 2)
  with pytest.raises(InputError, match="multiple of 3.* 8"):
    sharding.resolve_axis_sizes({"data": -1, "model": 3}, 8)
  with pytest.raises(InputError, match="need 4 devices.* 8"):
    sharding.resolve_axis_sizes({"data": 2, "model": 2}, 8)
  with pytest.raises(InputError, match="only one"):
    sharding.resolve_axis_sizes({"data": -1, "model": -1}, 8)


def test_axis_sizes_are_changed_by_name_and_the_preset_stays_as_it_is():
  spec = sharding.get_mesh_spec("fsdp_tp", {"model": 4})
  assert dict(sharding.make_mesh(spec).shape) == {"data": 2, "model": 4}
  assert dict(mesh_of("fsdp_tp").shape) == {"data": 4, "model": 2}
  assert sharding.get_mesh_spec("fsdp_tp", {}) == sharding.MESHES["fsdp_tp"]


@pytest.mark.parametrize(
  ("preset", "axes", "says"),
  [
    ("fspd", {}, "'fspd' is unknown.*dp, fsdp or fsdp_tp"),
    ("fsdp", {"model": 2}, "no axis 'model'; it has: data"),
    ("fsdp_tp", {"tensor": 2}, "no axis 'tensor'; it has: data, model"),
    ("fsdp_tp", {"model": 0}, "model is 0"),
    ("fsdp", {"data": -2}, "data is -2"),
  ],
)
def test_what_is_no_mesh_is_refused_with_what_there_is(preset, axes, says):
  with pytest.raises(InputError, match=says):
    sharding.get_mesh_spec(preset, axes)


def test_axes_are_read_from_a_config():
  assert sharding.parse_axes("") == {}
  assert sharding.parse_axes("model=4") == {"model": 4}
  assert sharding.parse_axes("data=-1, model=4") == {"data": -1, "model": 4}
  for bad in ("4", "model:4", "model=x", "model=1.5"):
    with pytest.raises(InputError, match=f"{bad!r}.*AXIS=NUMBER"):
      sharding.parse_axes(f"data=2,{bad}")


@pytest.mark.parametrize("num_devices", [2, 8, 256, 6144])
def test_a_batch_is_split_over_the_data_axis_alone(num_devices):
  slices = lambda *args: sharding.data_parallelism(
    sharding.get_mesh_spec(*args), num_devices
  )
  assert slices("dp") == slices("fsdp") == num_devices
  assert slices("fsdp_tp") == num_devices // 2
  assert slices("fsdp_tp", {"data": 2, "model": -1}) == 2


def test_the_first_matching_rule_decides_and_none_is_an_error():
  spec = sharding.MeshSpec(
    {"data": -1},
    ((".*/dense/kernel", P("data")), (".*/kernel", P(None, "data"))),
  )
  mesh = sharding.make_mesh(spec)
  x = np.zeros((8, 8))
  tree = {"a": {"dense": {"kernel": x}, "out": {"kernel": x}}}
  got = sharding.tree_shardings(tree, mesh, spec)
  assert got["a"]["dense"]["kernel"].spec == P("data")
  assert got["a"]["out"]["kernel"].spec == P(None, "data")
  with pytest.raises(InputError, match="a/bias"):
    sharding.tree_shardings({"a": {"bias": x}}, mesh, spec)


def test_a_dimension_that_does_not_divide_is_left_whole():
  spec, mesh = sharding.get_mesh_spec("fsdp_tp"), mesh_of("fsdp_tp")  # 4 x 2
  for shape, part in {
    (30_522, 64): (15_261, 16),
    (30_523, 64): (30_523, 16),
    (30_522, 66): (15_261, 66),
    (30_523, 66): (30_523, 66),
  }.items():
    tree = {"params": {"embeddings": {"word": np.zeros(shape, np.int8)}}}
    (place,) = jax.tree.leaves(sharding.tree_shardings(tree, mesh, spec))
    assert place.shard_shape(shape) == part


def test_rows_are_split_evenly_and_in_order():
  mesh = sharding.make_mesh(sharding.get_mesh_spec("dp"))
  batch = tiny.make_batch(0, rows=16)
  on_device = sharding.shard_batch(batch, mesh)
  for name, array in batch.items():
    np.testing.assert_array_equal(on_device[name], array)
    shards = on_device[name].addressable_shards
    assert len(shards) == 8
    for shard in shards:
      assert shard.data.shape[0] == 2
      np.testing.assert_array_equal(shard.data, array[shard.index])


def test_bytes_count_what_one_device_holds():
  mesh = sharding.make_mesh(sharding.get_mesh_spec("dp"))
  x = np.zeros((16, 3), np.float32)
  split = jax.device_put(x, sharding.batch_sharding(mesh))
  whole = jax.device_put(x, sharding.replicated_sharding(mesh))
  assert sharding.bytes_per_device({"a": split}) == 2 * 3 * 4
  assert sharding.bytes_per_device({"a": split, "b": whole}) == 24 + 192


@pytest.mark.parametrize("preset", ["fsdp", "fsdp_tp"])
def test_kernels_are_gathered_and_their_gradients_split_again(preset):
  spec, mesh = sharding.get_mesh_spec(preset), mesh_of(preset)
  kernel = np.arange(16.0 * 8).reshape(16, 8) / 128
  tree = {"params": {"layer_0": {"query": {"kernel": kernel}}}}
  params = jax.device_put(tree, sharding.tree_shardings(tree, mesh, spec))
  params, x_BxD = params["params"], np.ones((8, 16))

  def objective(params, x_BxD):
    return ((x_BxD @ params["layer_0"]["query"]["kernel"]) ** 2).sum()

  split = sharding.gather_params(objective, mesh, spec)
  batch = jax.device_put(x_BxD, sharding.batch_sharding(mesh))
  compiled = jax.jit(jax.grad(split)).lower(params, batch).compile()
  # Multiplied by the whole of it on fsdp, by the half of its outputs on tp.
  assert ("f32[16,8]" in compiled.as_text()) == (preset == "fsdp")
  assert ("f32[16,4]" in compiled.as_text()) == (preset == "fsdp_tp")
  (gradient,) = jax.tree.leaves(compiled(params, batch))
  (place,) = [x.sharding for x in jax.tree.leaves(params)]
  assert gradient.sharding.is_equivalent_to(place, 2)
  assert not place.is_fully_replicated
  expected = jax.grad(objective)(tree["params"], x_BxD)
  np.testing.assert_allclose(gradient, jax.tree.leaves(expected)[0], rtol=1e-5)


# --- which rows a process reads ----------------------------------------------


@dataclasses.dataclass(frozen=True)
class Device:
  """What a mesh asks of a device of another process."""

  id: int
  process_index: int


def spread(processes: str, **axes: int) -> Mesh:
  """A mesh of devices that belong to these processes, in this order."""
  devices = [Device(i, int(p)) for i, p in enumerate(processes)]
  return Mesh(np.array(devices).reshape(*axes.values()), tuple(axes))


@pytest.mark.parametrize(
  ("processes", "axes", "shares"),
  [
    ("0011", dict(data=4), [(0, 2), (1, 2)]),
    ("1100", dict(data=4), [(1, 2), (0, 2)]),
    ("0011", dict(data=2, model=2), [(0, 2), (1, 2)]),
    ("0011", dict(data=1, model=4), [(0, 1), (0, 1)]),
    ("0101", dict(data=2, model=2), [(0, 1), (0, 1)]),
    ("00112233", dict(data=2, model=4), [(0, 2), (0, 2), (1, 2), (1, 2)]),
  ],
)
def test_a_process_reads_the_rows_that_its_devices_hold(
  monkeypatch, processes, axes, shares
):
  mesh = spread(processes, **axes)
  for process, share in enumerate(shares):
    monkeypatch.setattr(jax, "process_index", lambda process=process: process)
    assert sharding.process_slice(mesh, 16) == share


@pytest.mark.parametrize(
  ("processes", "says"),
  [("0101", "not one of equal slices"), ("0001", "its 3 devices")],
)
def test_rows_that_are_no_slice_are_refused(processes, says):
  with pytest.raises(InputError, match=says):
    sharding.process_slice(spread(processes, data=4), 16)


def test_one_process_reads_all_rows_if_they_divide():
  for preset in sharding.MESHES:
    assert sharding.process_slice(mesh_of(preset), 8) == (0, 1)
  with pytest.raises(InputError, match="12 rows.* 8 slices.*try 8"):
    sharding.process_slice(mesh_of("fsdp"), 12)


# --- the synonym table --------------------------------------------------------


@pytest.mark.parametrize(
  ("preset", "layout", "name"),
  [
    ("dp", "replicated", "bits_VxW"),
    ("fsdp", "rows", "ids_VxS"),
    ("fsdp_tp", "rows", "bits_VxW"),
  ],
)
def test_look_ups_are_the_same_and_move_no_matrix(preset, layout, name):
  rng, v = np.random.default_rng(0), 1_001  # odd: rows are added
  if name == "bits_VxW":
    dense_VxV = rng.random((v, v)) < 0.3
    table, looked_at = tiny.pack_bits(dense_VxV), 1
  else:
    dense_VxV = rng.random((v, v)) < 0.01
    table = tiny.list_ids(dense_VxV)
    looked_at = table.shape[1]
  a_BxK, b_BxK = rng.integers(0, v, (2, 16, 64), dtype=np.int32)
  mesh = mesh_of(preset)
  rows = sharding.batch_sharding(mesh)
  args = (
    {name: sharding.place_table(table, mesh, layout)},
    *jax.device_put((a_BxK, b_BxK), rows),
  )
  look_up = jax.jit(negatives.is_synonym, out_shardings=rows)
  compiled = look_up.lower(*args).compile()
  np.testing.assert_array_equal(compiled(*args), dense_VxV[a_BxK, b_BxK])
  # What is sent over is what B x K slots look at, never the matrix.
  moved = re.findall(
    r"= \(?(\w+\[[\d,]*\]).* all-(?:gather|to-all|reduce)\(",
    compiled.as_text(),
  )
  sizes = [
    np.prod([int(n) for n in re.findall(r"\d+", shape.split("[")[1])])
    for shape in moved
  ]
  assert (len(sizes) > 0) == (layout == "rows")
  assert max(sizes, default=0) <= 2 * a_BxK.size * looked_at
  if name == "bits_VxW":
    assert 2 * a_BxK.size < table.size / 8
    assert compiled.memory_analysis().temp_size_in_bytes < table.nbytes / 2


@pytest.mark.parametrize("name", ["bits_VxW", "ids_VxS"])
def test_means_over_synonyms_are_the_same_on_split_tables(name):
  dense_VxV, mesh = tiny.dense_table(), mesh_of("fsdp")  # 70 rows, 8 devices
  table = {"bits_VxW": tiny.pack_bits, "ids_VxS": tiny.list_ids}[name](
    dense_VxV
  )
  rng = np.random.default_rng(0)
  golds_BxK = rng.integers(0, tiny.V, (8, 6), dtype=np.int32)
  values = rng.normal(size=(8, 6, tiny.V)).astype(np.float32)
  split = {name: sharding.place_table(table, mesh, "rows")}
  means, has = jax.jit(negatives.synonym_mean)(
    split, *jax.device_put((golds_BxK, values), sharding.batch_sharding(mesh))
  )
  listed = dense_VxV[golds_BxK]
  np.testing.assert_array_equal(has, listed.any(axis=-1))
  counts = np.maximum(listed.sum(axis=-1), 1)
  expected = (values * listed).sum(axis=-1) / counts
  np.testing.assert_allclose(means, expected, atol=1e-6)


@pytest.mark.parametrize("layout", sharding.TABLE_PLACEMENTS)
def test_placed_bits_are_as_announced(layout):
  bits_VxW = tiny.pack_bits(tiny.dense_table())  # 70 rows
  mesh = mesh_of("fsdp_tp")
  announced = sharding.abstract_table(bits_VxW, mesh, layout)
  placed = sharding.place_table(bits_VxW, mesh, layout)
  assert announced.shape == placed.shape
  assert announced.dtype == placed.dtype == jnp.uint32
  assert announced.sharding == placed.sharding
  num_rows = {"replicated": 70, "rows": 9}[layout]
  assert sharding.bytes_per_device(announced) == num_rows * 3 * 4
  np.testing.assert_array_equal(placed[:70], bits_VxW)
  assert not np.any(placed[70:])


def test_an_unknown_layout_is_refused_with_the_known_ones():
  with pytest.raises(InputError, match="'row' is unknown.*replicated or rows"):
    sharding.place_table(np.zeros((4, 1), np.uint32), mesh_of("dp"), "row")


# --- on every mesh the step is the one-device step ---------------------------


ROWS, STEPS = 16, 4
MODEL = tiny.make_model(layers=1)


def abstract_state(model, mesh, spec) -> step.TrainState:
  """Shapes and shardings of a whole state; no array is made."""
  init_params = functools.partial(pretrain.init_params, model)
  shapes = jax.eval_shape(
    lambda: step.init_state(init_params, tiny.make_tx(), seed=0)
  )
  return jax.tree.map(
    lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
    shapes,
    sharding.tree_shardings(shapes, mesh, spec),
  )


def compiled_step(preset: str, num_devices: int, layout: str, accumulation=1):
  """The compiled step of the tiny pair, and what its first call is given."""
  spec = sharding.get_mesh_spec(preset)
  mesh = sharding.make_mesh(spec, jax.devices()[:num_devices])
  model, tx = MODEL, tiny.make_tx(peak=1e-2)
  places = jax.tree.map(lambda x: x.sharding, abstract_state(model, mesh, spec))
  objective = tiny.make_objective(model, tiny.make_options(), train=True)
  train_step = step.make_train_step(
    sharding.gather_params(objective, mesh, spec),
    tiny.WEIGHTS,
    tx,
    accumulation,
  )
  state = jax.device_put(tiny.init_state(model, tx), places)
  aux = {
    "bits_VxW": sharding.place_table(
      tiny.pack_bits(tiny.dense_table()), mesh, layout
    )
  }
  compiled = (
    jax.jit(
      train_step, out_shardings=(places, sharding.replicated_sharding(mesh))
    )
    .lower(state, batch_on(mesh, 0), aux)
    .compile({"xla_backend_optimization_level": 0})  # sooner, for few steps
  )
  return compiled, mesh, state, aux


def batch_on(mesh, number: int) -> dict:
  return sharding.shard_batch(tiny.make_batch(number, rows=ROWS), mesh)


def train(compiled, mesh, state, aux) -> list:
  """Parameters and terms after each of a few steps."""
  found = []
  for number in range(STEPS):
    state, terms = compiled(state, batch_on(mesh, number), aux)
    found.append(jax.device_get((state.params, terms)))
  return found


@pytest.fixture(scope="module")
def on_one_device() -> list:
  return train(*compiled_step("dp", 1, "replicated"))


@pytest.mark.parametrize(
  ("preset", "layout", "accumulation"),
  [
    pytest.param("dp", "rows", 1, marks=pytest.mark.slow),
    pytest.param("fsdp", "replicated", 2, marks=pytest.mark.slow),
    ("fsdp_tp", "rows", 1),
  ],
)
def test_a_step_is_the_same_on_every_mesh(
  on_one_device, preset, layout, accumulation
):
  compiled, *rest = compiled_step(preset, 8, layout, accumulation)
  _sends_no_activations(compiled.as_text(), preset)
  for number, (one, many) in enumerate(
    zip(on_one_device, train(compiled, *rest), strict=True)
  ):
    (params, terms), (params_here, terms_here) = one, many
    for name in ("mlm", "detect", "soft", "grad_norm"):
      np.testing.assert_allclose(terms_here[name], terms[name], rtol=1e-6)
    for name in ("corrected_of_slots", "replaced"):
      np.testing.assert_array_equal(terms_here[name], terms[name])
    for (path, a), b in zip(
      jax.tree_util.tree_leaves_with_path(params),
      jax.tree.leaves(params_here),
      strict=True,
    ):
      where = f"step {number}, {jax.tree_util.keystr(path)}"
      np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6, err_msg=where)


def _sends_no_activations(text: str, preset: str) -> None:
  """No gather of floats is larger than the largest parameter.

  Left to itself XLA gathers batches of activations beside split kernels.
  """
  sizes = [
    math.prod(int(n) for n in dims.split(",") if n)
    for result in re.findall(r"= (.*) all-gather\(", text)
    for dims in re.findall(r"(?:f32|bf16)\[([\d,]*)\]", result)
  ]
  positions_PxE, hidden_BxLxF = 512 * 16, ROWS * tiny.L * 64
  assert max(sizes) <= positions_PxE < hidden_BxLxF / 2
  assert (positions_PxE in sizes) == (preset != "dp")


@pytest.mark.parametrize("preset", sharding.MESHES)
@pytest.mark.parametrize("model", [MODEL, tiny.make_bert(pooler=True)])
def test_every_rule_decides_something(preset, model):
  spec = sharding.get_mesh_spec(preset)
  mesh = sharding.make_mesh(spec)
  found = [
    next(
      i for i, (rule, _) in enumerate(spec.rules) if re.fullmatch(rule, name)
    )
    for name in (
      jax.tree_util.keystr(path, simple=True, separator="/")
      for path, _ in jax.tree_util.tree_leaves_with_path(
        abstract_state(model, mesh, spec)
      )
    )
  ]
  assert set(found) == set(range(len(spec.rules)))


@pytest.mark.parametrize("preset", ["fsdp", "fsdp_tp"])
def test_moments_lie_where_their_parameters_do(preset):
  spec = sharding.get_mesh_spec(preset)
  mesh = sharding.make_mesh(spec)
  state = abstract_state(tiny.make_model(), mesh, spec)
  places = lambda tree: [x.sharding.spec for x in jax.tree.leaves(tree)]
  moments = state.opt_state[1]
  assert places(moments.mean) == places(state.params)
  assert places(moments.square) == places(state.params)


def test_products_in_a_row_are_split_so_that_nothing_is_sent_between():
  spec = sharding.get_mesh_spec("fsdp_tp")
  mesh = sharding.make_mesh(spec)
  state = abstract_state(tiny.make_model(), mesh, spec)
  for role in ("generator", "discriminator"):
    layer = state.params[role]["layer_0"]
    split = lambda name, layer=layer: layer[name]["kernel"].sharding.spec
    for first in ("query", "key", "value"):
      assert split(first)[1] == split("attention_output")[0] == "model"
    assert split("ffn_input")[1] == split("ffn_output")[0] == "model"
    for dense in (x["kernel"] for x in layer.values() if "kernel" in x):
      local = math.prod(dense.sharding.shard_shape(dense.shape))
      assert local == dense.size / mesh.size


@pytest.mark.parametrize(
  ("make", "variant", "overrides"),
  [
    (pretrain.make_pair, "base", {"generator_multiplier": 1 / 3}),
    (pretrain.make_pair, "large", {"generator_multiplier": 1 / 4}),
    (pretrain.make_bert, "base", {"pooler": True}),
    (pretrain.make_bert, "large", {"pooler": True}),
  ],
)
def test_nothing_large_is_left_whole(make, variant, overrides):
  model = make(vocab_size=30_522, variant=variant, **overrides)
  for preset, most in {"fsdp": 1.1, "fsdp_tp": 1.3}.items():
    spec = sharding.get_mesh_spec(preset)
    mesh = sharding.make_mesh(spec)
    leaves = jax.tree.leaves(abstract_state(model, mesh, spec))
    total = sum(x.size * x.dtype.itemsize for x in leaves)
    assert sharding.bytes_per_device(leaves) < most * total / mesh.size
    whole = [x for x in leaves if x.sharding.is_fully_replicated]
    assert max(x.size for x in whole) == 30_522  # the bias of the logits


def test_the_memory_of_a_config_is_told_without_any_data():
  path = pathlib.Path(__file__).parents[2] / "benchmarks" / "memory.py"
  memory = runpy.run_path(str(path))
  c = bert_base.get_config("runlocal")
  c.mesh.preset, c.mesh.axes = "fsdp_tp", "model=2"
  told = memory["report"](c, jax.devices()[:4])
  assert "data 2, model 2" in told["devices"]
  assert "4 of them a slice" in told["batch"]
  assert re.search(r"arguments \d.*scratch \d", told["memory"])
