"""Rows in a bucket are those of a local folder, or there are none."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import os
import re
import shutil
import urllib.parse

import numpy as np
import pytest

from support import bucket_servers, small_rows
from support.texts import make_texts
from truenegs_jax.data import batches, copies, shards
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.runtime import buckets, cache
from truenegs_jax.runtime.errors import DataError, DiskError, InputError
from truenegs_jax.runtime.paths import open_path

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body")


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
  """Yields an empty bucket and the proxy that this process's clients use."""
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr(shards, "SHARD_CHUNKS", 1)
  monkeypatch.setattr(shards, "CHUNK_CHARACTERS", 9000)
  monkeypatch.setattr(buckets, "REPEAT_SECS", 0.5)
  sleep = asyncio.sleep
  monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))  # between retries
  with bucket_servers.connect_empty(monkeypatch, server) as proxy:
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
  assert not shards.unfinished_folder(open_path("", url)).exists()
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


@pytest.fixture(scope="module")
def local(tmp_path_factory):
  """A rows folder with several shards, each of some rows."""
  folder = tmp_path_factory.mktemp("local") / "rows"
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(shards, "SHARD_CHUNKS", 1)
    patch.setattr(shards, "CHUNK_CHARACTERS", 2500)
    small_rows.write_texts(folder, make_texts(60))
  return folder


@pytest.fixture
def url(bucket, local):
  """The same folder in a bucket."""
  for path in local.iterdir():
    bucket[0].write(f"rows/{path.name}", path.read_bytes())
  return f"{bucket[0].url}/rows"


def assert_equal(batch, other) -> None:
  for name, array in batch.items():
    np.testing.assert_array_equal(array, other[name])


def test_a_copy_is_the_folder(url, local):
  copy = copies.copy_rows(url)
  assert copies.copy_rows(str(local)) == local
  rows_folder.verify_rows(copy)
  assert rows_folder.read_manifest(copy) == rows_folder.read_manifest(local)
  names = {x.name for x in local.iterdir()}
  assert {x.name for x in copy.iterdir()} == names
  for split in rows_folder.SPLITS:
    rows = rows_folder.open_rows(copy, split)
    same = rows_folder.open_rows(local, split)
    everything = np.arange(len(same))
    assert_equal(rows.take(everything), same.take(everything))


def test_batches_are_read_from_a_copy(url, local):
  tokenizer = rows_folder.load_vocabulary(url)
  both = [
    batches.batches(x, 4, tokenizer=tokenizer, seed=1) for x in (url, local)
  ]
  for _ in range(3):
    assert_equal(*map(next, both))


def test_a_folder_in_a_bucket_is_not_opened_without_a_copy(url):
  with pytest.raises(InputError, match="is opened after copies.copy_rows"):
    rows_folder.open_rows(url, "train")


def read_copied(proxy) -> list[str]:
  """Returns the names of shards that were read from the bucket."""
  targets = (
    urllib.parse.unquote(r.target) for r in proxy.log if r.kind == "get"
  )
  return sorted(
    m[0] for x in targets if (m := re.search(r"[\w-]+\.\w+\.npy", x))
  )


def test_a_later_start_finds_the_copy(bucket, url, local):
  _, proxy = bucket
  copy = copies.copy_rows(url)
  proxy.log.clear()
  assert copies.copy_rows(url) == copy
  assert not read_copied(proxy)


def test_a_copy_that_was_killed_goes_on_with_whole_files(
  bucket, url, local, monkeypatch
):
  _, proxy = bucket
  write, count = copies._copy_file, itertools.count()

  def stop(*args):
    if next(count) == 5:
      raise KeyboardInterrupt
    write(*args)

  with monkeypatch.context() as patch:
    patch.setattr(copies, "_copy_file", stop)
    with pytest.raises(KeyboardInterrupt):
      copies.copy_rows(url)
  [copy] = (x for x in cache.folder().glob("rows-copies/*") if x.is_dir())
  with pytest.raises(DataError, match="is not a rows folder"):
    rows_folder.open_rows(copy, "train")
  present = {x.name for x in copy.iterdir()}
  left = sorted(x.name for x in copy.glob("*.npy"))[-1]
  (copy / f"{left}.tmp").write_bytes(b"half")
  (copy / left).write_bytes(b"half")
  proxy.log.clear()
  assert copies.copy_rows(url) == copy
  names = {x.name for x in local.glob("*.*.npy")}
  assert read_copied(proxy) == sorted(names - present | {left} & names)
  assert {x.name for x in copy.iterdir()} == {x.name for x in local.iterdir()}
  rows_folder.verify_rows(copy)


def test_damage_in_the_bucket_is_found_before_the_start(bucket, url):
  name = "rows/train-00001.types.npy"
  data = bytearray(bucket[0].read(name))
  data[-1] ^= 1  # 0 or 1 as before
  bucket[0].write(name, bytes(data))
  message = "train-00001.types.npy: damaged or missing"
  with pytest.raises(DataError, match=message):
    copies.copy_rows(url)
  bucket[0].delete(name)
  with pytest.raises(DataError, match=message):
    copies.copy_rows(url)
  assert not [*cache.folder().glob("rows-copies/*/manifest.json")]


def test_lost_connections_are_repeated_then_reported(bucket, url, local):
  _, proxy = bucket
  proxy.fail_rate = 0.1
  with contextlib.suppress(DiskError):  # after `REPEAT_SECS` of one file
    copies.copy_rows(url)
  proxy.fail_rate, proxy.down = 0.0, True
  with pytest.raises(DiskError, match="could not be reached"):
    copies.copy_rows(url)
  proxy.down = False
  rows_folder.verify_rows(copies.copy_rows(url))


def test_a_disk_without_room_is_refused(url, monkeypatch):
  full = shutil.disk_usage("/")._replace(free=1000)
  monkeypatch.setattr(copies.shutil, "disk_usage", lambda path: full)
  with pytest.raises(InputError, match=r"GB for its copy.*TRUENEGS_CACHE="):
    copies.copy_rows(url)


def test_processes_of_a_machine_share_the_copy(bucket, url, local):
  _, proxy = bucket
  proxy.log.clear()
  with concurrent.futures.ThreadPoolExecutor(3) as pool:
    # Locks of files are of their own in threads, as in processes.
    folders = set(pool.map(copies.copy_rows, [url] * 3))
  assert len(folders) == 1
  assert read_copied(proxy) == sorted(x.name for x in local.glob("*.*.npy"))


@pytest.mark.parametrize(
  "fingerprint", ["/home", "../../x", "0123456789abcde", "0123456789ABCDEF", ""]
)
def test_a_fingerprint_is_16_hex_digits(bucket, url, tmp_path, fingerprint):
  own = tmp_path / "home" / "thesis.txt"
  own.parent.mkdir()
  own.write_text("mine")
  os.utime(own, (1e9, 1e9))
  named = fingerprint.replace("/home", str(own.parent))
  forge_manifest(bucket[0], {"fingerprint": named})
  for read in (copies.copy_rows, rows_folder.load_vocabulary):
    with pytest.raises(DataError, match="fingerprint is not 16 hex digits"):
      read(url)
  assert [*own.parent.iterdir()] == [own] and own.read_text() == "mine"
  assert not cache.folder().exists()


@pytest.mark.parametrize(
  "name",
  [
    *("/home/x.npy", "../train-00000.tokens.npy", "a/train-00000.tokens.npy"),
    *("thesis.txt", "train-0.tokens.npy", "train-00000.tokens.npy.tmp", ""),
    *("manifest.json", "train-٠٠٠٠٠.tokens.npy", "train-00000.x.npy"),
  ],
)
def test_only_files_of_rows_are_named_by_a_manifest(bucket, url, name):
  files = rows_folder.read_manifest(url)["files"]
  record = files["train-00000.tokens.npy"]
  forge_manifest(bucket[0], {"files": {**files, name: record}})
  with pytest.raises(DataError, match="is no file of rows"):
    copies.copy_rows(url)
  assert not cache.folder().exists()


@pytest.mark.parametrize("record", [None, 3, {}, {"bytes": "9", "crc32": 0}])
def test_a_record_of_a_file_has_two_numbers(bucket, url, record):
  files = rows_folder.read_manifest(url)["files"]
  forge_manifest(bucket[0], {"files": {**files, "vocab.txt": record}})
  with pytest.raises(DataError, match="manifest.json' cannot be read"):
    copies.copy_rows(url)


def forge_manifest(server, changes) -> None:
  """Changes a manifest as somebody who knows its checksum."""
  manifest = json.loads(server.read("rows/manifest.json")) | changes
  manifest.pop("checksum")
  manifest["checksum"] = rows_folder.hash_json(manifest)
  server.write("rows/manifest.json", json.dumps(manifest).encode())
