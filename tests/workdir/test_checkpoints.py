"""Checkpoints are restored bit for bit on any mesh, or refused."""

import gc
import logging

import jax
import numpy as np
import pytest
from orbax.checkpoint import checkpoint_manager

from support import tiny
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.train import sharding, step
from truenegs_jax.workdir import checkpoints as checkpoints_lib

# Orbax leaves unfinished reads of a failed restore to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
  "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(autouse=True)
def collect():
  """Collects garbage, so that its warnings stay in this module."""
  yield
  gc.collect()


RUN = {"config": {"steps": 3, "optim": {"lr": 0.1}}, "names": ["a"]}


def make_mesh(num_devices):
  return sharding.make_mesh(
    sharding.get_mesh_spec("dp"), jax.devices()[:num_devices]
  )


def small_tree(mesh, seed=0):
  """Returns arrays of all kinds in a state; splits one over the mesh."""
  kernel = np.random.default_rng(seed).normal(size=(8, 4_000)).astype("f4")
  replicated = sharding.replicated_sharding(mesh)
  split = sharding.batch_sharding(mesh)
  return {
    "step": jax.device_put(np.int32(7), replicated),
    "params": {"kernel": jax.device_put(kernel, split)},
    "key": jax.device_put(jax.random.key(seed), replicated),
  }


def assert_equal(a, b):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
      x, y = jax.random.key_data(x), jax.random.key_data(y)
    np.testing.assert_array_equal(x, y)


@pytest.fixture
def folder(tmp_path):
  return tmp_path / "checkpoints"


def save_steps(folder, steps=(1, 2), **options):
  """Saves a tree at each step and closes the folder."""
  checkpoints = checkpoints_lib.Checkpoints(folder, **options)
  for at in steps:
    checkpoints.save(at, small_tree(make_mesh(1), at), RUN)
  checkpoints.wait()
  checkpoints.close()
  return folder


@pytest.mark.parametrize(("before", "after"), [(8, 1), (1, 8), (8, 8)])
def test_state_is_restored_bit_for_bit_on_another_mesh(folder, before, after):
  model, tx = tiny.make_model(), tiny.make_tx()
  state = tiny.init_state(model, tx)
  state = jax.device_put(state, sharding.replicated_sharding(make_mesh(before)))
  tree = vars(state) | {"split": small_tree(make_mesh(before))["params"]}
  checkpoints = checkpoints_lib.Checkpoints(folder)
  checkpoints.save(5, tree, RUN)
  checkpoints.wait()
  like = jax.eval_shape(lambda: tiny.init_state(model, tx))
  mesh = make_mesh(after)
  like = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding.replicated_sharding(mesh)
    ),
    vars(like),
  ) | {"split": small_tree(mesh)["params"]}
  restored = checkpoints.restore_state(5, like)
  assert_equal(tree, restored)
  assert restored["split"]["kernel"].sharding.mesh.size == after
  restored.pop("split")
  assert step.TrainState(**restored).step == 0
  assert checkpoints.read_description(5) == RUN
  checkpoints.close()


def test_newest_and_listed_steps_are_kept(folder):
  save_steps(folder, range(1, 11), keep=2, keep_steps=[3, 6])
  checkpoints = checkpoints_lib.Checkpoints(folder, keep=2, keep_steps=[3, 6])
  assert checkpoints.steps() == [3, 6, 9, 10]
  assert checkpoints.latest_step() == 10
  checkpoints.close()


def test_saved_step_is_not_overwritten(folder):
  save_steps(folder, [1])
  checkpoints = checkpoints_lib.Checkpoints(folder)
  checkpoints.save(1, small_tree(make_mesh(1), 99), RUN)
  checkpoints.wait()
  restored = checkpoints.restore_state(1, small_tree(make_mesh(1)))
  assert_equal(restored, small_tree(make_mesh(1), 1))
  checkpoints.close()


def test_empty_folder_has_no_latest_step(folder):
  checkpoints = checkpoints_lib.Checkpoints(folder)
  assert checkpoints.latest_step() is None
  with pytest.raises(CheckpointError, match="no checkpoint of step 4.*: none"):
    checkpoints.read_description(4)
  checkpoints.close()


def find_data_file(folder):
  """Returns the file of the large array of step 2."""
  files = [p for p in (folder / "2").rglob("*") if p.is_file()]
  return max(files, key=lambda p: p.stat().st_size)


def truncate(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_byte(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 0xFF
  path.write_bytes(bytes(data))


DAMAGES = {
  "data truncated": lambda folder: truncate(find_data_file(folder)),
  "data missing": lambda folder: find_data_file(folder).unlink(),
  "data byte flipped": lambda folder: flip_byte(find_data_file(folder)),
  "index missing": lambda folder: (folder / "2/state/manifest.ocdbt").unlink(),
  "metadata truncated": lambda folder: truncate(folder / "2/state/_METADATA"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_step_is_refused_with_a_fix(folder, damage):
  save_steps(folder)
  DAMAGES[damage](folder)
  checkpoints = checkpoints_lib.Checkpoints(folder)
  like = small_tree(make_mesh(1))
  with pytest.raises(CheckpointError, match="(?s)2' (is|cannot).*Move"):
    checkpoints.restore_state(2, like)
  assert_equal(checkpoints.restore_state(1, like), small_tree(make_mesh(1), 1))
  checkpoints.close()


def test_damaged_description_is_refused(folder):
  save_steps(folder)
  for path in (folder / "2" / "run").rglob("*"):
    if path.is_file():
      truncate(path)
  checkpoints = checkpoints_lib.Checkpoints(folder)
  with pytest.raises(CheckpointError, match="2' cannot be restored"):
    checkpoints.read_description(2)
  checkpoints.close()


@pytest.mark.parametrize("change", ["shape", "missing", "extra"])
def test_tree_of_another_model_is_refused(folder, change):
  save_steps(folder)
  like = small_tree(make_mesh(1))
  if change == "shape":
    like["params"]["kernel"] = like["params"]["kernel"][:4]
  elif change == "missing":
    del like["params"]["kernel"]
  else:
    like["params"]["bias"] = like["params"]["kernel"]
  checkpoints = checkpoints_lib.Checkpoints(folder)
  with pytest.raises(CheckpointError):
    checkpoints.restore_state(2, like)
  checkpoints.close()


def test_notices_of_orbax_are_hidden_and_warnings_are_not(
  tmp_path, monkeypatch, caplog
):
  threshold = "_WAIT_FOR_PREV_SAVE_WARNING_THRESHOLD_SECS"
  monkeypatch.setattr(checkpoint_manager, threshold, -1.0)
  checkpoints = checkpoints_lib.Checkpoints(tmp_path / "checkpoints")
  for step_number in (1, 2):
    checkpoints.save(step_number, {"x": np.zeros(2)}, RUN)
  checkpoints.close()
  logging.getLogger("absl").warning("The disk is slow.")
  assert [record.getMessage() for record in caplog.records] == [
    "The disk is slow."
  ]
