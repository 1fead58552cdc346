"""Meshes shard arrays by rules; the step is the same on every mesh."""

import dataclasses
import functools
import math
import re

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from support import tiny
from truenegs_jax.models import pretrain
from truenegs_jax.pretrain.open_teacher import OpenTeacher
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms.run_table import TeacherOptions
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import sharding, step


def make_process_mesh(processes: str, **axes: int) -> Mesh:
  """Makes a mesh of devices that belong to the listed processes."""
  devices = [FakeDevice(i, int(p)) for i, p in enumerate(processes)]
  return Mesh(np.array(devices).reshape(*axes.values()), tuple(axes))


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (
      lambda: sharding.resolve_axis_sizes({"data": -1, "model": 3}, 8),
      "multiple of 3.* 8",
    ),
    (
      lambda: sharding.tree_shardings(
        {"a": 0}, None, sharding.MeshSpec({}, ())
      ),
      "matches 'a'",
    ),
    (
      lambda: sharding.process_slice(make_process_mesh("0101", data=4), 16),
      "not one of several equal slices",
    ),
    (
      lambda: sharding.process_slice(make_process_mesh("0001", data=4), 16),
      "its 3 devices",
    ),
  ],
)
def test_a_mesh_that_does_not_fit_is_refused(call, message):
  with pytest.raises(InputError, match=message):
    call()


@dataclasses.dataclass(frozen=True)
class FakeDevice:
  """A device of another process."""

  id: int
  process_index: int
  platform: str = "cpu"
  device_kind: str = "cpu"


@pytest.mark.parametrize(
  ("processes", "axes", "slices"),
  [
    ("0011", dict(data=4), [(0, 2), (1, 2)]),
    ("1100", dict(data=4), [(1, 2), (0, 2)]),
    ("0011", dict(data=2, model=2), [(0, 2), (1, 2)]),
    ("0011", dict(data=1, model=4), [(0, 1), (0, 1)]),
    ("0101", dict(data=2, model=2), [(0, 1), (0, 1)]),
    ("00112233", dict(data=2, model=4), [(0, 2), (0, 2), (1, 2), (1, 2)]),
  ],
)
def test_process_reads_the_rows_of_its_devices(
  monkeypatch, processes, axes, slices
):
  mesh = make_process_mesh(processes, **axes)
  for process, expected in enumerate(slices):
    monkeypatch.setattr(jax, "process_index", lambda process=process: process)
    assert sharding.process_slice(mesh, 16) == expected


ROWS, STEPS = 16, 4
MODEL = tiny.make_model(layers=1)
TEACHER = OpenTeacher(TeacherOptions(top=9), None, tiny.make_bert(layers=1))
MODERN = tiny.make_model(backbone="modern", window=5, sharing="disentangled")


@functools.cache
def first_state(model) -> step.TrainState:
  return tiny.init_state(model, tiny.make_tx())


@functools.cache
def state_shapes(model) -> step.TrainState:
  return jax.eval_shape(lambda: tiny.init_state(model, tiny.make_tx()))


def abstract_state(model, mesh, spec) -> step.TrainState:
  """Returns shapes, dtypes and shardings of a train state."""
  shapes = state_shapes(model)
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    sharding.tree_shardings(shapes, mesh, spec),
  )


def compile_step(
  preset: str,
  num_devices: int,
  accumulation=1,
  model=MODEL,
  **options,
):
  """Compiles the step of the tiny pair; returns it and its first inputs."""
  spec = sharding.get_mesh_spec(preset)
  mesh = sharding.make_mesh(spec, jax.devices()[:num_devices])
  tx = tiny.make_tx(peak=1e-2)
  shardings = jax.tree.map(
    lambda x: x.sharding, abstract_state(model, mesh, spec)
  )
  teacher = options.get("teacher")
  if teacher:
    options["teacher"] = teacher.make_reader(mesh, spec)
  objective = tiny.make_objective(
    model, tiny.make_options(**options), train=True
  )
  gathering = sharding.gather_params(objective, mesh, spec)
  train_step = step.make_train_step(gathering, tiny.WEIGHTS, tx, accumulation)
  state = jax.device_put(first_state(model), shardings)
  arrays = {"bits_VxW": tiny.pack_bits(tiny.dense_table())}
  if "smoothing" in options:
    tokens = [f"word{i}" for i in range(tiny.V)]
    table = SynonymTable.from_ids(
      tiny.list_ids(tiny.dense_table()), tokens, source="x", options={}
    )
    arrays = table.arrays(rates=True)
  replicated = sharding.replicated_sharding(mesh)
  aux = {name: sharding.put(x, replicated) for name, x in arrays.items()}
  if teacher:
    params = {"params": tiny.random_params(teacher.model)}
    split = sharding.tree_shardings(params, mesh, spec)
    aux["teacher"] = jax.device_put(params, split)["params"]
  compute = jax.jit(
    train_step, out_shardings=(shardings, sharding.replicated_sharding(mesh))
  )
  compiled = compute.lower(state, load_batch(mesh, 0), aux).compile()
  return compiled, mesh, state, aux


def load_batch(mesh, number: int) -> dict:
  return sharding.shard_batch(tiny.make_batch(number, rows=ROWS), mesh)


def train(compiled, mesh, state, aux) -> list:
  """Returns parameters and terms after each of a few steps."""
  history = []
  for number in range(STEPS):
    state, terms = compiled(state, load_batch(mesh, number), aux)
    history.append(jax.device_get((state.params, terms)))
  return history


def test_step_is_the_same_on_a_mesh_and_in_micro_batches():
  one = train(*compile_step("dp", 1))
  compiled, *rest = compile_step("fsdp", 2, accumulation=2)
  assert_no_activations_are_gathered(compiled.as_text())
  assert_same_history(one, train(compiled, *rest))


@pytest.mark.slow
@pytest.mark.parametrize(
  "recipe",
  [
    {
      "model": MODERN,
      "smoothing": 0.3,
      "smoothing_by": "balanced",
      "drop_prob": 0.2,
    },
    {"teacher": TEACHER, "smoothing": 0.5, "discriminator_label": 0.0},
  ],
)
def test_other_recipes_are_the_same_on_a_mesh_and_in_chunks(recipe):
  one = train(*compile_step("dp", 1, **recipe))
  compiled, *rest = compile_step("fsdp_tp", 8, vocabulary_chunk=9, **recipe)
  assert_same_history(one, train(compiled, *rest))


def assert_same_history(expected: list, actual: list) -> None:
  history = zip(expected, actual, strict=True)
  for number, (one, many) in enumerate(history):
    (params, terms), (mesh_params, mesh_terms) = one, many
    assert mesh_terms.keys() == terms.keys()
    for name in ("mlm", "detect", "soft", "grad_norm"):
      np.testing.assert_allclose(mesh_terms[name], terms[name], rtol=1e-6)
    for name in ("corrected_of_slots", "replaced"):
      np.testing.assert_array_equal(mesh_terms[name], terms[name])
    for (path, a), b in zip(
      jax.tree_util.tree_leaves_with_path(params),
      jax.tree.leaves(mesh_params),
      strict=True,
    ):
      message = f"step {number}, {jax.tree_util.keystr(path)}"
      np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6, err_msg=message)


def assert_no_activations_are_gathered(text: str) -> None:
  """Asserts that no gathered array is larger than the largest parameter.

  Without `gather_params` XLA gathers activations instead of split kernels.
  """
  sizes = [
    math.prod(int(n) for n in dims.split(",") if n)
    for result in re.findall(r"= (.*) all-gather\(", text)
    for dims in re.findall(r"(?:f32|bf16)\[([\d,]*)\]", result)
  ]
  positions_PxE, hidden_BxLxF = 512 * 16, ROWS * tiny.L * 64
  assert max(sizes) <= positions_PxE < hidden_BxLxF / 2
  assert positions_PxE in sizes


@pytest.mark.parametrize("preset", sharding.MESHES)
def test_every_rule_matches_some_array(preset):
  spec = sharding.get_mesh_spec(preset)
  mesh = sharding.make_mesh(spec)
  states = [abstract_state(model, mesh, spec) for model in (MODEL, MODERN)]
  used = set()
  for path, _ in jax.tree_util.tree_leaves_with_path(states):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    matches = [bool(re.fullmatch(rule, name)) for rule, _ in spec.rules]
    used.add(matches.index(True))
  assert used == set(range(len(spec.rules)))


def test_all_large_arrays_are_split():
  model = pretrain.make_electra(
    vocab_size=30_522, variant="base", layers=2, generator_multiplier=1 / 3
  )
  for preset, most in {"fsdp": 1.1, "fsdp_tp": 1.3}.items():
    spec = sharding.get_mesh_spec(preset)
    mesh = sharding.make_mesh(spec)
    leaves = jax.tree.leaves(abstract_state(model, mesh, spec))
    total = sum(x.size * x.dtype.itemsize for x in leaves)
    assert sharding.bytes_per_device(leaves) < most * total / mesh.size
    replicated = [x for x in leaves if x.sharding.is_fully_replicated]
    assert max(x.size for x in replicated) == 30_522  # the output bias
