"""Runs in a bucket end as they do on a disk, whatever becomes of the link.

An emulator on the loopback stands for Google's servers. It refuses requests.
"""

import random
import re
import time

import pytest

from support import bucket_servers, runs

pytestmark = pytest.mark.faults
WORKDIR = "gs://bucket/runs/mine"
FOREIGN = {"runs/mine/notes.txt", "runs/mine/checkpoints/mine/weights.bin"}


@pytest.fixture
def link(tmp_path, shared_pretraining):
  """Yields a bucket and a function that starts both processes of a run."""
  env = runs.make_environment(tmp_path / "cache")
  env |= {"PYTHONUNBUFFERED": "1", "TRUENEGS_HEARTBEAT_SECS": "10"}
  env |= {"TRUENEGS_JOIN_SECS": "40"}
  with bucket_servers.serve("gs") as bucket:
    for name in FOREIGN:
      bucket.write(name, b"a user's")

    def start(workdir=WORKDIR):
      values = [*shared_pretraining.values, f"--workdir={workdir}"]
      own = env | bucket_servers.environment("gs", bucket.port)
      return runs.start_processes(tmp_path / "unused", values, own, 2)

    yield bucket, start


def find_newest(bucket):
  """Returns the newest step whose checkpoint is complete, or 0."""
  names = " ".join(bucket.list("runs/mine/checkpoints/"))
  return max([0, *map(int, re.findall(r"/(\d+)/commit_success", names))])


def wait_for_step(bucket, step, processes):
  """Waits until a step is saved, or a process has ended."""
  end = time.monotonic() + runs.TIMEOUT_SECS
  while find_newest(bucket) < step and all(x.poll() is None for x in processes):
    assert time.monotonic() < end
    time.sleep(0.1)


@pytest.mark.parametrize("seed", range(2))
def test_runs_killed_at_random_end_as_a_local_run(link, tmp_path, seed):
  bucket, start = link
  rng = random.Random(seed)
  expected = tmp_path / "golden"
  ended = runs.wait_for_all(start(workdir=expected))
  assert [code for code, _ in ended] == [0, 0], ended
  bucket.fail_rate = 0.03
  for _ in range(5):
    processes = start()
    newest = find_newest(bucket)
    wait_for_step(bucket, newest + rng.choice((0, 3)), processes)
    time.sleep(rng.uniform(0, 0.5))
    for process in rng.sample(processes, rng.randint(1, 2)):
      process.kill()
    ended = runs.wait_for_all(processes)
    assert find_newest(bucket) >= newest, ended
  ended = runs.wait_for_all(start())
  assert [code for code, _ in ended] == [0, 0], ended
  bucket_servers.assert_same_run(bucket, "runs/mine/", expected)
  assert FOREIGN <= {*bucket.list("runs/mine/")}
  bucket_servers.assert_only_own_files_were_deleted(bucket, "runs/mine/")
