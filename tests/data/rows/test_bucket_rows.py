"""Rows in a bucket are those of a local folder, or there are none."""

import asyncio
import threading

import numpy as np
import pytest

from support import bucket_servers, small_rows
from support.texts import make_texts
from truenegs_jax.data.rows import batches, copies, rows_folder, shards
from truenegs_jax.runtime import buckets
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


@pytest.fixture
def slow_copies(monkeypatch):
  """Lets no shard be copied before an event is set."""
  event, copy = threading.Event(), copies.Copies._copy

  def wait_and_copy(self, name):
    event.wait()
    copy(self, name)

  monkeypatch.setattr(copies.Copies, "_copy", wait_and_copy)
  yield event
  event.set()


def open_both(url, **options):
  verification = copies.open_verification(url, **options)
  options.pop("divide", None)
  rows = rows_folder.open_rows(url, "train", verification, **options)
  return verification, rows


def assert_equal(batch, other) -> None:
  for name, array in batch.items():
    np.testing.assert_array_equal(array, other[name])


@pytest.mark.parametrize("block_shards", [0, 2])
def test_batches_are_those_of_local_rows(url, local, slow_copies, block_shards):
  verification, rows = open_both(url, block_shards=block_shards)
  same = rows_folder.open_rows(local, "train", block_shards=block_shards)
  options = {"batch_size": 4, "seed": 1}
  read = batches.Reader(rows, verification, **options)
  for step in range(30):
    if step == 5:
      assert verification._pending and not verification.is_complete
      slow_copies.set()
      verification.settle()
    if step == 20:
      verification.finish()
      assert verification.is_complete
    assert_equal(read(step), batches.batch_at(same, step, **options))
  held_out = rows_folder.open_rows(url, "held_out", verification)
  same = rows_folder.open_rows(local, "held_out")
  pairs = (batches.held_out_batches(x, 4) for x in (held_out, same))
  for batch, other in zip(*pairs, strict=True):
    assert_equal(batch, other)


def test_later_starts_find_the_copies(bucket, url, local):
  verification, rows = open_both(url)
  verification.finish()
  proxy = bucket[1]
  names = [p.name for p in verification._folder.iterdir()]
  (verification._folder / names[0]).unlink()  # a kill before it was copied
  proxy.log.clear()
  verification, rows = open_both(url)
  verification.finish()
  gets = [r.target for r in proxy.log if ".npy" in r.target]
  assert {x for x in names if any(x in y for y in gets)} == {names[0]}
  everything = np.arange(len(rows))
  same = rows_folder.open_rows(local, "train")
  assert_equal(rows.take(everything), same.take(everything))


def test_neighbours_are_read_by_one_request(bucket, url, local, slow_copies):
  verification, rows = open_both(url)
  proxy = bucket[1]
  proxy.log.clear()
  rows.take(np.arange(len(rows)))
  num_files = 3 * len(rows.shards)
  assert len(proxy.log) <= num_files


def test_damage_in_the_bucket_is_found_before_a_save(bucket, url, slow_copies):
  name = "rows/train-00001.types.npy"
  data = bytearray(bucket[0].read(name))
  data[-1] ^= 1  # 0 or 1 as before
  bucket[0].write(name, bytes(data))
  verification, rows = open_both(url)
  rows.take(np.arange(2))
  slow_copies.set()
  with pytest.raises(
    DataError, match="train-00001.types.npy: damaged or missing"
  ):
    verification.settle()
  assert not verification.is_complete


def test_rows_that_were_read_otherwise_are_found_before_a_save(
  url, slow_copies, monkeypatch
):
  read_ranges = buckets.read_ranges

  def read_wrongly(ranges):
    first, *others = read_ranges(ranges)
    if not slow_copies.is_set():
      first = bytes([first[0] ^ 1]) + first[1:]
    return [first, *others]

  monkeypatch.setattr(buckets, "read_ranges", read_wrongly)
  verification, rows = open_both(url)
  rows.take(rows.starts[1:2], ["types"])
  slow_copies.set()
  with pytest.raises(DataError, match="00001.types.npy: row 0 was read with"):
    verification.settle()


def test_lost_connections_are_repeated_then_reported_two_steps_ahead(
  bucket, url, local, slow_copies, monkeypatch
):
  _, proxy = bucket
  verification, rows = open_both(url)
  options = {"batch_size": 1, "seed": 0}
  read = batches.Reader(rows, verification, **options)
  same = rows_folder.open_rows(local, "train")
  proxy.fail_rate = 0.3
  for step in range(3):
    assert_equal(read(step), batches.batch_at(same, step, **options))
  assert verification.error is None
  proxy.fail_rate, proxy.down = 0.0, True
  for step in range(3, 5):  # while all processes agree to stop
    assert_equal(read(step), batches.batch_at(same, step, **options))
    assert isinstance(verification.error, DiskError)
  with pytest.raises(DiskError, match="could not be reached"):
    verification.settle()  # rows cannot be compared


def test_rows_that_do_not_fit_into_the_cache_are_refused(url):
  with pytest.raises(InputError, match=r"cache_gb=1e-05,.*order=blocks, whi"):
    copies.open_verification(url, cache_gb=1e-5)
  with pytest.raises(InputError, match="a smaller --config.data.block_shards="):
    copies.open_verification(url, cache_gb=1e-5, block_shards=2)


def test_blocks_keep_two_blocks_in_the_cache(url, local):
  verification, rows = open_both(url, block_shards=2)
  options = {"batch_size": 16, "seed": 0}
  read, seen = batches.Reader(rows, verification, **options), set()
  num_steps = 2 * len(rows) // 16
  for step in range(num_steps):
    read(step)
    verification.settle()
    verification._thread.join()
    names = {p.name for p in verification._folder.glob("train-*")}
    assert len(names) <= 3 * 2 * 2 < 3 * len(rows.shards)
    seen |= names
  assert len(seen) == 3 * len(rows.shards)


def test_processes_of_a_machine_share_the_copies(bucket, url, slow_copies):
  _, proxy = bucket
  both = [open_both(url, divide=lambda _, i=i: (i, 2)) for i in range(2)]
  for _, rows in both:
    rows.take(np.arange(len(rows)))
  slow_copies.set()
  proxy.log.clear()
  for verification, _ in both:
    verification._thread.join()
  copied = [r.target for r in proxy.log if r.kind == "get"]
  assert len(copied) == len(set(copied)) == len(verification._records)
  for verification, _ in both:
    verification.settle()
    assert verification.is_complete
  assert len(copied) == proxy.count("get")
