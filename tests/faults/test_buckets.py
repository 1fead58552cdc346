"""Runs in a bucket end as they do on a disk, whatever becomes of the link.

An emulator on the loopback stands for Google's servers, and a proxy before it
for the link: it refuses, delays, cuts and counts requests.
"""

import functools
import random
import re
import signal
import time

import pytest

from support import bucket_servers, faults, runs
from support.faulty_proxy import FaultyProxy
from truenegs_jax.runtime import errors

STEPS = 40
TAKEOVER_SECS = 6
WORKDIR = "gs://bucket/runs/mine"
FOREIGN = {"runs/mine/notes.txt", "runs/mine/checkpoints/mine/weights.bin"}


@pytest.fixture(scope="module")
def base(shared_pretraining, tmp_path_factory):
  """Returns (folder, flags, environment) of runs of one small network."""
  root = tmp_path_factory.mktemp("buckets")
  flags = [*shared_pretraining.values, f"--config.steps={STEPS}"]
  flags += [f"--config.eval.every_steps={STEPS}"]
  flags += ["--config.checkpoint.every_steps=5"]
  flags += ["--config.checkpoint.keep_percent=()"]
  env = runs.make_environment(root / "cache")
  env["PYTHONUNBUFFERED"] = "1"
  env["TRUENEGS_TAKEOVER_SECS"] = str(TAKEOVER_SECS)
  env["TRUENEGS_HEARTBEAT_SECS"] = "10"
  return root, flags, env


@pytest.fixture(scope="module")
def golden(base):
  """Returns a function of the number of processes of a local run.

  It returns the files of the export of an uninterrupted one.
  """
  root, flags, env = base

  @functools.cache
  def run(count):
    workdir = root / f"golden{count}"
    ended = runs.run_processes(workdir, flags, env, count)
    assert [code for code, _ in ended] == [0] * count, ended
    return read_export(workdir)

  return run


def read_export(workdir):
  """Returns the content of each file of a local run's export."""
  folder = workdir / "export"
  return {
    path.relative_to(folder).as_posix(): drop_port(path.read_bytes())
    for path in folder.rglob("*")
    if path.is_file()
  }


def drop_port(content):
  """Removes the address of the first process from the command on a card."""
  return re.sub(rb"--coordinator=\S+", b"", content)


@pytest.fixture
def link(base):
  """Yields a bucket, the proxy before it and the environment of runs there."""
  _, _, env = base
  with (
    bucket_servers.serve_bucket("gs") as bucket,
    FaultyProxy(bucket.port) as proxy,
  ):
    for name in FOREIGN:
      bucket.write(name, b"a user's")
    yield bucket, proxy, env | bucket_servers.environment("gs", proxy.port)


def start(base, env, count, *more):
  """Starts the processes of a run in the bucket."""
  root, flags, _ = base
  flags = [f"--workdir={WORKDIR}", *flags, *more]
  return runs.start_processes(root / "unused", flags, env, count)


def finish(base, env, count, *more):
  """Runs to the end; returns the outputs of all processes."""
  ended = runs.wait_for_all(start(base, env, count, *more))
  assert [code for code, _ in ended] == [0] * count, ended
  return [output for _, output in ended]


def find_steps(bucket):
  """Returns the steps whose checkpoints are complete."""
  names = bucket.list("runs/mine/checkpoints/")
  pattern = r"runs/mine/checkpoints/(\d+)/commit_success.txt"
  return sorted(int(m[1]) for x in names if (m := re.fullmatch(pattern, x)))


def wait_for_step(bucket, step, processes):
  """Waits until a step is saved, or a process has ended."""
  end = time.monotonic() + runs.TIMEOUT_SECS
  while find_steps(bucket)[-1:] < [step] and not any(
    x.poll() is not None for x in processes
  ):
    assert time.monotonic() < end
    time.sleep(0.2)


def assert_same_export(bucket, expected):
  prefix = "runs/mine/export/"
  names = [x for x in bucket.list(prefix) if not x.endswith("/files.json")]
  exported = {x.removeprefix(prefix): drop_port(bucket.read(x)) for x in names}
  assert exported.keys() == expected.keys()
  for name, data in exported.items():
    assert data == expected[name], name


def assert_only_own_steps_were_deleted(bucket, proxy):
  assert FOREIGN <= {*bucket.list("runs/mine/")}
  deleted = [x.target for x in proxy.log if x.kind == "delete" and x.target]
  own = re.compile(r"runs%2Fmine%2Fcheckpoints%2F\d+(%2F|\b)", re.I)
  assert [x for x in deleted if not own.search(x)] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", faults.tries(1, 3))
def test_runs_killed_at_random_end_as_a_local_run(
  base, shared_pretraining, golden, link, seed, count_tries
):
  count_tries(kills := 10 if seed else 1)
  bucket, proxy, env = link
  count = 2 if seed else 1
  more = [] if seed else shared_pretraining.values  # 12 steps
  rng = random.Random(seed)
  if seed:
    proxy.fail_rate = 0.03
    proxy.cut_rate = 0.01
  newest = 0
  for _ in range(kills):
    processes = start(base, env, count, *more)
    wait_for_step(bucket, newest + rng.choice((0, 5)), processes)
    time.sleep(rng.uniform(0, 1.5 if seed else 0.3))
    for process in rng.sample(processes, rng.randint(1, count)):
      process.kill()
    outputs = [output for _, output in runs.wait_for_all(processes)]
    before, newest = newest, max(find_steps(bucket), default=0)
    assert newest >= before, outputs
  finish(base, env, count, *more)
  if seed:
    assert_same_export(bucket, golden(2))
  else:
    assert_same_export(bucket, read_export(shared_pretraining.workdir))
  assert_only_own_steps_were_deleted(bucket, proxy)


@pytest.mark.faults
def test_a_second_run_in_a_workdir_is_refused(base, link):
  bucket, _, env = link
  [first] = start(base, env, 1, "--config.steps=2000")
  wait_for_step(bucket, 5, [first])
  [(code, output)] = runs.wait_for_all(start(base, env, 1))
  assert (code, first.poll()) == (2, None), output
  assert f"Another run is using '{WORKDIR}'" in output
  assert "Compiling" not in output
  first.send_signal(signal.SIGTERM)
  assert runs.wait_for_all([first])[0][0] == errors.SAVED_RESTART


@pytest.mark.faults
def test_a_paused_owner_stops_and_its_successor_ends_as_if_alone(
  base, golden, link
):
  bucket, _, env = link
  [paused] = start(base, env, 1)
  wait_for_step(bucket, 5, [paused])
  paused.send_signal(signal.SIGSTOP)
  [successor] = start(base, env, 1)
  newest = find_steps(bucket)[-1]
  wait_for_step(bucket, newest + 5, [successor])
  paused.send_signal(signal.SIGCONT)
  [(code, output)] = runs.wait_for_all([paused])
  assert code == errors.DiskError.exit_code, output
  assert "Another run uses it now" in " ".join(output.split())
  assert runs.wait_for_all([successor])[0][0] == 0
  assert_same_export(bucket, golden(1))


@pytest.mark.faults
@pytest.mark.parametrize("fault", ["down", "expired"])
def test_a_link_that_is_down_for_a_while_changes_nothing(
  base, golden, link, fault
):
  bucket, proxy, env = link
  processes = start(base, env, 2)
  wait_for_step(bucket, 5, processes)
  setattr(proxy, fault, True)
  time.sleep(20)
  setattr(proxy, fault, False)
  ended = runs.wait_for_all(processes)
  assert [code for code, _ in ended] == [0, 0], ended
  assert_same_export(bucket, golden(2))


@pytest.mark.faults
def test_a_bucket_without_write_access_is_refused_at_once(base, link):
  _, proxy, env = link
  proxy.read_only = True
  [(code, output)] = runs.wait_for_all(start(base, env, 1))
  assert code == errors.InputError.exit_code, output
  assert "Compiling" not in output
  assert WORKDIR in output


@pytest.mark.faults
def test_requests_are_counted_and_bounded(base, link, capsys):
  """Class A, lists and writes, costs twelve times what class B costs."""
  bucket, proxy, env = link
  flags = ["--config.steps=100", "--config.eval.every_steps=100"]
  flags += ["--config.log.every_steps=10"]
  totals = {}
  for every in (100, 20):
    more = [*flags, f"--config.checkpoint.every_steps={every}"]
    proxy.log.clear()
    start_secs = time.monotonic()
    finish(base, env, 1, f"--workdir={WORKDIR}{every}", *more)
    totals[every] = *proxy.count_classes(), time.monotonic() - start_secs
  saves = [(totals[20][i] - totals[100][i]) / 4 for i in (0, 1)]
  with capsys.disabled():
    print(
      f"\nA and B of a run with one save: {totals[100]}, of a save: {saves}"
    )
  assert totals[100][0] < 200
  assert saves[0] < 60
