"""Rows in a bucket are those of a local folder, or there are none."""

import asyncio

import pytest

from support import bucket_servers, small_rows
from support.faulty_proxy import FaultyProxy
from truenegs_jax.data.rows import rows_folder, shards, store
from truenegs_jax.runtime import buckets
from truenegs_jax.runtime.errors import DataError, DiskError
from truenegs_jax.runtime.paths import open_path

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body")


@pytest.fixture(
  scope="module", params=["gs", pytest.param("s3", marks=pytest.mark.slow)]
)
def server(request):
  """Yields a bucket of a server."""
  for package in bucket_servers.PACKAGES[request.param]:
    pytest.importorskip(package)
  with bucket_servers.serve_bucket(request.param) as bucket:
    yield bucket


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
  """Yields an empty bucket and the proxy that this process's clients use."""
  for name in server.list():
    server.delete(name)
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr(shards, "SHARD_CHUNKS", 1)
  monkeypatch.setattr(shards, "CHUNK_CHARACTERS", 9000)
  monkeypatch.setattr(buckets, "REPEAT_SECS", 0.5)
  sleep = asyncio.sleep
  monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))  # between retries
  with FaultyProxy(server.port) as proxy:
    bucket_servers.connect(monkeypatch, server.scheme, proxy.port)
    yield server, proxy


def read_objects(bucket, folder="rows") -> dict[str, bytes]:
  names = bucket.list(f"{folder}/")
  return {name.removeprefix(f"{folder}/"): bucket.read(name) for name in names}


def test_prepared_rows_are_the_files_of_a_local_folder(bucket, tmp_path):
  bucket, _ = bucket
  sources = small_rows.write_sources(tmp_path)
  expected = small_rows.prepare_files(sources, tmp_path / "local")
  url = f"{bucket.url}/rows"
  small_rows.prepare(sources, url)
  assert read_objects(bucket) == expected
  assert not store.unfinished_folder(open_path("", url)).exists()
  rows_folder.verify_rows(url)
  name = "rows/train-00001.types.npy"
  bucket.write(name, b"\1" + bucket.read(name)[1:])
  with pytest.raises(DataError, match="train-00001.types"):
    rows_folder.verify_rows(url)


def test_a_stopped_preparation_is_no_rows_folder_and_goes_on(bucket, tmp_path):
  bucket, proxy = bucket
  sources = small_rows.write_sources(tmp_path)
  expected = small_rows.prepare_files(sources, tmp_path / "local")
  url, writes = f"{bucket.url}/rows", 0

  def fails(request):
    nonlocal writes
    writes += request.kind == "put"
    return writes > 5

  proxy.applies, proxy.fail_rate = fails, 1.0
  with pytest.raises(DiskError, match="could not be reached.*same command"):
    small_rows.prepare(sources, url)
  proxy.fail_rate, proxy.log[:] = 0.0, []
  names = bucket.list("rows/")
  assert names and "rows/manifest.json" not in names
  with pytest.raises(DataError, match="is not a rows folder"):
    rows_folder.read_manifest(url)
  bucket.write(names[0], b"half of it")
  small_rows.prepare(sources, url)
  assert read_objects(bucket) == expected


def test_a_folder_of_something_else_is_refused(bucket, tmp_path):
  bucket, _ = bucket
  sources = small_rows.write_sources(tmp_path)
  bucket.write("model/vocab.txt", b"mine")
  with pytest.raises(DataError, match="exists and is not empty"):
    small_rows.prepare(sources, f"{bucket.url}/model")
  assert read_objects(bucket, "model") == {"vocab.txt": b"mine"}
