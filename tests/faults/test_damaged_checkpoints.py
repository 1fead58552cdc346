"""A damaged step is never restored; the newest good step is used instead."""

import contextlib
import errno
import json
import os
import random
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from support import saved_steps
from support.faults import tries
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.workdir import checkpoints as checkpoints_lib

pytestmark = saved_steps.IGNORE_UNFINISHED_READS
collect = saved_steps.collect


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_moved_values_change_the_checksum(dtype):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(128, 128)).astype("f4")
  pages = rng.permutation(x.reshape(16, 1_024)).reshape(x.shape)
  swapped = x.copy()
  swapped.flat[[x.argmax(), x.argmin()]] = x.min(), x.max()
  moved = (x, x.T, pages, swapped, np.roll(x, 9))
  trees = [{"x": jax.numpy.asarray(values, dtype)} for values in moved]
  sums = [checkpoints_lib.compute_checksums(tree)["['x']"] for tree in trees]
  assert len(set(sums)) == len(sums)


def flip_bit(path, rng):
  data = bytearray(path.read_bytes())
  data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
  path.write_bytes(bytes(data))


def remove(path, rng):
  path.unlink()


def empty(path, rng):
  path.write_bytes(b"")


DAMAGES = (flip_bit, saved_steps.truncate, remove, empty)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """Returns a folder with the steps 1 and 2."""
  return saved_steps.save_steps(tmp_path_factory.mktemp("saved") / "steps")


@pytest.fixture
def folder(saved, tmp_path):
  return shutil.copytree(saved, tmp_path / "checkpoints")


def list_files(folder, step=2):
  files = (folder / str(step)).rglob("*")
  return sorted(x for x in files if x.is_file() and x.stat().st_size)


def read_newest(folder, **options):
  """Returns the newest step, its arrays and the reported lines."""
  lines = []
  like = saved_steps.small_tree(saved_steps.make_mesh(1))
  checkpoints = checkpoints_lib.Checkpoints(folder, **options)

  def read(step):
    assert checkpoints.read_description(step) == saved_steps.RUN
    return checkpoints.restore_state(step, like)

  with contextlib.closing(checkpoints):
    step, tree = checkpoints.read_newest(read, lines.append)
  return step, tree, lines


def check_newest_is_exact_or_the_one_before(folder):
  """Reads as another process, which renames nothing, and as the run."""
  names = sorted(path.name for path in folder.iterdir())
  step, _, lines = read_newest(folder, read_only=True)
  assert len(lines) == (step == 1)
  assert sorted(path.name for path in folder.iterdir()) == names
  assert read_newest(folder)[0] == step
  again, tree, lines = read_newest(folder)
  assert again == step and not lines
  expected = saved_steps.small_tree(saved_steps.make_mesh(1), step)
  saved_steps.assert_equal(tree, expected)
  assert (folder / "2.damaged").exists() == (step == 1)
  saved_steps.save_steps(folder, [2])  # the run saves it again
  assert read_newest(folder)[0] == 2


@pytest.mark.parametrize("number", tries(4, 360))
def test_a_step_with_a_damaged_file_is_never_restored(folder, number):
  rng = random.Random(number)
  files = list_files(folder)
  damage = DAMAGES[number % len(DAMAGES)]
  damage(files[number // len(DAMAGES) % len(files)], rng)
  check_newest_is_exact_or_the_one_before(folder)


@pytest.mark.parametrize("number", tries(2, 90))
def test_writes_lost_in_a_crash_are_noticed(folder, number):
  rng = random.Random(number)
  files = list_files(folder)
  for path in rng.sample(files, rng.randint(1, len(files))):
    rng.choice((empty, remove))(path, rng)
  check_newest_is_exact_or_the_one_before(folder)


FAILURES = {
  MemoryError(): 7,
  RuntimeError("RESOURCE_EXHAUSTED: Out of memory"): 7,
  OSError(errno.EIO, os.strerror(errno.EIO)): 5,
  ValueError("Error reading d/0 [OS error 5: Input/output error]"): 5,
}


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_a_step_that_another_try_may_read_is_not_set_aside(
  folder, failure, monkeypatch
):
  def fail(*args, **kwargs):
    raise failure

  with monkeypatch.context() as patch:
    patch.setattr(ocp.PyTreeCheckpointHandler, "restore", fail)
    with pytest.raises(Exception) as error:
      read_newest(folder)
  assert errors.explain(error.value).exit_code == FAILURES[failure]
  step, _, lines = read_newest(folder)
  assert (step, lines) == (2, [])


def test_without_a_good_step_nothing_is_renamed_and_nothing_starts(folder):
  for step in (1, 2):
    path = folder / str(step) / "state" / "_METADATA"
    saved_steps.truncate(path, random.Random(0))
  names = sorted(path.name for path in folder.iterdir())
  with pytest.raises(CheckpointError, match="no undamaged step") as error:
    read_newest(folder)
  assert "2' cannot be restored" in str(error.value)
  assert error.value.exit_code == 4
  assert sorted(path.name for path in folder.iterdir()) == names
  # The user moved the good step away: still no silent start from scratch.
  shutil.rmtree(folder / "1")
  (folder / "2").rename(folder / "2.damaged")
  with pytest.raises(CheckpointError, match="no undamaged step"):
    read_newest(folder)


def test_an_array_that_differs_from_its_checksum_is_damaged(folder):
  path = folder / "2" / "run" / "metadata"
  saved = json.loads(path.read_text())
  del saved["sha256"]
  saved["checksums"]["['params']['kernel']"] ^= 1
  saved["sha256"] = checkpoints_lib._hash_json(saved)
  path.write_text(json.dumps(saved))
  step, _, [line] = read_newest(folder)
  assert step == 1 and "do not match their checksums" in line
