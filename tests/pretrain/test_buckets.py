"""A pre-training in a bucket leaves what one on a disk does."""

import json
import re
import signal
import urllib.parse

import pytest

from support import bucket_servers, runs, shared_runs
from support.faulty_proxy import CLASS_A
from truenegs_jax.pretrain import run as run_lib
from truenegs_jax.runtime.errors import SAVED_RESTART
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.workdir import files

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body")
TIMES = {"time", "eta_s", "host_wait", "memory_peak_gib", "mfu", "flop_per_s"}
TIMES |= {"rows_per_s", "tokens_per_s"}


def find_others(log) -> list[str]:
  """Returns the kinds of requests that are not for checkpoints, lock, rows."""
  return [
    request.kind
    for request in log
    if not re.search(
      "rows/|run/(checkpoints|lock)", urllib.parse.unquote(request.target)
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
  shared_pretraining, start_server, tmp_path, monkeypatch
):
  workdir, flags = shared_pretraining.workdir, shared_pretraining.values
  server = start_server("gs")
  monkeypatch.chdir(tmp_path)
  with (
    bucket_servers.connect_empty(monkeypatch, server) as proxy,
    shared_runs.isolate(tmp_path / "private"),
  ):
    server.upload(shared_pretraining.root / "rows", "rows")
    flags = [*flags, f"--config.data.rows={server.url}/rows"]
    url = open_path("--workdir", f"{server.url}/run")
    with monkeypatch.context() as patch:
      stop_at_step(patch, 8)
      code, _ = runs.run_in_process(url, flags)
      assert code == SAVED_RESTART
    proxy.log.clear()
    code, output = runs.run_in_process(url, flags)
    assert code == 0 and "Results are in 'gs://" in output, output
    kinds = find_others(proxy.log)
    # The export has 15 files.
    assert sum(kind in CLASS_A for kind in kinds) <= 50, kinds
    assert len(kinds) <= 90, kinds
    for path in workdir.rglob("*"):
      name = path.relative_to(workdir)
      if path.is_file() and name.parts[0] not in (
        files.CHECKPOINTS,
        files.LOCK,
      ):
        data = server.read(f"run/{name.as_posix()}")
        if name.parts[0] == files.EXPORT or name.suffix in (
          ".txt",
          ".safetensors",
        ):
          assert data == path.read_bytes(), name
    records = server.read("run/metrics.jsonl").decode()
  assert parse_records(records) == parse_records(
    (workdir / files.METRICS).read_text()
  )
  deleted = [x.target for x in proxy.log if x.kind == "delete" and x.target]
  assert all("checkpoints" in target for target in deleted)
  assert [x.name for x in tmp_path.iterdir()] == ["private"]


def stop_at_step(patch, number):
  """Sends SIGTERM when the batch of a step is read."""
  batch_at = run_lib.batches_lib.batch_at

  def stop(rows, step, **more):
    if step == number:
      signal.raise_signal(signal.SIGTERM)
    return batch_at(rows, step, **more)

  patch.setattr(run_lib.batches_lib, "batch_at", stop)
