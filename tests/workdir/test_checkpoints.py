"""Checkpoints are restored bit for bit on any mesh, or refused."""

import contextlib
import itertools

import jax
import numpy as np
import pytest
from orbax.checkpoint._src.serialization import ocdbt_utils

from support import saved_steps, tiny
from truenegs_jax.runtime.errors import CheckpointError, DiskError, InputError
from truenegs_jax.train import sharding, step
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir import files

pytestmark = saved_steps.IGNORE_UNFINISHED_READS
collect = saved_steps.collect


@pytest.fixture
def folder(tmp_path):
  return tmp_path / "checkpoints"


def draw(x, rng):
  """Draws an array of a shape and dtype, or a key."""
  if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
    return jax.random.key(rng.integers(99))
  return rng.normal(0, 99, x.shape).astype(x.dtype)


@pytest.mark.parametrize(("before", "after"), [(8, 1), (1, 8)])
def test_state_is_restored_bit_for_bit_on_another_mesh(folder, before, after):
  model, tx = tiny.make_model(layers=1), tiny.make_tx()
  like = jax.eval_shape(lambda: tiny.init_state(model, tx))
  rng = np.random.default_rng(0)
  state = jax.tree.map(lambda x: draw(x, rng), like)
  state = jax.device_put(
    state, sharding.replicated_sharding(saved_steps.make_mesh(before))
  )
  tree = vars(state) | {
    "split": saved_steps.small_tree(saved_steps.make_mesh(before))["params"]
  }
  checkpoints = checkpoints_lib.Checkpoints(folder)
  checkpoints.save(5, tree, saved_steps.RUN)
  checkpoints.wait()
  mesh = saved_steps.make_mesh(after)
  like = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding.replicated_sharding(mesh)
    ),
    vars(like),
  ) | {"split": saved_steps.small_tree(mesh)["params"]}
  restored = checkpoints.restore_state(5, like)
  saved_steps.assert_equal(tree, restored)
  assert restored["split"]["kernel"].sharding.mesh.size == after
  restored.pop("split")
  assert int(step.TrainState(**restored).step) == int(state.step)
  assert checkpoints.read_description(5) == saved_steps.RUN
  checkpoints.close()


def test_newest_and_listed_steps_are_kept(folder):
  saved_steps.save_steps(folder, range(1, 11), keep=2, keep_steps=[3, 6])
  checkpoints = checkpoints_lib.Checkpoints(folder, keep=2, keep_steps=[3, 6])
  assert checkpoints.steps() == [3, 6, 9, 10]
  assert checkpoints.latest_step() == 10
  checkpoints.close()


def test_saved_step_is_not_overwritten(folder):
  saved_steps.save_steps(folder, [1])
  checkpoints = checkpoints_lib.Checkpoints(folder)
  checkpoints.save(
    1, saved_steps.small_tree(saved_steps.make_mesh(1), 99), saved_steps.RUN
  )
  checkpoints.wait()
  restored = checkpoints.restore_state(
    1, saved_steps.small_tree(saved_steps.make_mesh(1))
  )
  saved_steps.assert_equal(
    restored, saved_steps.small_tree(saved_steps.make_mesh(1), 1)
  )
  checkpoints.close()


def test_empty_folder_has_no_latest_step(folder):
  checkpoints = checkpoints_lib.Checkpoints(folder)
  assert checkpoints.latest_step() is None
  with pytest.raises(CheckpointError, match="no checkpoint of step 4.*: none"):
    checkpoints.read_description(4)
  checkpoints.close()


@pytest.mark.parametrize("change", ["shape", "missing", "extra"])
def test_tree_of_another_model_is_refused(folder, change):
  saved_steps.save_steps(folder)
  like = saved_steps.small_tree(saved_steps.make_mesh(1))
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


async def drop_arrays(*args, **kwargs):
  """Merges no files, as Orbax does in a folder that it cannot list."""


@pytest.mark.parametrize("lost", ["arrays", "description"])
def test_a_step_that_cannot_be_read_is_no_step(folder, lost, monkeypatch):
  saved_steps.save_steps(folder, [1])
  checkpoints = checkpoints_lib.Checkpoints(folder, keep=1)
  tree = saved_steps.small_tree(saved_steps.make_mesh(1))
  with contextlib.closing(checkpoints):
    with monkeypatch.context() as patch:
      if lost == "arrays":
        name = "merge_ocdbt_per_process_files"
        patch.setattr(ocdbt_utils, name, drop_arrays)
      else:
        numbers = itertools.count()
        patch.setattr(checkpoints_lib, "_hash_json", lambda _: next(numbers))
      with pytest.raises(DiskError, match=r"\(steps: \[1\]\)") as error:
        checkpoints.save(2, tree, saved_steps.RUN, wait=True)
      assert "Free" not in str(error.value)
    checkpoints.save(3, tree, saved_steps.RUN, wait=True)
    assert checkpoints.steps() == [3]
  assert not {"1", "2"} & {path.name for path in folder.iterdir()}


def test_only_what_orbax_has_written_is_removed(folder):
  """Folders of a user may look like steps, finished or not."""
  names = ["2026_11", "30_1", "1", "2", "2026", "notes.orbax-checkpoint-tmp"]
  for name in names:
    (folder / name).mkdir(parents=True)
    (folder / name / "mine.txt").write_text("mine")
  assert not files.has_checkpoint(folder.parent)
  (folder / "4.orbax-checkpoint-tmp").mkdir()  # of a run that was killed
  saved_steps.save_steps(folder, range(3, 7), keep=2)
  assert {path.name for path in folder.iterdir()} == {*names, "5", "6"}
  assert all((folder / x / "mine.txt").read_text() == "mine" for x in names)
  assert files.list_steps(folder) == [5, 6]


def test_a_folder_of_a_user_is_not_saved_over(folder):
  saved_steps.save_steps(folder, [1])
  (folder / "2").mkdir()
  checkpoints = checkpoints_lib.Checkpoints(folder)
  tree = saved_steps.small_tree(saved_steps.make_mesh(1))
  with contextlib.closing(checkpoints):
    with pytest.raises(DiskError, match="checkpoints/2 already exists"):
      checkpoints.save(2, tree, saved_steps.RUN)
    checkpoints.save(3, tree, saved_steps.RUN, wait=True)
    assert checkpoints.steps() == [1, 3]
  assert not list((folder / "2").iterdir())


def test_a_clock_that_jumps_is_no_full_disk(folder, monkeypatch):
  def jump():
    raise TimeoutError("ChainedFuture completed 1/4 futures")

  checkpoints = checkpoints_lib.Checkpoints(folder)
  with contextlib.closing(checkpoints), monkeypatch.context() as patch:
    patch.setattr(checkpoints._writer, "wait_until_finished", jump)
    with pytest.raises(DiskError, match="clock was changed") as error:
      checkpoints.wait()
  assert "Free" not in str(error.value)


@pytest.mark.parametrize("name", ["x[1]", "*", "a?", "a\\b", "gs:"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_path_that_orbax_misreads_is_refused(tmp_path, name, linked):
  folder = target = tmp_path / "disk" / name
  if linked:
    target.mkdir(parents=True)
    folder = tmp_path / "run"
    folder.symlink_to(target)
  before = sorted(tmp_path.rglob("*"))
  with pytest.raises(InputError, match="--workdir=FOLDER"):
    checkpoints_lib.Checkpoints(folder / "checkpoints")
  assert sorted(tmp_path.rglob("*")) == before


def test_other_odd_paths_keep_their_checkpoints(tmp_path):
  folder = tmp_path / "[] {a,b} %41 # $HOME ~ a:b ä\n'\"[" / "checkpoints"
  saved_steps.save_steps(folder)
  checkpoints = checkpoints_lib.Checkpoints(folder)
  with contextlib.closing(checkpoints):
    expected = saved_steps.small_tree(saved_steps.make_mesh(1), 2)
    saved_steps.assert_equal(checkpoints.restore_state(2, expected), expected)
