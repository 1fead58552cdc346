"""On every mesh the step is the one-device step, and large arrays are split."""

import functools
import json
import math
import pathlib
import re
import runpy
import socket
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from support import tiny
from truenegs_jax.configs import bert_base
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import plan, sharding, step

ROWS, STEPS = 16, 4
MODEL = tiny.make_model(layers=1)


def make_bert(**overrides) -> pretrain.BertMlm:
  return pretrain.make_bert(
    vocab_size=tiny.V, pooler=True, **{"variant": "tiny", **overrides}
  )


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


@functools.cache
def first_state() -> step.TrainState:
  return tiny.init_state(MODEL, tiny.make_tx(peak=1e-2))


def compiled_step(preset: str, num_devices: int, layout: str, accumulation=1):
  """The compiled step of the tiny pair, and what its first call is given."""
  spec = sharding.get_spec(preset)
  mesh = sharding.make_mesh(spec, jax.devices()[:num_devices])
  model, tx = MODEL, tiny.make_tx(peak=1e-2)
  places = jax.tree.map(lambda x: x.sharding, abstract_state(model, mesh, spec))
  objective = tiny.make_objective(model, tiny.make_options(), train=True)
  train_step = step.make_train_step(
    sharding.gathered(objective, mesh, spec), tiny.WEIGHTS, tx, accumulation
  )
  state = jax.device_put(first_state(), places)
  aux = {
    "bits_VxW": sharding.place_table(
      tiny.pack_bits(tiny.dense_table()), mesh, layout
    )
  }
  compiled = (
    jax.jit(train_step, out_shardings=(places, sharding.replicated(mesh)))
    .lower(state, batch_on(mesh, 0), aux)
    .compile({"xla_backend_optimization_level": 0})  # sooner, for few steps
  )
  return compiled, mesh, state, aux


def batch_on(mesh, number: int) -> dict:
  return sharding.to_device(tiny.make_batch(number, rows=ROWS), mesh)


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
    ("dp", "rows", 1),
    ("fsdp", "replicated", 2),
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


def names_in(tree) -> list[str]:
  return [
    jax.tree_util.keystr(path, simple=True, separator="/")
    for path, _ in jax.tree_util.tree_leaves_with_path(tree)
  ]


@pytest.mark.parametrize("preset", sharding.MESHES)
@pytest.mark.parametrize("make_model", [tiny.make_model, make_bert])
def test_every_rule_decides_something(preset, make_model):
  spec = sharding.get_spec(preset)
  mesh = sharding.make_mesh(spec)
  found = [
    next(
      i for i, (rule, _) in enumerate(spec.rules) if re.fullmatch(rule, name)
    )
    for name in names_in(abstract_state(make_model(), mesh, spec))
  ]
  assert set(found) == set(range(len(spec.rules)))


@pytest.mark.parametrize("preset", ["fsdp", "fsdp_tp"])
def test_moments_lie_where_their_parameters_do(preset):
  spec = sharding.get_spec(preset)
  mesh = sharding.make_mesh(spec)
  state = abstract_state(tiny.make_model(), mesh, spec)
  places = lambda tree: [x.sharding.spec for x in jax.tree.leaves(tree)]
  moments = state.opt_state[1]
  assert places(moments.mean) == places(state.params)
  assert places(moments.square) == places(state.params)


def test_products_in_a_row_are_split_so_that_nothing_is_sent_between():
  spec = sharding.get_spec("fsdp_tp")
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
    spec = sharding.get_spec(preset)
    mesh = sharding.make_mesh(spec)
    leaves = jax.tree.leaves(abstract_state(model, mesh, spec))
    total = sum(x.size * x.dtype.itemsize for x in leaves)
    assert sharding.bytes_per_device(leaves) < most * total / mesh.size
    whole = [x for x in leaves if x.sharding.is_fully_replicated]
    assert max(x.size for x in whole) == 30_522  # the bias of the logits


@pytest.fixture(scope="module")
def memory() -> dict:
  path = pathlib.Path(__file__).parents[2] / "benchmarks" / "memory.py"
  return runpy.run_path(str(path))


def test_the_memory_of_a_config_is_told_without_any_data(memory):
  c = bert_base.get_config("runlocal")
  c.mesh.preset, c.mesh.axes = "fsdp_tp", "model=2"
  told = memory["report"](c, jax.devices()[:4])
  assert "data 2, model 2" in told["devices"]
  assert "4 of them a slice" in told["batch"]
  assert re.search(r"arguments \d.*scratch \d", told["memory"])


def test_a_topology_needs_the_compiler_of_tpus(memory, monkeypatch):
  monkeypatch.setitem(sys.modules, "libtpu", None)
  with pytest.raises(InputError, match=r"pip install 'truenegs_jax\[tpu\]'"):
    memory["tpu_chips"]("v5e:2x2")


def test_a_step_that_does_not_fit_is_told_in_a_line(memory, monkeypatch):
  def fail():
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 16.46G.\nSee x.")

  lowered = types.SimpleNamespace(compile=fail)
  monkeypatch.setattr(plan, "lower_train_step", lambda *_: lowered)
  with pytest.raises(InputError, match="16.46G. Try a larger optim.accum"):
    memory["report"](bert_base.get_config("runlocal"))


PROCESS = """
import json, pathlib, sys
import jax, numpy as np
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
address, number, output = sys.argv[1:]
jax.distributed.initialize(address, 2, int(number))
from truenegs_jax.train import sharding
found = {}
for model in (1, 2, 4):
  mesh = sharding.make_mesh(sharding.get_spec("fsdp_tp", {"model": model}))
  index, count = sharding.process_share(mesh, 8)
  rows_B = np.arange(8).reshape(count, -1)[index]
  batch = sharding.to_device({"row": rows_B}, mesh)
  bits = sharding.place_table(np.arange(7, dtype="u4")[:, None], mesh, "rows")
  total = jax.jit(
    lambda row_B, bits: ((row_B - np.arange(8)) ** 2).sum() + bits.sum(),
    out_shardings=sharding.replicated(mesh),
  )
  found[model] = [index, count, int(total(batch["row"], bits))]
pathlib.Path(output).write_text(json.dumps(found))
"""


def test_two_processes_make_one_batch(tmp_path):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
  start = lambda number: subprocess.Popen(
    [sys.executable, "-c", PROCESS, address, number, str(tmp_path / number)],
    cwd=pathlib.Path(__file__).parents[2],
  )
  processes = [start("0"), start("1")]
  try:
    assert [process.wait(timeout=200) for process in processes] == [0, 0]
  finally:
    for process in processes:
      process.kill()
      process.wait()
  for index in range(2):
    found = json.loads((tmp_path / str(index)).read_text())
    assert found == {"1": [index, 2, 21], "2": [index, 2, 21], "4": [0, 1, 21]}
