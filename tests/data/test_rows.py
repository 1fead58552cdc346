"""A rows folder, here or in a bucket, is complete or reports its damage."""

import asyncio
import concurrent.futures
import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import urllib.parse

import numpy as np
import pytest

from support import bucket_servers
from support.small_rows import (
  SMALL,
  read_files,
  read_split,
  write_rows,
  write_sources,
  write_texts,
)
from support.texts import make_texts
from truenegs_jax.data import batches, build
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.rows import (
  SPLITS,
  copy_rows,
  load_vocabulary,
  open_rows,
  read_manifest,
  verify_rows,
)
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime import buckets, cache
from truenegs_jax.runtime.errors import DataError, DiskError, InputError

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body")
SHARD = "train-00000-0000.tokens.npy"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  """A folder with several shards, some of which hold no document out."""
  folder = tmp_path_factory.mktemp("written") / "rows"
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(build, "MIN_SLICE", 1000)
    write_texts(folder, make_texts(60))
  return folder


@pytest.fixture
def folder(written, tmp_path):
  return shutil.copytree(written, tmp_path / "rows")


def test_counts_and_rows_of_any_order_are_right(folder):
  manifest = read_manifest(folder)
  for split in SPLITS:
    batch = read_split(folder, split)
    counts = manifest["splits"][split]
    shards = dict(counts["shards"])
    assert len(shards) > 1
    assert counts["rows"] == len(batch["tokens"]) == sum(shards.values())
    padding = 1 - batch["documents"].mean()
    assert counts["padding_share"] == pytest.approx(padding, abs=1e-6)
  rows = open_rows(folder, "train")
  batch = read_split(folder, "train")
  index_B = np.random.default_rng(0).integers(0, len(rows), 50)
  for name, array in rows.take(index_B).items():  # rows in any order
    assert array.dtype == np.int32
    np.testing.assert_array_equal(array, batch[name][index_B])
  tokens_RxL = batch["tokens"]
  expected_V = np.bincount(tokens_RxL.ravel(), minlength=31)
  expected_V[:5] = 0
  np.testing.assert_array_equal(np.load(folder / "unigram_V.npy"), expected_V)
  size = sum(map(len, make_texts(60)))
  part = {"documents": 60, "text_bytes": size, "passes": 1, "records": 60}
  assert manifest["parts"] == [part]


@pytest.mark.parametrize("size, dtype", [(2**16, "uint16"), (2**16 + 1, "u4")])
def test_large_vocabularies_have_wide_tokens(tmp_path, size, dtype):
  entries = [*SPECIALS, *(f"w{i}" for i in range(size - 6)), "z"]
  tokenizer = make_tokenizer(entries, lowercase=True)
  write_texts(tmp_path / "rows", ["z z", "z"], tokenizer=tokenizer)
  rows = open_rows(tmp_path / "rows", "train")
  assert np.load(rows.shards[0][0].path).dtype == dtype
  assert rows.take(np.array([0]))["tokens"].max() == size - 1


def test_fingerprints_depend_on_content(tmp_path, written, monkeypatch):
  monkeypatch.setattr(build, "MIN_SLICE", 1000)
  fingerprint = read_manifest(written)["fingerprint"]
  for seed in (0, 1):  # the path and the time of the text are irrelevant
    other = write_texts(tmp_path / f"{seed}", make_texts(60), seed=seed)
    assert (other["fingerprint"] == fingerprint) == (seed == 0)


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "zero", "delete"])
def test_verify_finds_damage_to_any_file(folder, damage):
  rng = np.random.default_rng(0)
  for path in sorted(folder.iterdir()):
    content = path.read_bytes()
    data = bytearray(content)
    if damage == "flip":
      data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    elif damage == "cut":
      data = data[: len(data) // 2]
    elif damage == "grow":
      data += b"\0"
    elif damage == "zero":
      data = bytearray(len(data))
    path.write_bytes(data)
    if damage == "delete":
      path.unlink()
    with pytest.raises(DataError, match=path.name):
      verify_rows(folder)
    path.write_bytes(content)
  verify_rows(folder)


def test_opening_reports_a_cut_missing_or_pickled_shard(folder):
  path = folder / "train-00000-0001.types.npy"
  size = path.stat().st_size

  def pickle():
    with open(path, "wb") as file:
      np.save(file, np.array([print], dtype=object), allow_pickle=True)
      file.truncate(size)

  for damage in (lambda: os.truncate(path, size - 1), path.unlink, pickle):
    damage()
    with pytest.raises(DataError, match=f"{path.name}(: cannot be read)?"):
      open_rows(folder, "train")
  open_rows(folder, "held_out")


@pytest.mark.parametrize("layout", ["electra", "packed"])
def test_values_out_of_range_are_rejected(tmp_path, layout):
  write_texts(tmp_path / "rows", make_texts(20), layout=layout)
  most = {"tokens": 30, "types": 1, "documents": 1}
  if layout == "packed":
    most["documents"] = 5
  for field, value in most.items():
    path = tmp_path / f"rows/train-00000-0000.{field}.npy"
    data = path.read_bytes()
    array = np.load(path)
    array[3, 1] = value + 1
    np.save(path, array)
    rows = open_rows(tmp_path / "rows", "train")
    rows.take(np.array([2]))
    message = f"{field}.npy: {value + 1} in row 3 of 'train'.* most {value}"
    with pytest.raises(DataError, match=message):
      rows.take(np.array([2, 3]))
    path.write_bytes(data)


def test_an_endless_file_is_not_read(folder):
  path = folder / SHARD
  damaged = f"damaged or missing files: {SHARD}"
  for make, message in (
    (lambda: os.mkfifo(path), damaged),  # a read would wait forever
    (lambda: path.symlink_to("/dev/zero"), "leads out of the folder"),
    (lambda: path.touch() or os.truncate(path, 2**42), damaged),  # 4 TB
  ):
    path.unlink()
    make()
    with pytest.raises((DataError, InputError), match=message):
      verify_rows(folder)


def change_record(manifest, name, record):
  files = manifest["files"]
  files[name] = files[SHARD] if record == "as it is" else record


# Changes of a manifest by somebody who knows its checksum.
HOSTILE = {
  "fingerprint": [
    (lambda m, x=x: m.update(fingerprint=x), "fingerprint is not 16 hex digits")
    for x in ("/home", "../../x", "0123456789abcde", "0123456789ABCDEF", "")
  ],
  "name": [
    (lambda m, x=x: change_record(m, x, "as it is"), "is no file of rows")
    for x in (
      *("/dev/zero", f"../{SHARD}", f"a/{SHARD}", "thesis.txt", "", "a\\b"),
      *("train-00000.tokens.npy", f"{SHARD}.tmp", "manifest.json"),
      *("train-٠٠٠٠٠-0000.tokens.npy", "train-00000-0000.x.npy"),
    )
  ],
  "record": [
    (lambda m, x=x: change_record(m, "vocab.txt", x), "cannot be read")
    for x in (None, 3, {}, {"bytes": "9", "crc32": 0})
  ],
  "shards": [
    (lambda m, x=x: m["splits"]["train"].update(shards=x), "cannot be read")
    for x in (
      *(None, 3, [[]], [["00000-0000"]], [["99999-0000", 3]], [[3, 3]]),
      *([["00000-0000", 1e9]], [["00000-0000", 10**9]], [["/dev/zero", 1]]),
      *([["../00000-0000", 1]], [["00000-0000", -1]], [["00000-0000", True]]),
    )
  ],
  "sizes": [
    (lambda m: m.pop("options"), "cannot be read"),
    (lambda m: m["options"].update(length=10**9), "cannot be read"),
    (lambda m: m["options"].update(length=None), "cannot be read"),
    (lambda m: m["tokenizer"].update(size=10**15), "cannot be read"),
    (lambda m: m["tokenizer"].pop("size"), "cannot be read"),
    (lambda m: m["files"].pop("unigram_V.npy"), "cannot be read"),
    (lambda m: m["files"].pop("vocab.txt"), "cannot be read"),
    (lambda m: m["files"].pop(SHARD), "cannot be read"),
    (lambda m: m["files"][SHARD].update(bytes=10**15), "damaged or missing"),
    (lambda m: m.update(version=5), "not of version"),
    (lambda m: m.pop("splits"), "cannot be read"),
  ],
  "about": [
    *(
      (lambda m, x=x: m.update(languages=x, parts=x), "cannot be read")
      for x in (None, 3, [3], {"en": "x"}, [{"documents": -1}])
    ),
    (lambda m: m["options"].update(sources=[3]), "cannot be read"),
    (lambda m: m["tokenizer"].update(lowercase=1), "cannot be read"),
    (
      lambda m: m["splits"]["train"].update(padding_share="x"),
      "cannot be read",
    ),
  ],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_manifest_is_refused(folder, kind):
  path = folder / rows_folder.MANIFEST
  text = path.read_text()
  for number, (change, message) in enumerate(HOSTILE[kind]):
    manifest = json.loads(text)
    del manifest["checksum"]
    change(manifest)
    manifest["checksum"] = rows_folder.hash_json(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=message):
      load_vocabulary(folder)
      open_rows(folder, "train")
      verify_rows(folder)
      raise AssertionError(f"case {number} of {kind}")
  path.write_text(text.replace('"rows": ', '"rows": 1', 1))
  with pytest.raises(DataError, match="changed or damaged"):
    open_rows(folder, "train")


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
  """Yields an empty bucket and the proxy that this process's clients use."""
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr(buckets, "REPEAT_SECS", 0.5)
  sleep = asyncio.sleep
  monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))  # between retries
  with bucket_servers.connect_empty(monkeypatch, server) as proxy:
    yield server, proxy


@pytest.fixture
def url(bucket, written):
  """The folder `written` in a bucket."""
  for path in written.iterdir():
    bucket[0].write(f"rows/{path.name}", path.read_bytes())
  return f"{bucket[0].url}/rows"


def read_objects(bucket, folder="rows") -> dict[str, bytes]:
  names = bucket.list(f"{folder}/")
  return {name.removeprefix(f"{folder}/"): bucket.read(name) for name in names}


def read_copied(proxy) -> set[str]:
  """Returns the names of shards that were read from the bucket."""
  targets = " ".join(x.target for x in proxy.log if x.kind == "get")
  return {*re.findall(r"[\w-]+\.\w+\.npy", urllib.parse.unquote(targets))}


def test_rows_in_a_bucket_are_the_files_of_a_folder(
  bucket, tmp_path, monkeypatch
):
  for change in SMALL:
    monkeypatch.setattr(*change)
  bucket, proxy = bucket
  spec = write_sources(tmp_path).split(", ")[1]
  write_rows(tmp_path / "local", spec)
  expected = read_files(tmp_path / "local")
  url, writes = f"{bucket.url}/rows", 0

  def fails(request):
    nonlocal writes
    writes += request.kind == "put"
    return writes > 12

  proxy.applies, proxy.fail_rate = fails, 1.0
  with pytest.raises(DiskError, match="could not be reached.*same command"):
    write_rows(url, spec, seed=1)
  proxy.fail_rate = 0.0
  names = read_objects(bucket)
  assert len(names) > 5 and "manifest.json" not in names
  with pytest.raises(DataError, match="is not a rows folder"):
    read_manifest(url)
  write_rows(url, spec)  # removes what has another seed
  assert read_objects(bucket) == expected
  verify_rows(url)
  bucket.write("model/train-00000-0000.tokens.npy", b"mine")
  with pytest.raises(DataError, match="exists and is not empty"):
    write_rows(f"{bucket.url}/model", spec)
  assert [*read_objects(bucket, "model").values()] == [b"mine"]


def test_a_copy_is_the_folder(bucket, url, written):
  _, proxy = bucket
  assert copy_rows(str(written)) == written
  with concurrent.futures.ThreadPoolExecutor(3) as pool:
    # Locks of files are of their own in threads, as in processes.
    [copy] = {*pool.map(copy_rows, [url] * 3)}
  num_read = sum("types" in r.target and r.kind == "get" for r in proxy.log)
  assert num_read == len([*written.glob("*.types.npy")])
  verify_rows(copy)
  assert read_manifest(copy) == read_manifest(written)
  names = {x.name for x in written.iterdir()}
  assert {x.name for x in copy.iterdir()} == names
  tokenizer = load_vocabulary(url)
  proxy.log.clear()
  read = functools.partial(batches.batches, tokenizer=tokenizer, seed=1)
  sides = zip(read(url, 4), read(written, 4), strict=True)
  for batch, expected in itertools.islice(sides, 3):
    for name, array in expected.items():
      np.testing.assert_array_equal(batch[name], array)
  assert not read_copied(proxy)  # a later start finds the copy


@pytest.mark.parametrize("server", ["gs"], indirect=True)
def test_a_copy_that_was_stopped_goes_on_with_whole_files(bucket, url, written):
  bucket, proxy = bucket
  proxy.fail_rate = 0.1
  with contextlib.suppress(DiskError):  # after `REPEAT_SECS` of one file
    copy_rows(url)
  proxy.fail_rate, proxy.down = 0.0, True
  with pytest.raises(DiskError, match="could not be reached"):
    copy_rows(url)
  proxy.down = False
  name = "train-00000-0001.types.npy"
  data = bucket.read(f"rows/{name}")
  bucket.write(f"rows/{name}", data[:-1] + bytes([data[-1] ^ 1]))
  with contextlib.suppress(FileNotFoundError):
    shutil.rmtree(cache.folder() / "rows-copies")
  with pytest.raises(DataError, match=f"{name}: damaged or missing"):
    copy_rows(url)
  [copy] = (x for x in cache.folder().glob("rows-copies/*") if x.is_dir())
  with pytest.raises(DataError, match="is not a rows folder"):
    open_rows(copy, "train")
  bucket.delete(f"rows/{name}")
  with pytest.raises(DataError, match=f"{name}: damaged or missing"):
    copy_rows(url)
  bucket.write(f"rows/{name}", data)
  present = {x.name for x in copy.iterdir()}
  left = sorted(x.name for x in copy.glob("*.npy"))[-1]
  (copy / f"{left}.tmp").write_bytes(b"half")
  (copy / left).write_bytes(b"half")
  proxy.log.clear()
  assert copy_rows(url) == copy
  names = {x.name for x in written.glob("*-*.npy")}
  assert read_copied(proxy) == (names - present) | {left}
  assert {x.name for x in copy.iterdir()} == {x.name for x in written.iterdir()}
  verify_rows(copy)
