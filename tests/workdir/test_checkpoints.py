"""What was saved comes back bit for bit, anywhere, or the run is refused."""

import gc

import jax
import numpy as np
import pytest

from support import tiny
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.train import sharding, step
from truenegs_jax.workdir import checkpoints as checkpoints_lib

# Orbax leaves the other reads of a failed restore to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
  "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(autouse=True)
def collect():
  """Garbage of this module's tests is no warning of the next one's."""
  yield
  gc.collect()


RUN = {"config": {"steps": 3, "optim": {"lr": 0.1}}, "names": ["a"]}


def mesh_of(num_devices):
  return sharding.make_mesh(
    sharding.get_mesh_spec("dp"), jax.devices()[:num_devices]
  )


def small_tree(mesh, seed=0):
  """Arrays of the kinds a state has, one of them split over the mesh."""
  rng = np.random.default_rng(seed)
  put = jax.device_put
  whole, split = (
    sharding.replicated_sharding(mesh),
    sharding.batch_sharding(mesh),
  )
  return {
    "step": put(np.int32(7), whole),
    "params": {"kernel": put(rng.normal(size=(8, 4_000)).astype("f4"), split)},
    "key": put(jax.random.key(seed), whole),
  }


def assert_same(a, b):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
      x, y = jax.random.key_data(x), jax.random.key_data(y)
    np.testing.assert_array_equal(x, y)


@pytest.fixture
def folder(tmp_path):
  return tmp_path / "checkpoints"


def saved(folder, steps=(1, 2), **options):
  """A closed folder with a tree saved at each step."""
  checkpoints = checkpoints_lib.Checkpoints(folder, **options)
  for number in steps:
    checkpoints.save(number, small_tree(mesh_of(1), number), RUN)
  checkpoints.wait()
  checkpoints.close()
  return folder


@pytest.mark.parametrize(("before", "after"), [(8, 1), (1, 8), (8, 8)])
def test_a_state_comes_back_bit_for_bit_on_another_mesh(folder, before, after):
  model, tx = tiny.make_model(), tiny.make_tx()
  state = tiny.init_state(model, tx)
  state = jax.device_put(state, sharding.replicated_sharding(mesh_of(before)))
  tree = vars(state) | {"split": small_tree(mesh_of(before))["params"]}
  checkpoints = checkpoints_lib.Checkpoints(folder)
  checkpoints.save(5, tree, RUN)
  checkpoints.wait()
  like = jax.eval_shape(lambda: tiny.init_state(model, tx))
  mesh = mesh_of(after)
  like = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding.replicated_sharding(mesh)
    ),
    vars(like),
  ) | {"split": small_tree(mesh)["params"]}
  got = checkpoints.state(5, like)
  assert_same(tree, got)
  assert got["split"]["kernel"].sharding.mesh.size == after
  got.pop("split")
  assert step.TrainState(**got).step == 0
  assert checkpoints.run(5) == RUN
  checkpoints.close()


def test_the_newest_steps_and_the_named_ones_are_kept(folder):
  saved(folder, range(1, 11), keep=2, keep_steps=[3, 6])
  checkpoints = checkpoints_lib.Checkpoints(folder, keep=2, keep_steps=[3, 6])
  assert checkpoints.steps() == [3, 6, 9, 10]
  assert checkpoints.latest() == 10
  checkpoints.close()


def test_a_step_is_saved_once(folder):
  saved(folder, [1])
  checkpoints = checkpoints_lib.Checkpoints(folder)
  checkpoints.save(1, small_tree(mesh_of(1), 99), RUN)
  checkpoints.wait()
  got = checkpoints.state(1, small_tree(mesh_of(1)))
  assert_same(got, small_tree(mesh_of(1), 1))
  checkpoints.close()


def test_an_empty_folder_has_no_latest_step(folder):
  checkpoints = checkpoints_lib.Checkpoints(folder)
  assert checkpoints.latest() is None
  with pytest.raises(CheckpointError, match="no step 4; saved steps: none"):
    checkpoints.run(4)
  checkpoints.close()


def data_file(folder):
  """Where the large array of step 2 lies."""
  files = [p for p in (folder / "2").rglob("*") if p.is_file()]
  return max(files, key=lambda p: p.stat().st_size)


def cut(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 0xFF
  path.write_bytes(bytes(data))


DAMAGES = {
  "data cut": lambda folder: cut(data_file(folder)),
  "data gone": lambda folder: data_file(folder).unlink(),
  "a byte of the data flipped": lambda folder: flip(data_file(folder)),
  "index gone": lambda folder: (folder / "2/state/manifest.ocdbt").unlink(),
  "description cut": lambda folder: cut(folder / "2/state/_METADATA"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_step_is_an_error_that_says_how_to_go_on(folder, damage):
  saved(folder)
  DAMAGES[damage](folder)
  checkpoints = checkpoints_lib.Checkpoints(folder)
  like = small_tree(mesh_of(1))
  with pytest.raises(CheckpointError, match="(?s)2 cannot be .*Move"):
    checkpoints.state(2, like)
  assert_same(checkpoints.state(1, like), small_tree(mesh_of(1), 1))
  checkpoints.close()


def test_a_damaged_description_is_an_error(folder):
  saved(folder)
  for path in (folder / "2" / "run").rglob("*"):
    if path.is_file():
      cut(path)
  checkpoints = checkpoints_lib.Checkpoints(folder)
  with pytest.raises(CheckpointError, match="2 cannot be restored"):
    checkpoints.run(2)
  checkpoints.close()


@pytest.mark.parametrize("change", ["shape", "missing", "extra"])
def test_a_tree_of_another_model_is_refused(folder, change):
  saved(folder)
  like = small_tree(mesh_of(1))
  if change == "shape":
    like["params"]["kernel"] = like["params"]["kernel"][:4]
  elif change == "missing":
    del like["params"]["kernel"]
  else:
    like["params"]["bias"] = like["params"]["kernel"]
  checkpoints = checkpoints_lib.Checkpoints(folder)
  with pytest.raises(CheckpointError):
    checkpoints.state(2, like)
  checkpoints.close()
