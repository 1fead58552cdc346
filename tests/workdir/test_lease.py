"""One run at a time uses a workdir in a bucket, and a dead one is replaced."""

import json
import threading
import time

import pytest

from support import bucket_servers
from truenegs_jax.runtime import paths
from truenegs_jax.runtime.errors import DiskError, InputError
from truenegs_jax.workdir import files, lock

TAKEOVER_SECS = 1
ELSEWHERE = {"token": "x", "host": "far", "pid": 7}


@pytest.fixture
def bucket(server, monkeypatch):
  """Yields an empty bucket, the proxy before it, and a workdir in it."""
  monkeypatch.setenv(lock.TAKEOVER_VARIABLE, f"{TAKEOVER_SECS}")
  with bucket_servers.connect_empty(monkeypatch, server) as proxy:
    workdir = paths.open_path("--workdir", f"{server.url}/runs/x")
    yield server, proxy, workdir


def read(server) -> dict:
  return json.loads(server.read("runs/x/lock"))


def acquire(workdir) -> lock.BucketLease:
  lease = lock.BucketLease()
  lease.acquire(workdir / files.LOCK)
  return lease


def leave(server, **more) -> None:
  """Leaves the lock of an owner that is gone."""
  value = ELSEWHERE | {"renewed": time.time(), "held": True}
  value |= {"takeover_secs": TAKEOVER_SECS} | more
  server.write("runs/x/lock", json.dumps(value).encode())


def test_second_run_is_refused_until_first_ends(bucket):
  server, _, workdir = bucket
  with lock.lock(workdir) as lease:
    assert lease.token == read(server)["token"]
    assert files.read_state(workdir) == files.RUNNING
    for _ in range(2):
      with pytest.raises(InputError, match="Another run is using"):
        with lock.lock(workdir):
          pass
    lease.check()
  assert files.read_state(workdir) == files.STOPPED
  with lock.lock(workdir):
    pass
  assert server.list() == ["runs/x/lock"]


def test_an_error_of_a_run_is_not_hidden(bucket):
  server, proxy, workdir = bucket
  with pytest.raises(KeyError, match="body"), lock.lock(workdir):
    leave(server, token="y")
    raise KeyError("body")
  assert read(server)["token"] == "y"


def test_run_that_another_has_replaced_is_no_success(bucket):
  server, _, workdir = bucket
  with pytest.raises(DiskError, match="Another run uses it now"):
    with lock.lock(workdir):
      leave(server, token="y")
  assert read(server)["token"] == "y"


def test_dead_run_is_replaced_after_the_time_and_not_before(bucket):
  server, _, workdir = bucket
  leave(server)
  began = time.monotonic()
  lease = acquire(workdir)
  assert time.monotonic() - began > TAKEOVER_SECS
  assert read(server)["token"] == lease.token
  lease.close()


def test_a_run_that_came_and_went_meanwhile_is_not_waited_for(bucket):
  server, _, workdir = bucket
  leave(server)
  end = {"token": "y", "held": False}
  threading.Timer(TAKEOVER_SECS / 2, leave, [server], end).start()
  began = time.monotonic()
  lease = acquire(workdir)
  assert time.monotonic() - began < TAKEOVER_SECS
  lease.close()


def test_a_renewal_that_is_slow_does_not_undo_the_release(bucket, monkeypatch):
  server, _, workdir = bucket
  lease = acquire(workdir)
  renew, began = lease._renew, threading.Event()

  def renew_slowly():
    began.set()
    time.sleep(0.3)
    renew()

  monkeypatch.setattr(lease, "_renew", renew_slowly)
  assert began.wait(20)
  lease.close()
  time.sleep(0.5)
  assert not read(server)["held"]


def test_one_of_two_newcomers_wins(bucket):
  server, _, workdir = bucket
  leave(server)
  results: list = []

  def start() -> None:
    try:
      results.append(acquire(workdir))
    except InputError as error:
      results.append(error)

  threads = [threading.Thread(target=start) for _ in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  [winner] = [x for x in results if isinstance(x, lock.BucketLease)]
  assert winner.token == read(server)["token"]
  assert all("Another run" in str(x) for x in results if x is not winner)
  winner.close()


def test_run_that_was_only_paused_finds_its_successor(bucket):
  server, _, workdir = bucket
  first = acquire(workdir)
  first._ended.set()  # no renewals
  second = acquire(workdir)
  assert first.token != second.token
  with pytest.raises(DiskError, match="Another run uses it now"):
    first.check()
  assert isinstance(first.error, DiskError)
  first.close()
  second.check()
  assert read(server)["token"] == second.token
  second.close()


def test_run_that_lost_its_workdir_is_told_by_its_thread(bucket):
  server, _, workdir = bucket
  first = acquire(workdir)
  leave(server, token="y")
  deadline = time.monotonic() + 20
  while not first.error and time.monotonic() < deadline:
    time.sleep(0.05)
  assert "process 7 of far" in str(first.error)
  assert read(server)["token"] == "y"


@pytest.mark.slow
def test_lost_answers_and_connections_do_not_end_a_lease(bucket):
  server, proxy, workdir = bucket
  lease = acquire(workdir)
  proxy.lose_answers = 1
  lease.check()
  proxy.down = True
  time.sleep(2 * TAKEOVER_SECS)
  proxy.down, proxy.expired = False, True
  threading.Timer(1, lambda: setattr(proxy, "expired", False)).start()
  lease.check()
  assert lease.error is None
  renewed = read(server)["renewed"]
  deadline = time.monotonic() + 20
  while read(server)["renewed"] == renewed and time.monotonic() < deadline:
    time.sleep(0.05)
  assert read(server)["renewed"] > renewed
  lease.close()
  assert not read(server)["held"]


def test_bucket_without_write_access_is_refused(bucket):
  server, proxy, workdir = bucket
  proxy.read_only = True
  with pytest.raises(InputError, match="right to list"):
    acquire(workdir)
  assert server.list() == []


def test_missing_bucket_is_not_called_another_run(bucket):
  server, _, _ = bucket
  workdir = paths.open_path("--workdir", f"{server.url}-typo/runs/x")
  with pytest.raises(InputError, match="no such bucket|NOT_FOUND"):
    acquire(workdir)


def test_right_that_is_lost_ends_no_run(bucket):
  _, proxy, workdir = bucket
  lease = acquire(workdir)
  proxy.read_only = True
  time.sleep(TAKEOVER_SECS)  # without a renewal
  lease.check()
  assert lease.error is None
  proxy.read_only = False
  lease.check()
  lease.close()
