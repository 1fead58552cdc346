"""Tests the servers of buckets and the proxy that other tests rely on."""

import concurrent.futures
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid

import fsspec
import numpy as np
import pytest
import tensorstore as ts
from etils import epath

from support import bucket_servers, runs

pytestmark = [
  pytest.mark.slow,
  pytest.mark.filterwarnings("ignore:Sending a large body"),
]


@pytest.fixture(scope="module", params=bucket_servers.PACKAGES)
def server(request, start_server):
  """Returns a bucket of a server."""
  return start_server(request.param)


@pytest.fixture
def bucket(server, monkeypatch):
  """Yields an empty bucket and the proxy that this process's clients use."""
  with bucket_servers.connect_empty(monkeypatch, server) as proxy:
    yield server, proxy


only_gs = pytest.mark.parametrize("server", ["gs"], indirect=True)


def open_store(bucket, port) -> ts.KvStore:
  """Returns TensorStore's view of a bucket."""
  spec = bucket_servers.store_spec(bucket.scheme, bucket.name, port)
  retries = {"initial_delay": "10ms"}
  context = {f"{kind}_request_retries": retries for kind in ("gcs", "s3")}
  return ts.KvStore.open(spec, context=ts.Context(context)).result()


def test_all_clients_see_the_same_objects(bucket):
  bucket, proxy = bucket
  store = open_store(bucket, proxy.port)
  files, _ = fsspec.url_to_fs(bucket.url)
  large = np.random.default_rng(0).bytes(6 * 2**20)
  files.pipe(f"{bucket.name}/a/large", large)
  store.write("a/small ü%/x", b"\r\n--x\n").result()
  (epath.Path(bucket.url) / "a" / "empty").write_bytes(b"")
  bucket.write("a/b/c", b"abc")
  expected = {"a/large": large, "a/small ü%/x": b"\r\n--x\n", "a/empty": b""}
  expected["a/b/c"] = b"abc"
  assert bucket.list() == sorted(expected)
  assert sorted(x.decode() for x in store.list().result()) == sorted(expected)
  for name, data in expected.items():
    assert bucket.read(name) == data
    assert store.read(name).result().value == data
    assert files.cat(f"{bucket.name}/{name}") == data
    assert (epath.Path(bucket.url) / name).read_bytes() == data
  names = {path.name for path in (epath.Path(bucket.url) / "a").iterdir()}
  assert names == {"large", "small ü%", "empty", "b"}
  assert (
    files.cat_file(f"{bucket.name}/a/large", start=10, end=30) == large[10:30]
  )
  bucket.delete("a/b/c")
  assert store.read("a/b/c").result().state == "missing"
  with pytest.raises(KeyError):
    bucket.read("a/b/c")
  clients = {client for client, _ in proxy.counts()}
  library = {"gs": "gcsfs", "s3": "s3fs"}[bucket.scheme]
  assert clients == {library, "tensorstore"}


def test_listings_have_pages_prefixes_and_offsets(bucket):
  bucket, proxy = bucket
  store = open_store(bucket, proxy.port)
  names = sorted(f"{folder}/{i}" for folder in "abc" for i in range(7))
  for name in names:
    bucket.write(name, b"")
  assert bucket.list("b/") == names[7:14]
  key_range = ts.KvStore.KeyRange("a/3", "b/2")
  assert [key.decode() for key in store.list(key_range).result()] == [
    name for name in names if "a/3" <= name < "b/2"
  ]
  store.delete_range(key_range).result()
  assert bucket.list() == [name for name in names if not "a/3" <= name < "b/2"]


@only_gs
def test_pages_are_followed(bucket):
  bucket, proxy = bucket
  store = open_store(bucket, proxy.port)
  names = sorted(f"{i % 3}/{i}" for i in range(1200))
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda name: bucket.write(name, b""), names))
  assert [name.decode() for name in store.list().result()] == names
  assert proxy.count("list") == 2
  files = fsspec.filesystem("gs")
  assert [x.partition("/")[2] for x in files.find(bucket.name)] == names
  folders = [f"{bucket.name}/{i}" for i in range(3)]
  assert [x.rstrip("/") for x in files.ls(bucket.name, detail=False)] == folders


def race(store, key: str, generation: bytes) -> list[bytes]:
  """Returns the values of those of 8 threads that replaced a generation.

  Values differ, because the generations of S3 are checksums.
  """
  start = threading.Barrier(8)

  def write(thread: int) -> bytes:
    value = f"{thread} {uuid.uuid4()}".encode()
    start.wait()
    new = store.write(key, value, if_equal=generation).result().generation
    return value if new else b""

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    return list(filter(None, pool.map(write, range(8))))


def test_one_of_all_conditional_writes_wins(bucket):
  bucket, proxy = bucket
  store = open_store(bucket, proxy.port)
  for key in map(str, range(10)):
    for _ in range(2):  # create, then replace
      generation = store.read(key).result().stamp.generation
      assert race(store, key, generation) == [bucket.read(key)]
  generation = store.read("0").result().stamp.generation
  store.write("0", b"other").result()
  deleted = store.write("0", None, if_equal=generation).result()
  assert not deleted.generation
  assert bucket.read("0") == b"other"


def test_requests_and_bytes_are_counted(bucket):
  bucket, proxy = bucket
  store = open_store(bucket, proxy.port)
  store.write("a", bytes(1000)).result()
  store.read("a").result()
  store.list().result()
  store.write("a", None).result()
  if bucket.scheme == "gs":
    kinds = ["put", "get", "list", "delete"]
    assert [request.kind for request in proxy.log] == kinds
    assert proxy.count_classes() == (2, 1)
  for kind in ("put", "get", "list", "delete"):
    assert proxy.count(kind, "tensorstore") == 1
  assert sum(r.bytes_up for r in proxy.log if r.kind == "put") == 1000
  assert sum(r.bytes_down for r in proxy.log if r.kind == "get") == 1000


def test_failures_are_repeated_by_the_clients(bucket):
  bucket, proxy = bucket
  store = open_store(bucket, proxy.port)
  data = np.random.default_rng(0).bytes(300_000)
  proxy.fail_rate = proxy.cut_rate = 0.3
  for i in range(5):
    store.write(str(i), data).result()
    assert store.read(str(i)).result().value == data
  statuses = [request.status for request in proxy.log]
  assert {0, 200, 503} <= set(statuses)
  assert bucket.list() == list(map(str, range(5)))


def test_a_lost_answer_makes_a_conditional_write_look_refused(bucket):
  bucket, proxy = bucket
  store = open_store(bucket, proxy.port)
  absent = store.read("a").result().stamp.generation
  proxy.lose_answers = 1
  written = store.write("a", b"mine", if_equal=absent).result()
  assert bucket.read("a") == b"mine" and not written.generation


@only_gs
def test_the_end_of_an_upload_in_parts_may_be_repeated(bucket):
  bucket, proxy = bucket
  proxy.applies = lambda request: request.kind == "put part"
  proxy.lose_answers = 1
  with fsspec.open(f"{bucket.url}/a", "wb") as file:
    file.write(b"data")
  assert proxy.count("put part") == 2 and bucket.read("a") == b"data"


@only_gs
def test_faults_have_their_statuses(bucket):
  bucket, proxy = bucket
  bucket.write("a", b"a")
  url = f"http://127.0.0.1:{proxy.port}/storage/v1/b/{bucket.name}/o/a"

  def request(method="GET"):
    try:
      with urllib.request.urlopen(
        urllib.request.Request(url, method=method)
      ) as answer:
        return answer.status
    except urllib.error.HTTPError as error:
      with error:
        return error.status, error.headers["Retry-After"]

  assert request() == 200
  proxy.read_only = True
  assert request("DELETE") == (403, None) and request() == 200
  proxy.expired = True
  assert request() == (401, None)
  proxy.expired = proxy.read_only = False
  proxy.fail_rate, proxy.fail_status, proxy.retry_after = 1, 429, 7
  assert request() == (429, "7")
  proxy.applies = lambda request: request.kind == "list"
  assert request() == 200
  proxy.down = True
  with pytest.raises(OSError):
    request()
  proxy.down = False
  assert request() == 200 and bucket.read("a") == b"a"


@only_gs
def test_all_connections_share_the_link(bucket):
  bucket, proxy = bucket
  store = open_store(bucket, proxy.port)
  for name in "abcd":
    bucket.write(name, bytes(2**20))
  proxy.bytes_per_sec = 8 * 2**20
  start = time.monotonic()
  for read in [store.read(name) for name in "abcd"]:
    read.result()
  assert 0.4 < time.monotonic() - start < 5


SAVE = """
import sys
import jax
import numpy as np
import orbax.checkpoint as ocp
port, index, url = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(index))
mesh = jax.sharding.Mesh(jax.devices(), "x")
def place(array, *spec):
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
  return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)
tree = {
  "all": place(np.arange(1000, dtype="f4")),
  "parts": place(np.arange(800).reshape(80, 10), "x"),
}
options = ocp.CheckpointManagerOptions(max_to_keep=2)
with ocp.CheckpointManager(url, options=options) as manager:
  for step in (1, 2, 3):
    scaled = jax.tree.map(lambda array: array * step, tree)
    manager.save(step, args=ocp.args.StandardSave(scaled))
with ocp.CheckpointManager(url, options=options) as manager:
  assert manager.all_steps() == [2, 3]
  same = manager.restore(3, args=ocp.args.StandardRestore(tree))
  expected = jax.tree.map(lambda array: array * 3, tree)
  assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), same, expected))
"""


@only_gs
def test_orbax_saves_and_restores(bucket, tmp_path):
  bucket, proxy = bucket
  env = runs.make_environment(tmp_path, devices=2)
  env |= bucket_servers.environment("gs", proxy.port)
  port = str(runs.find_free_port())
  processes = [
    subprocess.Popen(
      [sys.executable, "-c", SAVE, port, str(i), f"{bucket.url}/run"],
      env=env,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for i in range(2)
  ]
  for code, output in runs.wait_for_all(processes):
    assert code == 0, output
  assert {name.split("/")[1] for name in bucket.list("run/")} == {"2", "3"}
  arrays = [name for name in bucket.list("run/3/") if "ocdbt.process_" in name]
  assert len({name.split("/")[3] for name in arrays}) == 2
