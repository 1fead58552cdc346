"""Servers of buckets on the loopback."""

import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator

import fsspec
import pytest
from etils.epath import backend

from support.faulty_proxy import FaultyProxy

PACKAGES = {
  "s3": ("s3fs", "moto", "flask_cors"),
  "gs": ("gcsfs", "gcp_storage_emulator"),
}
# Else gcsfs asks Google's servers for the kind of a bucket at each request.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
PROGRAMS = {"s3": "s3_emulator.py", "gs": "gcs_emulator.py"}


@contextlib.contextmanager
def serve(scheme: str) -> Iterator[int]:
  """Runs a server of `scheme`; yields its port."""
  program = pathlib.Path(__file__).with_name(PROGRAMS[scheme])
  quiet = subprocess.DEVNULL
  # The server inherits a socket that listens: no other process can take its
  # port, and requests wait until it has started.
  with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
    port = listening.getsockname()[1]
    process = subprocess.Popen(
      [sys.executable, str(program), str(listening.fileno())],
      pass_fds=[listening.fileno()],
      stdout=quiet,
      stderr=quiet,
    )
  try:
    yield port
  finally:
    process.kill()
    process.wait()


def environment(scheme: str, port: int) -> dict[str, str]:
  """Returns variables for all clients of a scheme, and nobody's credentials.

  Args:
    scheme: "gs" or "s3".
    port: of a server or a proxy on this machine.
  """
  url = f"http://127.0.0.1:{port}"
  if scheme == "gs":
    return {
      "STORAGE_EMULATOR_HOST": url,  # gcsfs and google-cloud-storage
      "TENSORSTORE_GCS_HTTP_URL": url,
      "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",  # TensorStore
      "GOOGLE_APPLICATION_CREDENTIALS": "",
      "NO_GCE_CHECK": "true",
      "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
      "EPATH_USE_TF": "0",
    }
  return {
    "AWS_ENDPOINT_URL": url,  # s3fs
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "EPATH_USE_TF": "0",
  }


@dataclasses.dataclass(frozen=True)
class Bucket:
  """A bucket of Google's emulator, reached behind the back of all clients."""

  port: int
  name: str = "bucket"

  @property
  def url(self) -> str:
    return f"gs://{self.name}"

  def create(self) -> None:
    body = json.dumps({"name": self.name}).encode()
    self._request("POST", "/storage/v1/b", body)

  def list(self, prefix: str = "") -> list[str]:
    """Returns the names of all objects that start with `prefix`."""
    prefix = urllib.parse.quote(prefix, safe="")
    path = f"/storage/v1/b/{self.name}/o?prefix={prefix}&maxResults={10**9}"
    answer = json.loads(self._request("GET", path))
    return [item["name"] for item in answer.get("items", ())]

  def read(self, name: str) -> bytes:
    """Returns the bytes of an object; raises KeyError if there is none."""
    return self._request("GET", self._locate(name) + "?alt=media")

  def write(self, name: str, data: bytes) -> None:
    name = urllib.parse.quote(name, safe="")
    path = f"/upload/storage/v1/b/{self.name}/o?uploadType=media&name={name}"
    self._request("POST", path, data)

  def upload(self, folder: pathlib.Path, name: str) -> None:
    """Copies a local folder, as gcloud does."""
    for path in folder.rglob("*"):
      if path.is_file():
        self.write(f"{name}/{path.relative_to(folder)}", path.read_bytes())

  def delete(self, name: str) -> None:
    self._request("DELETE", self._locate(name))

  def _locate(self, name: str) -> str:
    name = urllib.parse.quote(name, safe="")
    return f"/storage/v1/b/{self.name}/o/{name}"

  def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
    """Returns the answer to a request."""
    kind = "application/json" if path == "/storage/v1/b" else "binary/any"
    server = http.client.HTTPConnection("127.0.0.1", self.port)
    with contextlib.closing(server):
      server.request(method, path, body, {"Content-Type": kind})
      answer = server.getresponse()
      data = answer.read()
    if answer.status == 404:
      raise KeyError(path)
    assert answer.status < 300, (method, path, answer.status, data)
    return data


def assert_same_run(bucket: Bucket, prefix: str, local: pathlib.Path) -> None:
  """Compares a run in a bucket with a local one: files, export and losses."""
  for path in local.rglob("*"):
    name = path.relative_to(local).as_posix()
    if path.is_file() and not name.startswith(("checkpoints/", "lock")):
      data = bucket.read(prefix + name)
      is_card = path.name == "README.md"  # which has the command
      if name.startswith("export/") and not is_card:
        assert data == path.read_bytes(), name
  records = [
    [(x["step"], x["split"], x["total"]) for x in map(json.loads, lines)]
    for lines in (
      bucket.read(f"{prefix}metrics.jsonl").splitlines(),
      (local / "metrics.jsonl").read_bytes().splitlines(),
    )
  ]
  assert records[0] == records[1]


@contextlib.contextmanager
def serve_bucket() -> Iterator[Bucket]:
  """Runs Google's emulator with an empty bucket; skips without its packages."""
  for package in PACKAGES["gs"]:
    pytest.importorskip(package)
  with serve("gs") as port:
    bucket = Bucket(port)
    bucket.create()
    yield bucket


def connect(monkeypatch, scheme: str, port: int) -> None:
  """Lets the clients of this process use a server or a proxy."""
  monkeypatch.delenv("AWS_PROFILE", raising=False)
  for name, value in environment(scheme, port).items():
    monkeypatch.setenv(name, value)
  fsspec.get_filesystem_class(scheme).clear_instance_cache()
  backend.fsspec_backend._get_filesystem.cache_clear()


@contextlib.contextmanager
def connect_empty(monkeypatch, bucket: Bucket) -> Iterator[FaultyProxy]:
  """Empties a bucket, which the clients of this process reach by a proxy."""
  for name in bucket.list():
    bucket.delete(name)
  with FaultyProxy(bucket.port) as proxy:
    connect(monkeypatch, "gs", proxy.port)
    yield proxy
