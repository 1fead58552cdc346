"""A pre-training in a bucket leaves what one on a disk does."""

import json
import re
import time
import urllib.parse

import pytest

from support import bucket_servers, runs
from support.faulty_proxy import CLASS_A, FaultyProxy
from truenegs_jax.workdir import files

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body")
URL = "gs://bucket/run"
TIMES = {"time", "eta_s", "host_wait", "memory_peak_gib", "mfu", "flop_per_s"}
TIMES |= {"rows_per_s", "tokens_per_s"}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
  """Returns a finished run's folder, flags and environment."""
  root = tmp_path_factory.mktemp("local")
  corpus = runs.write_corpus(root / "corpus.txt")
  flags = runs.demo_flags(corpus, checkpoint__every_steps=6)
  env = runs.make_environment(root / "cache")
  code, output = runs.run(root / "run", flags, env)
  assert code == 0, output
  return root / "run", flags, env


@pytest.fixture
def bucket(local):
  """Yields a server with an empty bucket, and the proxy before it."""
  with (
    bucket_servers.serve_bucket("gs") as server,
    FaultyProxy(server.port) as proxy,
  ):
    yield server, proxy


def find_others(log) -> list[str]:
  """Returns the kinds of requests that are not for checkpoints and lock."""
  return [
    request.kind
    for request in log
    if not re.search(
      "run/(checkpoints|lock)", urllib.parse.unquote(request.target)
    )
  ]


def parse_records(text):
  """Returns the records without what differs between two runs."""
  return [
    {name: x for name, x in json.loads(line).items() if name not in TIMES}
    for line in text.splitlines()
  ]


@pytest.mark.slow
def test_a_run_in_a_bucket_leaves_the_files_of_a_local_one(
  local, bucket, tmp_path
):
  (workdir, flags, env), (server, proxy) = local, bucket
  env = env | bucket_servers.environment("gs", proxy.port)
  killed = runs.start(URL, flags, env, cwd=tmp_path)
  while not any("_6/commit" in x for x in server.list("run/checkpoints/")):
    assert killed.poll() is None, killed.communicate()
    time.sleep(0.05)
  killed.kill()
  killed.communicate()
  proxy.log.clear()
  resumed = runs.start(URL, flags, env, cwd=tmp_path)
  output, _ = resumed.communicate()
  assert resumed.returncode == 0 and "Results are in 'gs://" in output, output
  kinds = find_others(proxy.log)
  # The export has 15 files.
  assert sum(kind in CLASS_A for kind in kinds) <= 50, kinds
  assert len(kinds) <= 90, kinds
  written = {path: path.relative_to(workdir) for path in workdir.rglob("*")}
  for path, name in written.items():
    if path.is_file() and name.parts[0] not in (files.CHECKPOINTS, files.LOCK):
      data = server.read(f"run/{name.as_posix()}")
      if name.parts[0] == files.EXPORT or name.suffix in (".txt", ".npz"):
        assert data == path.read_bytes(), name
  records = server.read("run/metrics.jsonl").decode()
  assert parse_records(records) == parse_records(
    (workdir / files.METRICS).read_text()
  )
  deleted = [x.target for x in proxy.log if x.kind == "delete" and x.target]
  assert all("checkpoints" in target for target in deleted)
  assert not [*tmp_path.iterdir()]
