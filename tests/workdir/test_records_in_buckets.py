"""Records in a bucket survive kills and outages, as those on a disk do."""

import asyncio
import time
import types
from concurrent import futures

import pytest

from support import bucket_servers
from truenegs_jax.runtime import paths, uploads
from truenegs_jax.runtime.errors import DiskError
from truenegs_jax.workdir import files, metrics_file

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body")


@pytest.fixture
def bucket(server, monkeypatch):
  """Yields a server with an empty bucket, and the proxy before it."""
  with bucket_servers.connect_empty(monkeypatch, server) as proxy:
    yield server, proxy


@pytest.fixture
def workdir(bucket):
  return paths.open_path("--workdir", f"{bucket[0].url}/runs/a")


only_gs = pytest.mark.parametrize("server", ["gs"], indirect=True)


@pytest.fixture
def soon(monkeypatch):
  """Lets writers write at once, and requests fail soon."""
  from truenegs_jax.runtime import buckets

  monkeypatch.setattr(uploads, "UPLOAD_SECS", 0.0)
  monkeypatch.setattr(buckets, "REPEAT_SECS", 0.0)
  sleep = asyncio.sleep
  monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))  # between retries


def make_records(start, stop, **values):
  """Yields the records after `start` steps, as a loop writes them."""
  for step in range(start + 1, stop + 1):
    yield {"step": step, "split": "train", "mlm": step / 7, **values}
    if step % 4 == 0:
      yield {"step": step, "split": "held_out", "mlm": step / 9, **values}


def write(workdir, start, stop, *, killed=False):
  """Writes the records of a run; a `killed` one loses some after `stop`."""
  writer = metrics_file.JsonlWriter(workdir, first_step=start)
  for record in make_records(start, stop):
    writer.write(record)
  if killed:
    writer.upload()
    writer.write({"step": stop + 1, "split": "train"})
    writer._file.close()
    writer._folder._stack.close()  # removes what the machine of a run loses
  else:
    writer.close()


def write_local(folder, start, stop):
  """Writes the records of a run to a local folder."""
  folder.mkdir()
  write(folder, start, stop)
  return metrics_file.read_records(folder)


def settle(writer):
  """Waits until a thread that writes has ended."""
  task = writer._folder._task
  futures.wait([task] if task else [])


def test_resumed_runs_have_the_records_of_an_uninterrupted_one(
  bucket, workdir, tmp_path
):
  expected = write_local(tmp_path / "local", 0, 40)
  write(workdir, 0, 23, killed=True)
  write(workdir, 20, 33, killed=True)
  write(workdir, 12, 17, killed=True)  # 20 was damaged
  assert metrics_file.read_records(workdir)[-1]["step"] == 17
  write(workdir, 16, 40)
  assert metrics_file.read_records(workdir) == expected
  # What is copied from the bucket is a workdir, too.
  copy = tmp_path / "copy"
  copy.mkdir()
  (copy / files.METRICS).write_bytes(bucket[0].read("runs/a/metrics.jsonl"))
  assert metrics_file.read_records(copy) == expected


def test_a_run_whose_steps_are_all_done_changes_nothing(bucket, workdir):
  write(workdir, 0, 20)
  content = bucket[0].read("runs/a/metrics.jsonl")
  write(workdir, 20, 20)
  assert bucket[0].read("runs/a/metrics.jsonl") == content
  assert bucket[1].count("delete") == 0


def test_records_of_a_copied_workdir_are_continued(
  bucket, workdir, tmp_path, capsys
):
  expected = write_local(tmp_path / "local", 0, 12)
  write_local(tmp_path / "begun", 0, 10)
  lines = (tmp_path / "begun" / files.METRICS).read_bytes()
  bucket[0].write("runs/a/metrics.jsonl", b"damaged\n" + lines)
  write(workdir, 8, 12)
  assert metrics_file.read_records(workdir) == expected
  assert f"'{workdir}/metrics.jsonl' had damaged" in capsys.readouterr().out
  assert bucket[0].read(f"runs/a/{files.DAMAGED}") == b"damaged\n"


def test_a_paused_run_changes_no_record_of_its_successor(bucket, workdir):
  error = None

  def check():
    if error:
      raise error

  paused = metrics_file.JsonlWriter(workdir, first_step=0, check=check)
  for record in make_records(0, 10):
    paused.write(record)
  paused.upload()
  write(workdir, 8, 16)
  expected = bucket[0].read("runs/a/metrics.jsonl")
  error = DiskError("Another run uses it now")
  for record in make_records(10, 30, mlm=0.0):
    paused.write(record)
  with pytest.raises(DiskError, match="Another run"):
    paused.close()
  assert bucket[0].read("runs/a/metrics.jsonl") == expected


@only_gs
def test_a_bucket_that_is_away_for_a_while_loses_no_record(
  bucket, workdir, soon, capsys
):
  writer = metrics_file.JsonlWriter(workdir, first_step=0)
  for index, record in enumerate(make_records(0, 40)):
    bucket[1].down = 10 <= index < 30
    writer.write(record)
    settle(writer)
  writer.close()
  assert capsys.readouterr().out.count("warning: ") == 1
  assert len(metrics_file.read_records(workdir)) == 50


@only_gs
def test_lost_records_are_an_error_at_the_end_and_before_a_save(
  bucket, workdir, soon
):
  writer = metrics_file.JsonlWriter(workdir, first_step=0)
  bucket[1].down = True
  writer.write({"step": 1, "split": "train"})
  for action in (writer.upload, writer.upload, writer.close):
    with pytest.raises(DiskError, match="could not be reached"):
      action()
  bucket[1].down = False
  assert metrics_file.read_records(workdir) == []


@only_gs
def test_a_run_has_few_requests_however_often_it_writes(
  bucket, workdir, monkeypatch
):
  _, proxy = bucket
  writer = metrics_file.JsonlWriter(workdir, first_step=0)
  now = time.monotonic()
  clock = types.SimpleNamespace(monotonic=lambda: now)
  monkeypatch.setattr(uploads, "time", clock)
  for index, record in enumerate(make_records(0, 1000)):
    now += 300 / 1250  # a run of five minutes
    writer.write(record)
    if index % 20 == 0:
      settle(writer)
  assert 3 <= proxy.count("put") <= 6
  writer.close()
  a, b = proxy.count_classes()
  assert a <= 8 and b <= 4, proxy.counts()
