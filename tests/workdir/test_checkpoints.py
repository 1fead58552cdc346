"""Checkpoints are restored bit for bit on any mesh, or refused."""

import contextlib
import itertools

import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint._src.serialization import ocdbt_utils

from support import saved_steps
from truenegs_jax.runtime.errors import CheckpointError, DiskError
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir import files

pytestmark = saved_steps.IGNORE_UNFINISHED_READS
collect = saved_steps.collect
RUN = saved_steps.RUN


@pytest.fixture
def folder(tmp_path):
  return tmp_path / "checkpoints"


def opened(folder, **options):
  return contextlib.closing(checkpoints_lib.Checkpoints(folder, **options))


def make_tree(seed=0, devices=1):
  return saved_steps.small_tree(saved_steps.make_mesh(devices), seed)


@pytest.mark.parametrize(("before", "after"), [(8, 1), (1, 8)])
def test_state_is_restored_bit_for_bit_on_another_mesh(folder, before, after):
  tree = make_tree(5, before)
  with opened(folder) as checkpoints:
    checkpoints.save(5, tree, RUN)
    checkpoints.wait()
    restored = checkpoints.restore_state(5, make_tree(0, after))
    assert checkpoints.read_description(5) == RUN
  saved_steps.assert_equal(tree, restored)
  assert restored["params"]["kernel"].sharding.mesh.size == after


def test_newest_and_listed_steps_are_kept(folder):
  saved_steps.save_steps(folder, range(1, 11), keep=2, keep_steps=[3, 6])
  with opened(folder, read_only=True) as checkpoints:
    assert checkpoints.steps() == [3, 6, 9, 10]
    assert checkpoints.latest_step() == 10


def test_saved_step_is_not_overwritten(folder):
  saved_steps.save_steps(folder, [1])
  with opened(folder) as checkpoints:
    checkpoints.save(1, make_tree(99), RUN, wait=True)
    saved_steps.assert_equal(
      checkpoints.restore_state(1, make_tree()), make_tree(1)
    )


def test_empty_folder_has_no_latest_step(folder):
  with opened(folder) as checkpoints:
    assert checkpoints.latest_step() is None
    with pytest.raises(CheckpointError, match="of step 4.*: none"):
      checkpoints.read_description(4)


@pytest.mark.parametrize(
  ("change", "problem"),
  [
    (lambda x: {"kernel": x[:4]}, "cannot be restored"),
    (lambda x: {"kernel": x.astype("bfloat16")}, "match their checksums"),
    (lambda x: {"kernel": x, "bias": x}, "is missing"),
  ],
)
def test_tree_of_another_model_is_refused(folder, change, problem):
  saved_steps.save_steps(folder)
  like = make_tree()
  like["params"] = change(like["params"]["kernel"])
  with opened(folder) as checkpoints:
    with pytest.raises(CheckpointError, match=problem):
      checkpoints.restore_state(2, like)
    del like["params"]
    with pytest.raises(CheckpointError, match="match their checksums"):
      checkpoints.restore_state(2, like)


def test_the_same_bits_of_another_type_are_refused(folder, monkeypatch):
  """They have the same checksum; metadata of Orbax decide what they are."""
  saved_steps.save_steps(folder)
  restore = ocp.PyTreeCheckpointHandler.restore

  def read(*args, **options):
    tree = restore(*args, **options)
    return tree | {"step": tree["step"].view("float32")}

  monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "restore", read)
  with opened(folder) as checkpoints:
    with pytest.raises(CheckpointError, match="of another type"):
      checkpoints.restore_state(2, make_tree())


async def drop_arrays(*args, **kwargs):
  """Merges no files, as Orbax does in a folder that it cannot list."""


@pytest.mark.parametrize("lost", ["arrays", "description"])
def test_a_step_that_cannot_be_read_is_no_step(folder, lost, monkeypatch):
  saved_steps.save_steps(folder, [1])
  with opened(folder, keep=1) as checkpoints:
    with monkeypatch.context() as patch:
      if lost == "arrays":
        name = "merge_ocdbt_per_process_files"
        patch.setattr(ocdbt_utils, name, drop_arrays)
      else:
        numbers = itertools.count()
        patch.setattr(checkpoints_lib, "_hash_json", lambda _: next(numbers))
      with pytest.raises(DiskError, match=r"\(steps: \[1\]\)") as error:
        checkpoints.save(2, make_tree(2), RUN, wait=True)
      assert "Free" not in str(error.value)
    checkpoints.save(3, make_tree(3), RUN, wait=True)
    assert checkpoints.steps() == [3]
  assert not {"1", "2"} & {path.name for path in folder.iterdir()}


def test_the_last_save_is_tried_after_one_that_failed(folder, monkeypatch):
  read = checkpoints_lib.read_description
  problems = [ValueError("lost")]

  def fail_once(path):
    if problems:
      raise problems.pop()
    return read(path)

  monkeypatch.setattr(checkpoints_lib, "read_description", fail_once)
  with opened(folder) as checkpoints:
    checkpoints.save(1, make_tree(1), RUN)
    checkpoints.save(2, make_tree(2), RUN, wait=True)
    assert checkpoints.steps() == [2]


def test_only_what_orbax_has_written_is_touched(folder):
  """Folders of a user may look like steps, finished or not."""
  names = ["2026_11", "30_1", "1", "2", "2026", "notes.orbax-checkpoint-tmp"]
  for name in names:
    (folder / name).mkdir(parents=True)
    (folder / name / "mine.txt").write_text("mine")
  assert not files.has_checkpoint(folder.parent)
  unfinished = folder / "4.orbax-checkpoint-tmp"  # of a run, killed or not
  unfinished.mkdir()
  with opened(folder, read_only=True) as checkpoints:
    assert checkpoints.steps() == [] and unfinished.exists()
  saved_steps.save_steps(folder, range(3, 7), keep=2)
  with opened(folder) as checkpoints:
    with pytest.raises(DiskError, match="checkpoints/2026 already exists"):
      checkpoints.save(2026, make_tree(), RUN, wait=True)
    assert checkpoints.steps() == files.list_steps(folder) == [5, 6]
  assert {path.name for path in folder.iterdir()} == {*names, "5", "6"}
  assert all((folder / x / "mine.txt").read_text() == "mine" for x in names)
