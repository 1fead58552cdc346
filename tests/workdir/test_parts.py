"""Records in a bucket survive kills and outages, as those on a disk do."""

import asyncio
import time
import types
from concurrent import futures

import pytest

from support import bucket_servers
from truenegs_jax.runtime import paths, uploads
from truenegs_jax.runtime.errors import DiskError
from truenegs_jax.workdir import files

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

  monkeypatch.setattr(files, "FLUSH_SECS", 0.0)
  monkeypatch.setattr(buckets, "REPEAT_SECS", 0.0)
  sleep = asyncio.sleep
  monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))  # between retries


def make_records(start, stop, **values):
  """Yields the records after `start` steps, as a loop writes them."""
  for step in range(start + 1, stop + 1):
    yield {"step": step, "split": "train", "mlm": step / 7, **values}
    if step % 4 == 0:
      yield {"step": step, "split": "held_out", "mlm": step / 9, **values}


def write_local(folder, sessions):
  """Writes the records of runs that begin and end after some steps."""
  folder.mkdir()
  for start, stop in sessions:
    writer = files.JsonlWriter(folder, first_step=start)
    for record in make_records(start, stop):
      writer.write(record)
    writer.close()
  return files.read_records(folder)


def write_parts(workdir, start, stop, owner, *, killed=False):
  """Writes the records of a run; a `killed` one loses some after `stop`."""
  writer = files.PartsWriter(workdir, first_step=start, owner=owner)
  for record in make_records(start, stop):
    writer.write(record)
  if killed:
    writer.flush()
    writer.write({"step": stop + 1, "split": "train"})
  else:
    writer.close()


def settle(writer):
  """Waits until a thread that writes has ended."""
  task = writer._uploads._task
  futures.wait([task] if task else [])


def test_resumed_runs_have_the_records_of_an_uninterrupted_one(
  bucket, workdir, tmp_path, monkeypatch
):
  monkeypatch.setattr(files, "PART_BYTES", 300)
  expected = write_local(tmp_path / "local", [(0, 40)])
  write_parts(workdir, 0, 23, 1, killed=True)
  write_parts(workdir, 20, 33, 2, killed=True)
  write_parts(workdir, 12, 17, 3, killed=True)  # 20 was damaged
  assert files.read_records(workdir)[-1]["step"] == 17
  write_parts(workdir, 16, 40, 4)
  assert files.read_records(workdir) == expected
  # What is copied from the bucket is a workdir, too.
  copy = tmp_path / "copy"
  copy.mkdir()
  (copy / files.METRICS).write_bytes(bucket[0].read("runs/a/metrics.jsonl"))
  assert files.read_records(copy) == expected


def test_merging_again_changes_nothing(bucket, workdir):
  write_parts(workdir, 0, 10, 1, killed=True)
  write_parts(workdir, 8, 20, 2)
  merged = bucket[0].read("runs/a/metrics.jsonl")
  write_parts(workdir, 20, 20, 3)  # all steps are done
  assert bucket[0].read("runs/a/metrics.jsonl") == merged
  assert bucket[1].count("delete") == 0


def test_records_of_a_copied_workdir_are_continued(bucket, workdir, tmp_path):
  expected = write_local(tmp_path / "local", [(0, 12)])
  write_local(tmp_path / "begun", [(0, 10)])
  lines = (tmp_path / "begun" / files.METRICS).read_bytes()
  bucket[0].write("runs/a/metrics.jsonl", b"damaged\n" + lines)
  write_parts(workdir, 8, 12, 1)
  assert files.read_records(workdir) == expected
  assert bucket[0].read("runs/a/metrics.jsonl").count(b"damaged\n") == 1


def test_a_paused_run_changes_no_record_of_its_successor(
  bucket, workdir, tmp_path
):
  paused = files.PartsWriter(workdir, first_step=0, owner=1)
  for record in make_records(0, 10):
    paused.write(record)
  paused.flush()
  write_parts(workdir, 8, 16, 2)
  for record in make_records(10, 30, mlm=0.0):
    paused.write(record)
  merged = bucket[0].read("runs/a/metrics.jsonl")
  paused.close()
  assert bucket[0].read("runs/a/metrics.jsonl") == merged
  assert files.read_records(workdir) == write_local(
    tmp_path / "local", [(0, 16)]
  )


def test_a_record_of_the_step_of_a_resume_is_not_doubled(
  bucket, workdir, tmp_path
):
  write_local(tmp_path / "local", [(0, 8)])
  lines = (tmp_path / "local" / files.METRICS).read_bytes()
  bucket[0].write("runs/a/metrics.jsonl", lines)
  for owner in (1, 2):
    writer = files.PartsWriter(workdir, first_step=8, owner=owner)
    if owner == 1:  # which was stopped after an evaluation and before a save
      writer.write({"step": 8, "split": "dev", "f1": 1.0})
    writer.close()
  splits = [x["split"] for x in files.read_records(workdir) if x["step"] == 8]
  assert splits == ["train", "held_out", "dev"]


@only_gs
def test_a_bucket_that_is_away_for_a_while_loses_no_record(
  bucket, workdir, soon, capsys
):
  writer = files.PartsWriter(workdir, first_step=0, owner=1)
  for index, record in enumerate(make_records(0, 40)):
    bucket[1].down = 10 <= index < 30
    writer.write(record)
    settle(writer)
  (workdir / files.PARTS / "notes.txt").write_text("none of its parts")
  writer.close()
  assert capsys.readouterr().out.count("warning: ") == 1
  assert len(files.read_records(workdir)) == 50
  assert (workdir / files.METRICS).exists()


@only_gs
def test_lost_records_are_an_error_at_the_end_and_before_a_save(
  bucket, workdir, soon
):
  writer = files.PartsWriter(workdir, first_step=0, owner=1)
  bucket[1].down = True
  writer.write({"step": 1, "split": "train"})
  for action in (writer.flush, writer.flush, writer.close):
    with pytest.raises(DiskError, match="could not be reached"):
      action()
  bucket[1].down = False
  assert files.read_records(workdir) == []


@only_gs
def test_a_run_has_few_requests_however_often_it_writes(
  bucket, workdir, monkeypatch
):
  _, proxy = bucket
  writer = files.PartsWriter(workdir, first_step=0, owner=1)
  now = time.monotonic()
  clock = types.SimpleNamespace(monotonic=lambda: now)
  monkeypatch.setattr(uploads, "time", clock)
  for index, record in enumerate(make_records(0, 1000)):
    now += 300 / 1250  # a run of five minutes
    writer.write(record)
    if index % 20 == 0:
      settle(writer)
  assert 5 <= proxy.count("put") <= 11
  writer.close()
  a, b = proxy.count_classes()
  assert a <= 13 and b <= 4, proxy.counts()
