"""Steps in a bucket are saved by the owner of the lease, as on a disk."""

import contextlib
import random

import jax
import pytest

from support import bucket_servers, saved_steps
from truenegs_jax.runtime import paths
from truenegs_jax.runtime.errors import (
  CheckpointError,
  DiskError,
  InputError,
)
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir import files, saved_step
from truenegs_jax.workdir.lock import Lease

pytestmark = saved_steps.IGNORE_UNFINISHED_READS
collect = saved_steps.collect
RUN = saved_steps.RUN
FOLDER = "runs/x/checkpoints"


@pytest.fixture(scope="module")
def server(start_server):
  return start_server("gs")


@pytest.fixture
def bucket(server, monkeypatch):
  """Yields an empty bucket, the proxy before it, and a workdir in it."""
  with bucket_servers.connect_empty(monkeypatch, server) as proxy:
    yield server, proxy, paths.open_path("--workdir", "gs://bucket/runs/x")


@contextlib.contextmanager
def open_steps(workdir, owner=None, **options):
  """Opens the checkpoints of a workdir as a run with a number does."""
  options |= {"read_only": True} if owner is None else {}
  checkpoints = checkpoints_lib.Checkpoints(workdir / "checkpoints", **options)
  with contextlib.closing(checkpoints):
    yield checkpoints


def make_tree(seed=0, devices=1):
  return saved_steps.small_tree(saved_steps.make_mesh(devices), seed)


def save(workdir, owner, steps, **options):
  with open_steps(workdir, owner, **options) as checkpoints:
    for step in steps:
      checkpoints.save(step, make_tree(step), RUN, wait=True)
    return checkpoints.steps()


def restore_newest(checkpoints, lines=None):
  """Returns number and arrays of the newest undamaged step."""
  lines, like = [] if lines is None else lines, make_tree()
  return checkpoints.read_newest(
    lambda step: checkpoints.restore_state(step, like), lines.append
  )


def read_all(server, prefix="") -> dict[str, bytes]:
  return {name: server.read(name) for name in server.list(prefix)}


def test_state_is_restored_bit_for_bit_on_another_mesh(bucket):
  *_, workdir = bucket
  tree = make_tree(devices=8)
  with open_steps(workdir, 3) as checkpoints:
    checkpoints.save(5, tree, RUN)
    checkpoints.wait()
  assert files.has_checkpoint(workdir)
  with open_steps(workdir) as checkpoints:
    restored = checkpoints.restore_state(5, make_tree(1, devices=2))
    saved_steps.assert_equal(tree, restored)
    assert restored["params"]["kernel"].sharding.mesh.size == 2
    params = checkpoints.restore_params(5, make_tree(1)["params"])
    saved_steps.assert_equal(tree["params"], params)
    assert checkpoints.read_description(5) == RUN


def test_only_older_and_unfinished_steps_are_removed(bucket):
  server, _, workdir = bucket
  others = ["notes/a.txt", "1_2.txt", "x_3/a", "30_1/a", "8", "4.damaged/a"]
  others += ["1/mine.txt", "2026/mine.txt"]
  others = [f"{FOLDER}/{name}" for name in others]
  others += ["runs/x/checkpoints2/9/a", "runs/xy/checkpoints/9/a"]
  for name in [*others, f"{FOLDER}/9/run/metadata", f"{FOLDER}/10/state/a"]:
    server.write(name, b"x")
  options = {"keep": 2, "keep_steps": [3]}
  assert save(workdir, 3, range(2, 6), **options) == [3, 4, 5]
  assert save(workdir, 4, [6, 7], **options) == [3, 6, 7]
  left = server.list()
  assert set(others) < set(left)
  steps = {x.split("/")[3] for x in left if x.startswith(f"{FOLDER}/")}
  assert steps == {"3", "6", "7"} | {x.split("/")[3] for x in others[:8]}
  with open_steps(workdir) as checkpoints:
    assert checkpoints.steps() == [3, 6, 7]


def test_reading_needs_no_right_to_write(bucket):
  _, proxy, workdir = bucket
  save(workdir, 1, [1, 2])
  proxy.read_only = True
  with open_steps(workdir) as checkpoints:
    step, tree = restore_newest(checkpoints)
  assert step == 2
  saved_steps.assert_equal(tree, make_tree(2))


class LostLease(Lease):
  """A lease that another run takes over after some checks."""

  def __init__(self, checks):
    super().__init__()
    self.checks = checks

  def check(self):
    self.checks -= 1
    if self.checks < 0:
      self.error = DiskError("Another run uses it now.")
      raise self.error


@pytest.mark.parametrize("checks", [2, 3])
def test_owner_that_was_paused_finishes_no_step(bucket, checks):
  """It lost the lease before a save, or while it was written."""
  server, _, workdir = bucket
  folder = workdir / "checkpoints"
  lease = LostLease(checks)
  old = checkpoints_lib.Checkpoints(folder, lease=lease)
  old.save(1, make_tree(1), RUN, wait=True)
  assert save(workdir, 2, [2]) == [1, 2]
  before = read_all(server)
  for _ in range(2):
    with pytest.raises(DiskError, match="Another run uses it now"):
      old.save(3, make_tree(3), RUN)
      old.wait()
  old.close()
  after = read_all(server)
  assert {name: after[name] for name in before} == before
  with open_steps(workdir) as checkpoints:
    assert checkpoints.steps() == [1, 2]
    assert restore_newest(checkpoints)[0] == 2


def test_a_step_is_finished_only_when_all_was_written(bucket):
  server, _, workdir = bucket
  save(workdir, 1, [1])
  with open_steps(workdir, 2) as checkpoints:
    check = checkpoints._check_written

    def finish():
      server.delete(f"{FOLDER}/2/state/manifest.ocdbt")
      check()

    checkpoints._writer._post_finalization_callback = finish
    with pytest.raises(DiskError, match="could not be written"):
      checkpoints.save(2, make_tree(2), RUN, wait=True)
    assert checkpoints.steps() == [1]
    assert f"{FOLDER}/2/{files.COMMITTED}" not in server.list()
    checkpoints._writer._post_finalization_callback = check
    checkpoints.save(2, make_tree(2), RUN, wait=True)  # the same once more
    assert checkpoints.steps() == [1, 2]
    saved_steps.assert_equal(restore_newest(checkpoints)[1], make_tree(2))


def test_unfinished_steps_are_no_steps(bucket):
  server, _, workdir = bucket
  save(workdir, 1, [1, 2])
  server.delete(f"{FOLDER}/2/{files.COMMITTED}")
  with open_steps(workdir) as checkpoints:
    assert checkpoints.steps() == [1]
  server.write(f"{FOLDER}/2/state/d/old", b"of the save that was killed")
  with open_steps(workdir, 2):
    assert not server.list(f"{FOLDER}/2/")
  assert save(workdir, 2, [2]) == [1, 2]


def test_damaged_step_is_set_aside(bucket):
  server, _, workdir = bucket
  save(workdir, 1, [1, 2])
  prefix = f"{FOLDER}/2/state/ocdbt.process_0/d/"
  largest = max(server.list(prefix), key=lambda x: len(server.read(x)))
  data = bytearray(server.read(largest))
  data[random.Random(0).randrange(len(data) // 2)] ^= 1
  server.write(largest, bytes(data))
  lines: list[str] = []
  with open_steps(workdir, 2) as checkpoints:
    assert restore_newest(checkpoints, lines)[0] == 1
    checkpoints.save(2, make_tree(2), RUN, wait=True)
    assert checkpoints.steps() == [1, 2]
  assert "It is now '2.damaged'" in lines[0]
  assert server.list(f"{FOLDER}/2.damaged/")
  with open_steps(workdir) as checkpoints:
    assert restore_newest(checkpoints)[0] == 2


def test_lost_access_is_no_damage_and_the_next_save_succeeds(bucket):
  """TensorStore does not repeat requests that are answered with 401."""
  _, proxy, workdir = bucket
  save(workdir, 1, [1, 2])
  proxy.applies = lambda request: request.client == "tensorstore"
  proxy.fail_status = 401
  with open_steps(workdir, 2) as checkpoints:
    proxy.fail_rate = 1.0
    with pytest.raises(DiskError, match="may be intact"):
      restore_newest(checkpoints)
    with pytest.raises(DiskError, match=r"Earlier .* intact \(steps: \[1, 2\]"):
      checkpoints.save(3, make_tree(3), RUN, wait=True)
    proxy.fail_rate = 0.0
    checkpoints.save(3, make_tree(3), RUN, wait=True)
    assert checkpoints.steps() == [2, 3]
    with pytest.raises(DiskError, match="no disk"):
      with saved_step.reading(workdir / "checkpoints" / "3"):
        raise DiskError("no disk")


def test_missing_object_is_damage(bucket):
  server, _, workdir = bucket
  save(workdir, 1, [1, 2])
  with open_steps(workdir) as checkpoints:
    server.delete(f"{FOLDER}/2/state/manifest.ocdbt")
    lines: list[str] = []
    assert restore_newest(checkpoints, lines)[0] == 1
    assert "2' cannot be restored" in lines[0]
    server.delete(f"{FOLDER}/1/{files.COMMITTED}")
    server.delete(f"{FOLDER}/1/run/metadata")
    with pytest.raises(CheckpointError, match="was deleted by its run"):
      checkpoints.read_description(1)


def test_local_copy_of_a_workdir_is_read_and_resumed(bucket, tmp_path):
  server, _, workdir = bucket
  save(workdir, 12, [1, 2])
  server.delete(f"{FOLDER}/2/{files.COMMITTED}")  # it was being written
  server.delete(f"{FOLDER}/2/run/metadata")
  for name, data in read_all(server).items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(data)
  copy = tmp_path / "runs" / "x"
  assert files.has_checkpoint(copy)
  with open_steps(copy, 0, keep=2) as checkpoints:
    lines: list[str] = []
    step, tree = restore_newest(checkpoints, lines)
    assert step == 1 and "It is now '2.damaged'" in lines[0]
    saved_steps.assert_equal(tree, make_tree(1))
    for step in (2, 3, 4):
      checkpoints.save(step, make_tree(step), RUN, wait=True)
    assert checkpoints.steps() == [3, 4]
  with open_steps(copy) as checkpoints:
    assert restore_newest(checkpoints)[0] == 4


def test_s3_is_refused_with_the_reason():
  pytest.importorskip("s3fs")
  folder = paths.open_path("--workdir", "s3://bucket/runs/x")
  with pytest.raises(InputError, match="gs:// only"):
    files.check_checkpoint_folder(folder / files.CHECKPOINTS)
  folder = paths.open_path("--workdir", "gs://bucket/runs/x")
  files.check_checkpoint_folder(folder / files.CHECKPOINTS)


def test_requests_are_bounded(bucket):
  """Of objects that cost most: listings and writes, class A."""
  _, proxy, workdir = bucket
  save(workdir, 1, [1])
  proxy.log.clear()
  with open_steps(workdir, 2) as checkpoints:
    restore_newest(checkpoints)
    assert proxy.count_classes()[0] <= 12
    proxy.log.clear()
    checkpoints.save(2, make_tree(2), RUN, wait=True)
    assert proxy.count_classes()[0] <= 50
    assert not proxy.count("bucket")  # needs a right of its own
    proxy.log.clear()
    jax.block_until_ready(make_tree(3))
    assert checkpoints.steps() == [1, 2]
    assert not proxy.log
