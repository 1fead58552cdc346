"""Folders in buckets are what folders on a disk are, on emulated servers."""

import asyncio
import concurrent.futures
import itertools
import signal

import pytest

from support import bucket_servers, runs, saved_steps, shared_runs
from support.small_rows import SMALL, write_rows, write_sources
from support.weight_files import assert_same_tree, run_export
from truenegs_jax.data import rows
from truenegs_jax.pretrain import run as run_lib
from truenegs_jax.runtime import paths
from truenegs_jax.runtime.errors import (
  SAVED_RESTART,
  DataError,
  DiskError,
  InputError,
)
from truenegs_jax.weights import load
from truenegs_jax.workdir import files, lock, metrics_file

pytestmark = [
  pytest.mark.filterwarnings("ignore:Sending a large body"),
  saved_steps.IGNORE_UNFINISHED_READS,
]
collect = saved_steps.collect
STEPS = "run/checkpoints"


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
  """Returns a server with an empty bucket, and a workdir in it."""
  sleep = asyncio.sleep
  monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))  # before a retry
  monkeypatch.setattr(metrics_file, "UPLOAD_SECS", 0.0)
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  for name in server.list():
    server.delete(name)
  server.repair()
  bucket_servers.connect(monkeypatch, "gs", server.port)
  yield server, paths.open_path("--workdir", f"{server.url}/run")
  server.repair()


def test_files_of_a_folder_are_listed_and_read(bucket, tmp_path):
  server, workdir = bucket
  for root in (workdir, tmp_path):
    for name in ("a/x.json", "a/sub/y.json"):
      (root / name).parent.mkdir(parents=True, exist_ok=True)
      (root / name).write_bytes(name.encode())
    (root / "a").rename(root / "b")
    assert [x.name for x in (root / "b").iterdir() if x.is_file()] == ["x.json"]
    (root / "b" / "x.json").write_bytes(b"a/x.json+")
    assert sorted(x.name for x in (root / "b").iterdir()) == ["sub", "x.json"]
  server.write("run/b/new", b"of another machine")
  (tmp_path / "b" / "new").write_bytes(b"of another machine")
  for root in (workdir, tmp_path):
    names = sorted(x.name for x in (root / "b").iterdir())
    assert names == ["new", "sub", "x.json"]
    assert [x.name for x in root.glob("*/*/*.json")] == ["y.json"]
    assert (root / "b" / "sub").is_dir() and not (root / "b" / "sub").is_file()
    assert (root / "b" / "x.json").read_text() == "a/x.json+"
    assert not any((root / x).exists() for x in ("a", "b/none"))
    assert not (root / "a").is_dir() and not [*(root / "a").glob("*")]
    with pytest.raises(FileNotFoundError):
      (root / "a").read_bytes()
  assert str((workdir / "b").resolve().absolute()) == f"{workdir}/b"


def stop_after(server, writes, status=503):
  """Refuses all writes after so many."""
  count = itertools.count()
  server.applies = lambda x: x.kind == "put" and next(count) >= writes
  server.fail_rate, server.fail_status = 1.0, status


@pytest.mark.parametrize(
  "fault",
  ["read_only", "create only", "forbidden", "no bucket", "down", "expired"],
)
def test_a_bucket_that_cannot_be_used_is_one_message(bucket, fault, capsys):
  server, workdir = bucket
  server.write("run/x", b"")
  expected = InputError
  if fault == "no bucket":
    workdir = paths.open_path("--workdir", "gs://nobody/run")
    assert not workdir.exists() and not workdir.find()
  asks = [lambda: lock.lock(workdir).__enter__()]
  if fault == "create only":
    stop_after(server, 1, 403)
  else:
    asks += [lambda: (workdir / "x").write_bytes(b"")]
    server.fail_status = 403
    server.fail_rate = float(fault == "forbidden")
    setattr(server, fault, True)
  if fault in ("down", "expired"):
    expected = DiskError
  if fault in ("down", "expired", "forbidden"):  # and not missing or damaged
    asks += [workdir.exists, workdir.is_dir, workdir.find, workdir.rmtree]
    asks += [(workdir / "x").is_file, (workdir / "x").read_bytes]
    asks += [lambda: [*workdir.iterdir()], lambda: [*workdir.glob("*")]]
  for ask in asks:
    message = f"'{workdir}.*(cannot be used|could not be reached)"
    with pytest.raises(expected, match=message):
      ask()


def test_the_last_start_has_the_right_to_write(bucket, capsys):
  server, workdir = bucket
  with lock.lock(workdir) as first:
    assert files.read_state(workdir) == files.RUNNING
    server.read_only = True
    first.check()
    server.read_only = False
  assert files.read_state(workdir) == files.STOPPED
  with pytest.raises(DiskError, match="Another run uses it now: process"):
    with lock.lock(workdir) as first:  # and is killed, or paused
      second = lock.Lease()
      second.acquire(workdir / files.LOCK)
      writer = metrics_file.JsonlWriter(
        workdir, first_step=0, check=first.check
      )
      writer.write({"step": 1, "split": "train"})
      assert "Another run" in capsys.readouterr().out
  second.check()
  assert server.list() == ["run/lock"]
  assert files.read_state(workdir) == files.RUNNING


def read(init):
  return load.load(str(init), report=lambda line: None)


@pytest.mark.slow
def test_models_are_whole_or_refused(bucket, shared_pretraining, no_torch):
  server, workdir = bucket
  server.upload(shared_pretraining.workdir, "run")
  assert files.read_state(workdir) == files.FINISHED  # as a copied lock says
  expected = read(shared_pretraining.workdir / "export")
  source, output = f"{workdir}/export", f"{server.url}/out"
  for names in ("generator", "discriminator"), ("",):
    urls = ", ".join(f"{source}/{name}" for name in names)
    assert_same_tree(read(urls).params, expected.params)
  for num_writes in (0, 2, 5, 11):
    for name in server.list("out"):
      server.delete(name)
    stop_after(server, num_writes)
    assert run_export(source, f"--output={output}")[0] == 5
    server.fail_rate = 0.0
    with pytest.raises(InputError, match="out"):
      read(output)
  server.write("out/generator/tokenizer.json", b"of an earlier export")
  assert run_export(source, f"--output={output}")[0] == 0
  assert_same_tree(read(output).params, expected.params)
  server.write("out/generator/config.json", b"{}")
  with pytest.raises(InputError, match=f"'{output}/generator/config.json' is"):
    read(output)
  code, printed = run_export(source, f"--output={workdir}")
  assert code == 2 and "does not replace: about.json" in printed


def test_rows_are_those_of_a_folder_or_refused(bucket, tmp_path, monkeypatch):
  server, _ = bucket
  for change in SMALL:
    monkeypatch.setattr(*change)
  spec = write_sources(tmp_path).split(", ")[1]
  write_rows(tmp_path / "local", spec)
  expected = runs.read_files(tmp_path / "local")
  url = f"{server.url}/rows"
  stop_after(server, 12)
  with pytest.raises(DiskError, match="could not be reached.*same command"):
    write_rows(url, spec, layout="packed")
  server.fail_rate = 0.0
  with pytest.raises(DataError, match="is not a rows folder"):
    rows.read_manifest(url)
  write_rows(url, spec)  # removes what has another layout
  assert {name: server.read(name) for name in server.list("rows/")} == {
    f"rows/{name}": data for name, data in expected.items()
  }
  rows.verify_rows(url)
  name = max(expected)
  server.write(f"rows/{name}", expected[name][:-1] + b"?")
  with pytest.raises(DataError, match=f"{name}: damaged or missing"):
    rows.copy_rows(url)
  server.write(f"rows/{name}", expected[name])
  server.log.clear()
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    [copy] = {*pool.map(rows.copy_rows, [url] * 2)}  # locked as in processes
  # The others were copied before, and each process reads the manifest.
  assert sum(x.kind == "get" for x in server.log) == 3
  assert runs.read_files(copy).keys() == expected.keys()
  rows.verify_rows(copy)
  server.write("model/train-00000-0000.tokens.npy", b"mine")
  with pytest.raises(DataError, match="exists and is not empty"):
    write_rows(f"{server.url}/model", spec)


def stop_at(step):
  """Returns `batch_at` that sends SIGTERM at a step."""
  batch_at = run_lib.batches_lib.batch_at

  def stop(rows, number, **more):
    if number == step:
      signal.raise_signal(signal.SIGTERM)
    return batch_at(rows, number, **more)

  return stop


@pytest.mark.slow
def test_a_run_leaves_the_files_of_a_local_one(
  bucket, shared_pretraining, tmp_path, monkeypatch
):
  server, workdir = bucket
  local = shared_pretraining.workdir
  server.upload(shared_pretraining.root / "rows", "rows")
  flags = [*shared_pretraining.values, f"--config.data.rows={server.url}/rows"]
  others = "1_2.txt", "30_1/a", "1/mine.txt", "2026/a"
  for name in (*others, "7/run/metadata"):  # a killed save's
    server.write(f"{STEPS}/{name}", b"x")
  with shared_runs.isolate(tmp_path / "private"):
    with monkeypatch.context() as patch:
      patch.setattr(run_lib.batches_lib, "batch_at", stop_at(8))
      assert runs.run_in_process(workdir, flags)[0] == SAVED_RESTART
    server.applies = lambda request: request.client == "tensorstore"
    server.fail_rate, server.fail_status = 1.0, 401
    with pytest.raises(DiskError, match="may be intact"):
      read(f"{workdir}/checkpoints/9")
    server.fail_rate = 0.0
    server.write(f"{STEPS}/9/state/manifest.ocdbt", b"damaged")
    code, output = runs.run_in_process(workdir, flags)
  assert code == 0 and "It is now '9.damaged'" in output, output
  names = {x.split("/")[2] for x in server.list(STEPS)}
  assert {"9.damaged", "10", "12"} < names and not {"7", "9"} & names
  assert {f"{STEPS}/{name}" for name in others} < {*server.list(STEPS)}
  bucket_servers.assert_only_own_files_were_deleted(server, "run/")
  bucket_servers.assert_same_run(server, "run/", local)
  assert_same_tree(read(workdir).params, read(local).params)
