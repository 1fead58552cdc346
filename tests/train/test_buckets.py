"""A run writes its files to a bucket as to a disk, and reads them back."""

import asyncio
import io
import json
import pathlib
import time
import types

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from support import bucket_servers, report_workdirs
from truenegs_jax.config import load
from truenegs_jax.config.flags import parse_config
from truenegs_jax.report import write
from truenegs_jax.runtime import buckets, paths, uploads
from truenegs_jax.runtime.files import append
from truenegs_jax.train import console_line, guards, loggers, speed
from truenegs_jax.workdir import files, metrics_file

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body")


@pytest.fixture(scope="module")
def server(start_server):
  return start_server("gs")


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
  """Yields a server with an empty bucket, and the proxy before it."""
  monkeypatch.chdir(tmp_path)
  with bucket_servers.connect_empty(monkeypatch, server) as proxy:
    yield server, proxy
  assert not any(path.name.startswith("gs:") for path in tmp_path.iterdir())


@pytest.fixture
def workdir(bucket):
  return paths.open_path("--workdir", f"{bucket[0].url}/run")


def upload(bucket, folder: pathlib.Path) -> None:
  """Copies a local folder to "run", as gcloud does."""
  for path in folder.rglob("*"):
    if path.is_file():
      bucket.write(f"run/{path.relative_to(folder)}", path.read_bytes())


def test_rows_of_skipped_updates_are_listed_as_on_a_disk(
  bucket, workdir, tmp_path
):
  for folder in (workdir, tmp_path):
    for first, stop in ((0, 5), (3, 6)):
      guard = guards.SkipGuard(folder, max_skips=9)
      guard.resume(first, 0)
      for step in range(first, stop):
        guard.add(step, jnp.float32(step % 3 > 0), np.arange(step, step + 2))
      guard.check_pending()
  data = bucket[0].read("run/bad_rows.jsonl")
  assert data == (tmp_path / files.BAD_ROWS).read_bytes()
  steps = [json.loads(line)["step"] for line in data.splitlines()]
  assert steps == [1, 2, 4, 5]


def test_appending_to_nothing_makes_an_object(bucket, workdir):
  append(workdir / "a", b"1\n")
  append(workdir / "a", b"2\n")
  assert bucket[0].read("run/a") == b"1\n2\n"


def test_results_out_of_date_are_emptied_and_not_deleted(bucket, workdir):
  assert files.read_state(workdir) == files.STOPPED
  files.remove_outdated(workdir / files.RESULTS)
  assert bucket[0].list() == []
  files.save_json(workdir / files.RESULTS, {"steps": 3})
  assert files.read_state(workdir) == files.FINISHED
  files.remove_outdated(workdir / files.RESULTS)
  assert files.read_state(workdir) == files.STOPPED
  assert bucket[1].count("delete") == 0


def test_tensorboard_gets_the_events_of_a_run(bucket, workdir):
  pytest.importorskip("tensorboardX")
  run = loggers.LoggedRun(workdir, 0, {})
  line = console_line.ProgressLine(Console(file=io.StringIO()), 9, first_step=0)
  with loggers.open_writers(["tensorboard"], run, line) as (log, flush):
    for step in range(1, 9):
      log({"step": step, "split": "train", "mlm": 0.5})
    flush()
  _, metrics_name, events = sorted(bucket[0].list(), key=len)
  assert events.startswith("run/tensorboard/events.out")
  assert bucket[0].read(events).count(b"train/mlm") == 8
  assert metrics_name == "run/metrics.jsonl"
  assert bucket[0].read(metrics_name).count(b"mlm") == 8


def test_a_trace_is_written_to_the_bucket(bucket, workdir):
  lines = []
  profiler = speed.Profiler((1, 3), workdir, lines.append)
  for done in range(4):
    profiler.update(done, jnp.zeros(2) + done)
  names = bucket[0].list("run/profile/")
  assert any(name.endswith(".xplane.pb") for name in names)
  assert any(name.endswith("perfetto_trace.json.gz") for name in names)
  assert "run/profile" in lines[0]


def test_reports_of_a_bucket_are_those_of_a_disk(
  bucket, workdir, tmp_path, monkeypatch
):
  local = report_workdirs.write_pretraining(tmp_path / "run")
  upload(bucket[0], local)
  bucket[1].log.clear()
  pages = []
  for folder in (local, workdir):
    write.write_report(write.read_workdirs([folder]), tmp_path / "page.html")
    pages.append((tmp_path / "page.html").read_text().replace(str(folder), ""))
  assert pages[0] == pages[1]
  # One to three a file, by what the system asks: no request for each record.
  assert sum(bucket[1].count_classes()) <= 25, bucket[1].counts()
  assert bucket[1].count_classes()[0] <= 4


def test_a_run_writes_its_own_report_to_the_bucket(bucket, workdir, tmp_path):
  upload(bucket[0], report_workdirs.write_pretraining(tmp_path / "run"))
  lines = []
  write.write_own_report(workdir, lines.append)
  assert lines == []
  assert "run/report.html" in bucket[0].list()


def test_the_row_of_a_run_needs_few_requests(bucket, workdir, tmp_path):
  local = report_workdirs.write_pretraining(tmp_path / "run")
  upload(bucket[0], local)
  for index in range(50):  # shards of a step, which nobody need list
    bucket[0].write(f"run/other/{index}", b"")
  bucket[1].log.clear()
  rows = [write.read_workdir(folder) for folder in (workdir, local)]
  assert rows[0].progress == rows[1].progress
  assert rows[0].state == rows[1].state == files.FINISHED
  # One to three a file, by what the system asks: no request for each record.
  assert sum(bucket[1].count_classes()) <= 25, bucket[1].counts()


def test_trainings_of_a_fine_tuning_are_found_by_records(bucket, workdir):
  for name in ("rte/seed-0/metrics.jsonl", "rte/seed-1/metrics.jsonl"):
    bucket[0].write(f"run/{name}", b"")
  folders = metrics_file.list_recorded(workdir, "*/seed-*")
  assert [x.relative_to(workdir).as_posix() for x in folders] == [
    "rte/seed-0",
    "rte/seed-1",
  ]


def test_the_saved_config_of_a_run_starts_it_again(bucket, workdir):
  saved = parse_config(["--config=electra_demo", "--config.seed=7"])
  bucket[0].write("run/config.json", saved.to_json().encode())
  text = f"{workdir}/config.json"
  assert parse_config([f"--config={text}"]).seed == 7
  assert load.default_workdir(text) == workdir


def test_files_that_grow_are_written_once_a_minute(
  bucket, workdir, monkeypatch
):
  now = 0.0
  clock = types.SimpleNamespace(monotonic=lambda: now)
  monkeypatch.setattr(uploads, "time", clock)
  folder = uploads.GrowingFolder(workdir / "events")
  (folder.local / "constant").write_bytes(b"1")
  (folder.local / "link").symlink_to("constant")
  (folder.local / "sub").mkdir()
  for index in range(300):  # of five minutes
    now += 1.0
    with (folder.local / "sub" / "grows").open("ab") as file:
      file.write(b"%d " % index)
    folder.update()
  folder.close()
  names = {"run/events/constant", "run/events/sub/grows"}
  assert {*bucket[0].list()} == names
  assert bucket[0].read("run/events/sub/grows").split()[-1] == b"299"
  assert bucket[1].count("put") <= 7
  assert not folder.local.exists()


def test_a_logger_whose_bucket_is_away_ends_no_run(
  bucket, workdir, monkeypatch, capsys
):
  pytest.importorskip("tensorboardX")
  sleep = asyncio.sleep
  monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))  # between retries
  monkeypatch.setattr(buckets, "REPEAT_SECS", 0.0)
  monkeypatch.setattr(uploads, "UPLOAD_SECS", 0.0)
  run = loggers.LoggedRun(workdir, 0, {})
  logger = loggers.Logger("tensorboard", run)
  bucket[1].down = True
  for step in range(40):
    logger.write({"step": step, "split": "train", "mlm": 0.5})
    time.sleep(0.01)
  logger.close()
  output = capsys.readouterr().out
  assert "could not be written" in output and "goes on without it" in output
  assert output.count("warning: ") == 2
