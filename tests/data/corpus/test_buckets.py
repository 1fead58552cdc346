"""Tests sources in buckets, on servers of this machine."""

import asyncio
import hashlib
import http.server
import pickle

import fsspec
import numpy as np
import pytest

from support import beam_steps, bucket_servers, hub_stand_in, small_rows
from support.texts import COMPRESSORS, FORMATTERS, make_texts
from truenegs_jax.data import shards
from truenegs_jax.data.corpus import files as files_lib
from truenegs_jax.data.corpus.sources_spec import describe_sources, open_corpus
from truenegs_jax.data.prepare_rows import prepare
from truenegs_jax.data.rows import open_rows
from truenegs_jax.runtime import buckets
from truenegs_jax.runtime.errors import (
  DataError,
  DiskError,
  InputError,
  UnavailableError,
)

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body")
ENDLESS = 10**12


@pytest.fixture(scope="module", params=bucket_servers.PACKAGES)
def server(request, start_server):
  """Returns scheme and port of a server."""
  return request.param, start_server(request.param).port


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
  """Returns a scheme, an empty bucket and a proxy before its server."""
  scheme, port = server
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  sleep = asyncio.sleep
  monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))  # between retries
  proxy = bucket_servers.Proxy(port)
  bucket_servers.connect(monkeypatch, scheme, proxy.port)
  name = f"b-{abs(hash(str(tmp_path))):x}"
  fsspec.filesystem(scheme).mkdir(name)
  yield scheme, f"{scheme}://{name}", proxy
  proxy.close()


def upload(files, url) -> None:
  system, path = fsspec.url_to_fs(url)
  for name, data in files.items():
    system.pipe(f"{path}/{name}", data)


def test_buckets_give_the_documents_of_local_files(bucket, tmp_path):
  _, url, _ = bucket
  texts = make_texts(30)
  files = {
    f"wiki/t{number}{suffix}": form([f"{number} {text}" for text in texts])
    for number, (suffix, form) in enumerate(FORMATTERS.items())
  }
  files |= {
    f"wiki/sub/c.txt{suffix}": pack("\n\n".join(texts).encode())
    for suffix, pack in COMPRESSORS.items()
  }
  files |= {"wiki/.hidden.txt": b"no", "wiki/sub/._a.txt": b"no"}
  files |= {"wiki/README.md": b"no", "other/a.txt": b"other"}
  upload(files, url)
  for name, data in files.items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(data)
  wheres = ["wiki", "wiki/", "wiki/t*", "wiki/sub/c.txt.[gx]z", "**/*.txt"]
  wheres += ["other/a.txt", "wiki/README.md", "wiki/t3.tsv document=block"]
  for where in wheres:
    corpus = open_corpus(f"{url}/{where}")
    local = open_corpus(f"{tmp_path}/{where}")
    assert list(corpus) == list(local) != []
    assert not corpus.is_local()
    identity = corpus.identity()
    assert identity == open_corpus(f"{url}/{where}").identity()
    pairs = zip(identity[0]["files"], local.identity()[0]["files"], strict=True)
    for remote, same in pairs:
      assert remote[:2] == same[:2] and remote[2]
  corpus = open_corpus(f"{url}/wiki")
  identity = corpus.identity()
  upload({"wiki/sub/c.txt": b"new"}, url)
  with pytest.raises(DataError, match="wiki changed while it was read"):
    corpus.check_unchanged(identity)
  assert describe_sources(f"{url}/wiki") == f"{url}/wiki"


def test_missing_buckets_and_files_are_refused(bucket):
  scheme, url, _ = bucket
  upload({"a.txt": b"a"}, url)
  for where in (f"{scheme}://no-such-bucket/a.txt", f"{url}-no/*.txt"):
    with pytest.raises(UnavailableError, match="Correct the name"):
      open_corpus(where)
  for where in (f"{url}/b.txt", f"{url}/none/*", f"{url}/none"):
    with pytest.raises(UnavailableError, match="is no file.* no glob with"):
      open_corpus(where)


HUB_FILES = {"wiki/a.txt": b"one\n\ntwo", "wiki/b/c.txt": b"three " * 1000}


def test_repositories_of_the_hub_are_read(monkeypatch):
  with (
    hub_stand_in.HubServer() as server,
    hub_stand_in.connect(server, monkeypatch),
  ):
    server.hub.models["owner/name"] = {"main": HUB_FILES}
    fsspec.get_filesystem_class("hf").clear_instance_cache()
    for where, num_texts in (("wiki", 3), ("wiki/a.txt", 2), ("**/c*", 1)):
      corpus = open_corpus(f"hf://datasets/owner/name/{where}")
      texts = ["one", "two", "three " * 1000]
      assert list(corpus) in (texts[:num_texts], texts[-num_texts:])
    checksum = hashlib.sha1(HUB_FILES["wiki/b/c.txt"]).hexdigest()
    assert corpus.identity()[0]["files"] == [["c.txt", 6000, checksum]]
    with pytest.raises(UnavailableError, match="Correct the name.* run `hf"):
      open_corpus("hf://datasets/owner/none/a.txt")
    fsspec.get_filesystem_class("hf").clear_instance_cache()


class Refuse(http.server.BaseHTTPRequestHandler):
  """Answers as Google's storage does without credentials."""

  def do_GET(self):
    message = b'{"error": {"code": 401, "message": "Anonymous caller"}}'
    self.send_response(401)
    self.send_header("Content-Length", str(len(message)))
    self.end_headers()
    self.wfile.write(message)

  def log_message(self, *args):
    pass


def test_missing_credentials_have_one_message(bucket, monkeypatch, capfd):
  scheme, url, _ = bucket
  upload({"a.txt": b"a"}, url)
  fixes = {"s3": "set AWS_ACCESS_KEY_ID and", "gs": "run `gcloud auth appl"}
  for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
    monkeypatch.delenv(name, raising=False)
  with hub_stand_in.HubServer(Refuse) as server:
    if scheme == "gs":
      bucket_servers.connect(monkeypatch, scheme, server.server_port)
    fsspec.get_filesystem_class(scheme).clear_instance_cache()
    capfd.readouterr()
    with pytest.raises(UnavailableError, match=fixes[scheme]) as error:
      open_corpus(f"{url}/a.txt")
  assert "\n" not in str(error.value) and len(str(error.value)) < 600
  assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz", "t.zst", "t.parquet"])
def test_dropped_connections_are_repeated_or_refused(bucket, name, capfd):
  _, url, proxy = bucket
  rng = np.random.default_rng(0)
  texts = [rng.bytes(6_000).hex() for _ in range(1_000)]
  if name == "t.parquet":
    data = FORMATTERS[".parquet"](texts)
  else:
    suffix = name.removeprefix("t").removeprefix(".txt")
    data = COMPRESSORS[suffix]("\n\n".join(texts).encode())
  upload({name: data}, url)
  corpus = open_corpus(f"{url}/{name}")
  proxy.bytes_left = len(data) * 2 // 3
  assert list(corpus) == texts
  assert proxy.bytes_left > ENDLESS // 2, "nothing was dropped"
  proxy.bytes_left, proxy.next_left = len(data) * 2 // 3, 0
  capfd.readouterr()
  with pytest.raises(UnavailableError, match="run the same comm") as error:
    list(corpus)
  assert "\n" not in str(error.value) and f"{url}/{name}" in str(error.value)
  assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("server", ["gs"], indirect=True)
def test_preparations_go_on_after_a_dropped_connection(
  bucket, tmp_path, monkeypatch
):
  _, url, proxy = bucket
  monkeypatch.setattr(shards, "CHUNK_CHARACTERS", 2**16)
  monkeypatch.setattr(shards, "SHARD_CHUNKS", 4)
  monkeypatch.setattr(files_lib, "REQUEST_BYTES", 2**16)
  data = "\n\n".join(make_texts(20_000)).encode()
  upload({"t.txt": data}, url)
  options = {"length": 32, "vocab_size": 60}
  local = tmp_path / "t.txt"
  local.write_bytes(data)
  expected, _ = prepare(str(local), **options, rows=str(tmp_path / "local"))
  vocab = str(expected / "vocab.txt")
  options |= {"vocab": vocab, "rows": str(tmp_path / "rows")}
  proxy.next_left, proxy.bytes_left = 0, len(data)
  with pytest.raises(UnavailableError, match="run the same command again"):
    prepare(f"{url}/t.txt", **options)
  assert list(tmp_path.glob(".rows.unfinished/shard-*"))
  proxy.next_left = proxy.bytes_left = ENDLESS
  folder, _ = prepare(f"{url}/t.txt", **options)
  for split in ("train", "held_out"):
    rows, same = open_rows(folder, split), open_rows(expected, split)
    assert len(rows) == len(same)
    everything = np.arange(len(rows))
    for name, array in rows.take(everything).items():
      np.testing.assert_array_equal(array, same.take(everything)[name])


@pytest.mark.parametrize(
  "url, message",
  [
    ("s3://b/a.txt", r"pip install '\.\[s3\]'"),
    ("gs://b/*.txt", r"pip install '\.\[gcs\]'"),
  ],
)
def test_missing_packages_are_named(monkeypatch, url, message):
  def refuse(url):
    raise ImportError("missing")

  monkeypatch.setattr(fsspec, "url_to_fs", refuse)
  with pytest.raises(InputError, match=message):
    open_corpus(url)


@pytest.mark.slow
def test_an_engine_may_keep_its_rows_in_a_bucket(bucket, tmp_path, monkeypatch):
  for module, name, value in beam_steps.SMALL:
    monkeypatch.setattr(module, name, value)
  monkeypatch.setattr(buckets, "REPEAT_SECS", 0.5)
  _, url, proxy = bucket
  sources = small_rows.write_sources(tmp_path)
  upload({"t/one.txt": (tmp_path / "one.txt").read_bytes()}, url)
  sources = sources.replace(f"{tmp_path}/one.txt", f"{url}/t/*.txt")
  expected = small_rows.prepare_files(sources, tmp_path / "plain")
  num_built = 0

  def build(steps):
    nonlocal num_built
    for step in steps:
      for item in pickle.loads(pickle.dumps(step)).list_items():
        pickle.loads(pickle.dumps(step)).function(item)
        num_built += isinstance(item, shards.ChunkRange)
        if num_built == 2:
          proxy.next_left, proxy.bytes_left = 0, 0

  rows, store = tmp_path / "rows", f"{url}/store"
  with pytest.raises((DiskError, UnavailableError), match="be reached"):
    small_rows.prepare_files(sources, rows, build, store)
  assert not rows.exists()
  proxy.next_left = proxy.bytes_left = ENDLESS
  assert small_rows.prepare_files(sources, rows, build, store) == expected
  num_shards = sum("train" in name for name in expected) // 3
  assert num_built == num_shards  # none was built twice
  assert not fsspec.url_to_fs(store)[0].find(store)  # nothing is left


@pytest.mark.parametrize("store", ["bucket/folder", "hf://datasets/a/b", "{}x"])
def test_a_store_that_cannot_be_written_is_refused(bucket, tmp_path, store):
  sources = small_rows.write_sources(tmp_path)
  store, rows = store.format(bucket[1]), tmp_path / "rows"
  with pytest.raises((InputError, UnavailableError), match=store):
    small_rows.prepare_files(sources, rows, lambda _: None, store)
  assert not rows.exists()
