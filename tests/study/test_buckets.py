"""A study in a bucket, on a server of this machine."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console

from support import bucket_servers, runs, word_task
from truenegs_jax.config.tables import make_config
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.study import parts as parts_lib
from truenegs_jax.study import run as study_run
from truenegs_jax.study.parts import Part, State
from truenegs_jax.workdir import lock

pytestmark = [
  pytest.mark.slow,
  pytest.mark.filterwarnings("ignore:Sending a large body"),
]
KEY = parts_lib.part_key("a", 0, "pretrain")
# Writes its output, or fails while the object "fails" is there.
CODE = """
import http.client, sys, time, urllib.parse
port, root, key = sys.argv[1:]
def ask(method, path, body=None):
  server = http.client.HTTPConnection("127.0.0.1", int(port))
  server.request(method, path, body)
  return server.getresponse().status
print("this is", key, flush=True)
folder = "/storage/v1/b/bucket/o"
if ask("GET", f"{folder}/fails") == 200:
  print("error: it is broken")
  sys.exit(3)
name = urllib.parse.quote(f"{root}/{key}/results.json", safe="")
ask("POST", f"/upload{folder}?uploadType=media&name={name}", b"{}")
"""


@pytest.fixture(scope="module")
def server(start_server):
  return start_server("gs")


@pytest.fixture
def bucket(server, monkeypatch):
  """Returns an empty bucket."""
  bucket_servers.connect(monkeypatch, server.scheme, server.port)
  monkeypatch.setattr(time, "sleep", lambda _, sleep=time.sleep: sleep(0.1))
  for name in server.list():
    server.delete(name)
  return server


@pytest.fixture
def console():
  return Console(quiet=True)


@pytest.fixture
def root(bucket):
  return open_path("--workdir", f"{bucket.url}/study")


@pytest.fixture
def part(bucket):
  words = str(bucket.port), "study", KEY
  command = sys.executable, "-S", "-c", CODE, *words
  return Part("a", 0, "pretrain", command, ("results.json",))


def test_a_part_that_failed_is_repeated(bucket, root, part, console):
  bucket.write("fails", b"")
  assert parts_lib.run_parts([part], root, console) == 3
  failed = json.loads(bucket.read(f"study/{KEY}/failed.json"))
  assert failed == {"code": 3, "line": "error: it is broken"}
  assert parts_lib.read_states([part], root) == {KEY: State.FAILED}
  assert f"See '{root / KEY}/log.txt'" in parts_lib.describe_failure(part, root)
  bucket.delete("fails")
  assert parts_lib.run_parts([part], root, console) == 0
  assert parts_lib.read_states([part], root) == {KEY: State.DONE}
  log = bucket.read(f"study/{KEY}/log.txt").decode().splitlines()
  assert [x for x in log if x.startswith(("this", "error"))] == [
    f"this is {KEY}",
    "error: it is broken",
    f"this is {KEY}",
  ]
  before = {x: bucket.read(x) for x in bucket.list()}
  assert parts_lib.run_parts([part], root, console) == 0
  assert before == {x: bucket.read(x) for x in bucket.list()}


def test_a_part_that_runs_elsewhere_is_left_to_it(bucket, root, part, console):
  other = lock.BucketLease()
  other.acquire(root / KEY / "lock")
  assert parts_lib.read_states([part], root) == {KEY: State.RUNNING}
  assert parts_lib.run_parts([part], root, console) == 0
  assert bucket.list() == [f"study/{KEY}/lock"]
  other.close()
  assert parts_lib.run_parts([part], root, console) == 0
  assert parts_lib.read_states([part], root) == {KEY: State.DONE}


def test_a_study_that_is_stopped_has_the_models_of_local_runs(
  bucket, root, shared_pretraining, tmp_path, monkeypatch
):
  files = word_task.write_files(tmp_path)
  pairs = [
    flag.removeprefix("--config.").split("=", 1)
    for flag in shared_pretraining.values
  ]
  config = make_config("study")
  config.study.base = "electra_demo:runlocal"
  config.study.arms = {"a": {"words": "sr"}}
  config.study.seeds = 1
  config.study.tasks = "own"
  config.study.finetune_seeds = 1
  config.study.overrides = dict(pairs)
  config.study.finetune = {
    "length": 16,
    "finetune.train": f"{files}/train.csv",
    "finetune.dev": f"{files}/dev.jsonl",
    "finetune.text": "text",
    "finetune.epochs": 1.0,
  }
  saved = tmp_path / "config.json"
  saved.write_text(config.to_json())
  for name, value in runs.make_environment(tmp_path / "cache").items():
    monkeypatch.setenv(name, value)
  process = subprocess.Popen(
    [
      *(sys.executable, "-m", "truenegs_jax.main"),
      *(f"--config={saved}", f"--workdir={root}"),
    ],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  finished = f"study/{KEY}/checkpoints/3/_CHECKPOINT_METADATA"
  while finished not in bucket.list() and process.poll() is None:
    threading.Event().wait(0.3)
  process.send_signal(signal.SIGTERM)
  output, _ = process.communicate()
  assert process.returncode == 75, output
  assert study_run.run(config, root, Console(quiet=True)) == 0
  expected = shared_pretraining.workdir / "export"
  for path in expected.glob("*/model.safetensors"):
    name = f"study/{KEY}/export/{path.relative_to(expected)}"
    assert bucket.read(name) == path.read_bytes()
  assert b"own" in bucket.read("study/tables.csv")
