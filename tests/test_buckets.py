"""Folders in buckets are what folders on a disk are, on emulated servers."""

import asyncio
import concurrent.futures
import itertools
import json
import signal
import threading
import time

import pytest
from rich.console import Console

from support import bucket_servers, runs, saved_steps, shared_runs, word_task
from support.small_rows import SMALL, read_files, write_rows, write_sources
from support.weight_files import assert_same_tree, run_export
from truenegs_jax.config.tables import make_config
from truenegs_jax.data import rows
from truenegs_jax.pretrain import run as run_lib
from truenegs_jax.report import write
from truenegs_jax.runtime import buckets, cache, paths, uploads
from truenegs_jax.runtime import files as runtime_files
from truenegs_jax.runtime.errors import (
  SAVED_RESTART,
  DataError,
  DiskError,
  InputError,
)
from truenegs_jax.study import parts
from truenegs_jax.study import run as study_run
from truenegs_jax.weights import load
from truenegs_jax.workdir import files, lock

pytestmark = [
  pytest.mark.filterwarnings("ignore:Sending a large body"),
  saved_steps.IGNORE_UNFINISHED_READS,
]
collect = saved_steps.collect
only_gs = pytest.mark.parametrize("server", ["gs"], indirect=True)
TAKEOVER_SECS = 1
STEPS = "run/checkpoints"


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
  """Yields an empty bucket, the proxy before it, and a workdir in it."""
  sleep = asyncio.sleep
  monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))  # before a retry
  retries = {"max_retries": 2, "initial_delay": "10ms"}
  monkeypatch.setattr(buckets, "RETRIES", retries)
  monkeypatch.setattr(uploads, "UPLOAD_SECS", 0.0)
  monkeypatch.setenv(lock.TAKEOVER_VARIABLE, f"{TAKEOVER_SECS}")
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  with bucket_servers.connect_empty(monkeypatch, server) as proxy:
    yield server, proxy, paths.open_path("--workdir", f"{server.url}/run")


def read_all(server, prefix=""):
  return {name: server.read(name) for name in server.list(prefix)}


def test_files_of_a_folder_are_listed_and_read(bucket, tmp_path):
  server, _, workdir = bucket
  for root in (workdir, tmp_path):
    for name in ("a/x.json", "a/sub/y.json"):
      (root / name).parent.mkdir(parents=True, exist_ok=True)
      (root / name).write_bytes(name.encode())
    (root / "a").rename(root / "b")
    assert [x.name for x in (root / "b").iterdir() if x.is_file()] == ["x.json"]
    runtime_files.append(root / "b" / "x.json", b"+")
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


def stop_after(proxy, writes, status=503):
  """Refuses all writes after so many."""
  count = itertools.count()
  proxy.applies = lambda x: x.kind == "put" and next(count) >= writes
  proxy.fail_rate, proxy.fail_status = 1.0, status


@pytest.mark.parametrize(
  "fault",
  ["read_only", "create only", "forbidden", "no bucket", "down", "expired"],
)
def test_a_bucket_that_cannot_be_used_is_one_message(bucket, fault, capsys):
  server, proxy, workdir = bucket
  server.write("run/x", b"")
  expected = InputError
  if fault == "no bucket":
    workdir = paths.open_path("--workdir", f"{server.scheme}://nobody/run")
    assert not workdir.exists() and not workdir.find()
  asks = [lambda: lock.lock(workdir).__enter__()]
  if fault == "create only":
    stop_after(proxy, 1, 403)
  else:
    asks += [lambda: (workdir / "x").write_bytes(b"")]
    proxy.fail_status = 403
    proxy.fail_rate = float(fault == "forbidden")
    setattr(proxy, fault, True)
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


def acquire(workdir):
  lease = lock.BucketLease()
  lease.acquire(workdir / files.LOCK)
  return lease


def leave(server, **more):
  """Leaves the lock of a run elsewhere, that is gone."""
  value = {"token": "x", "host": "far", "pid": 7, "held": True}
  value |= {"renewed": time.time(), "takeover_secs": TAKEOVER_SECS} | more
  server.write("run/lock", json.dumps(value).encode())


def read_lock(server):
  return json.loads(server.read("run/lock"))


def wait_for(condition):
  deadline = time.monotonic() + 20
  while not condition() and time.monotonic() < deadline:
    time.sleep(0.05)
  assert condition()


def test_a_second_run_is_refused_until_the_first_ends(bucket, monkeypatch):
  server, proxy, workdir = bucket
  with lock.lock(workdir) as lease:
    assert files.read_state(workdir) == files.RUNNING
    with pytest.raises(InputError, match="Another run is using"):
      acquire(workdir)
    proxy.lose_answers = 1
    wait_for(lambda: not proxy.lose_answers)
    proxy.down = True
    time.sleep(2 * TAKEOVER_SECS)
    proxy.down, proxy.read_only = False, True  # a right that is lost
    lease.check()
    proxy.read_only = False
    renewed = read_lock(server)["renewed"]
    wait_for(lambda: read_lock(server)["renewed"] > renewed)
    assert lease.token == read_lock(server)["token"]
    write, began = lease._write, threading.Event()

    def write_slowly(*, held=True):
      began.set()
      time.sleep(0.3 * held)
      write(held=held)

    monkeypatch.setattr(lease, "_write", write_slowly)
    assert began.wait(20)
  time.sleep(0.5)  # a renewal does not undo the release
  assert files.read_state(workdir) == files.STOPPED
  acquire(workdir).close()
  assert server.list() == ["run/lock"]


def test_one_of_several_newcomers_replaces_a_dead_run(bucket):
  server, _, workdir = bucket
  leave(server)
  began = time.monotonic()
  results = []

  def start():
    try:
      results.append(acquire(workdir))
    except InputError as error:
      results.append(error)

  threads = [threading.Thread(target=start) for _ in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert time.monotonic() - began > TAKEOVER_SECS
  [winner] = [x for x in results if isinstance(x, lock.BucketLease)]
  assert winner.token == read_lock(server)["token"]
  assert all("Another run" in str(x) for x in results if x is not winner)
  winner.close()


def test_a_paused_run_finds_its_successor_and_leaves_it_alone(bucket):
  server, _, workdir = bucket
  with pytest.raises(DiskError, match="Another run uses it now: process"):
    with lock.lock(workdir) as first:
      first._ended.set()  # no renewals
      second = acquire(workdir)
  second.check()
  leave(server)
  wait_for(lambda: second.error)  # its thread finds it
  second.close()
  assert "process 7 of far" in str(second.error)
  assert read_lock(server)["token"] == "x"


def read(init):
  return load.load(str(init), report=lambda line: None)


@pytest.mark.slow
def test_models_are_whole_or_refused(
  bucket, shared_pretraining, no_torch, capsys
):
  server, proxy, workdir = bucket
  server.upload(shared_pretraining.workdir, "run")
  assert files.read_state(workdir) == files.FINISHED  # as a copied lock says
  expected = read(shared_pretraining.workdir / "export")
  source, output = f"{workdir}/export", f"{server.url}/out"
  for names in ("generator", "discriminator"), ("",):
    urls = ", ".join(f"{source}/{name}" for name in names)
    assert_same_tree(read(urls).params, expected.params)
  copies = [*(cache.folder() / "buckets").iterdir()]
  assert len(copies) == 2  # each was copied once
  assert {"config.json", "model.safetensors", "vocab.txt"} < {
    x.name for x in copies[0].iterdir() if x.name != "README.md"
  }
  for num_writes in (0, 1, 2, 5, 8, 11):
    for name in server.list("out"):
      server.delete(name)
    stop_after(proxy, num_writes)
    assert run_export(source, f"--output={output}") == 5
    proxy.fail_rate = 0.0
    with pytest.raises(InputError, match="out"):
      read(output)
  server.write("out/generator/tokenizer.json", b"of an earlier export")
  assert run_export(source, f"--output={output}") == 0
  assert_same_tree(read(output).params, expected.params)
  server.write("out/generator/config.json", b"{}")
  with pytest.raises(InputError, match=f"'{output}/generator/config.json' is"):
    read(output)
  assert run_export(source, f"--output={workdir}") == 2
  assert "does not replace: about.json" in capsys.readouterr().err


def test_rows_are_those_of_a_folder_or_refused(bucket, tmp_path, monkeypatch):
  server, proxy, _ = bucket
  for change in SMALL:
    monkeypatch.setattr(*change)
  spec = write_sources(tmp_path).split(", ")[1]
  write_rows(tmp_path / "local", spec)
  expected = read_files(tmp_path / "local")
  url = f"{server.url}/rows"
  stop_after(proxy, 12)
  with pytest.raises(DiskError, match="could not be reached.*same command"):
    write_rows(url, spec, seed=1)
  proxy.fail_rate = 0.0
  with pytest.raises(DataError, match="is not a rows folder"):
    rows.read_manifest(url)
  write_rows(url, spec)  # removes what has another seed
  assert read_all(server, "rows/") == {
    f"rows/{name}": data for name, data in expected.items()
  }
  rows.verify_rows(url)
  name = max(expected)
  server.write(f"rows/{name}", expected[name][:-1] + b"?")
  with pytest.raises(DataError, match=f"{name}: damaged or missing"):
    rows.copy_rows(url)
  server.write(f"rows/{name}", expected[name])
  proxy.log.clear()
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    [copy] = {*pool.map(rows.copy_rows, [url] * 2)}  # locked as in processes
  # The others were copied before, and each process reads the manifest.
  assert proxy.count("get") == 3
  assert read_files(copy).keys() == expected.keys()
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


@only_gs
@pytest.mark.slow
def test_a_run_leaves_the_files_of_a_local_one(
  bucket, shared_pretraining, tmp_path, monkeypatch
):
  server, proxy, workdir = bucket
  local = shared_pretraining.workdir
  server.upload(shared_pretraining.root / "rows", "rows")
  flags = [*shared_pretraining.values, f"--config.data.rows={server.url}/rows"]
  others = "1_2.txt", "30_1/a", "1/mine.txt", "2026/a", "mine/weights.bin"
  for name in (*others, "7/run/metadata"):  # a killed save's
    server.write(f"{STEPS}/{name}", b"x")
  with shared_runs.isolate(tmp_path / "private"):
    with monkeypatch.context() as patch:
      patch.setattr(run_lib.batches_lib, "batch_at", stop_at(8))
      assert runs.run_in_process(workdir, flags)[0] == SAVED_RESTART
    proxy.applies = lambda request: request.client == "tensorstore"
    proxy.fail_rate, proxy.fail_status = 1.0, 401
    with pytest.raises(DiskError, match="may be intact"):
      read(f"{workdir}/checkpoints/9")
    proxy.fail_rate = 0.0
    server.write(f"{STEPS}/9/state/manifest.ocdbt", b"damaged")
    code, output = runs.run_in_process(workdir, flags)
  assert code == 0 and "It is now '9.damaged'" in output, output
  names = {x.split("/")[2] for x in server.list(STEPS)}
  assert {"9.damaged", "10", "12"} < names and not {"7", "9"} & names
  assert {f"{STEPS}/{name}" for name in others} < {*server.list(STEPS)}
  deleted = [x.target for x in proxy.log if x.kind == "delete" and x.target]
  assert all("checkpoints" in target for target in deleted)
  bucket_servers.assert_same_run(server, "run/", local)
  assert_same_tree(read(workdir).params, read(local).params)
  server.upload(local, "local/run")
  pages = []
  for folder in (local, paths.open_path("url", f"{server.url}/local/run")):
    write.write_report(write.read_workdirs([folder]), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    pages.append(text.replace(str(folder), "").replace(str(local), ""))
  assert pages[0] == pages[1]


@only_gs
@pytest.mark.slow
def test_a_study_and_its_fine_tuning_are_those_of_local_runs(
  bucket, shared_pretraining, tmp_path, monkeypatch
):
  server, _, workdir = bucket
  folder = word_task.write_files(tmp_path)
  pairs = (x.split(".", 1)[1].split("=", 1) for x in shared_pretraining.values)
  config = make_config("study")
  config.study.base = "electra_demo:runlocal"
  config.study.arms = {"a": {"words": "sr"}}
  config.study.seeds = config.study.finetune_seeds = 1
  config.study.tasks = "own"
  config.study.overrides = dict(pairs)
  config.study.finetune = {
    "length": 16,
    "finetune.train": f"{folder}/train.csv",
    "finetune.dev": f"{folder}/dev.jsonl",
    "finetune.text": "text",
    "finetune.epochs": 1.0,
  }
  for name, value in runs.make_environment(tmp_path / "cache").items():
    monkeypatch.setenv(name, value)
  key = parts.part_key("a", 0, "pretrain")
  lease = acquire(workdir / key)
  assert study_run.run(config, workdir, Console(quiet=True)) == 0
  assert server.list(f"run/{key}") == [f"run/{key}/lock"]  # it runs elsewhere
  lease.close()
  assert study_run.run(config, workdir, Console(quiet=True)) == 0
  export = shared_pretraining.workdir / "export"
  for path in export.glob("*/model.safetensors"):
    name = f"run/{key}/export/{path.relative_to(export)}"
    assert server.read(name) == path.read_bytes()
  assert b"own" in server.read("run/results.json")
