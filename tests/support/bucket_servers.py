"""Servers of buckets on the loopback, and the variables of their clients."""

import contextlib
import json
import os
import pathlib
import re
import urllib.parse
from collections.abc import Iterator

import fsspec
import pytest
from etils.epath import backend

PACKAGES = {
  "s3": ("s3fs", "moto", "flask_cors"),
  "gs": ("gcsfs", "gcp_storage_emulator"),
}
# Else gcsfs asks Google's servers for the kind of a bucket at each request.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")


@contextlib.contextmanager
def serve(scheme: str) -> Iterator:
  """Runs a server of "gs", an `Emulator`, or of "s3", if it is installed."""
  for package in PACKAGES[scheme]:
    pytest.importorskip(package)
  if scheme == "gs":
    from support.gcs_emulator import Emulator

    with Emulator() as emulator:
      yield emulator
    return
  from moto.server import ThreadedMotoServer

  server = ThreadedMotoServer("127.0.0.1", 0)
  server.start()
  _, server.port = server.get_host_and_port()
  try:
    yield server
  finally:
    server.stop()


def environment(scheme: str, port: int) -> dict[str, str]:
  """Returns variables for all clients of a scheme, and nobody's credentials.

  Args:
    scheme: "gs" or "s3".
    port: of a server on this machine.
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


def assert_same_run(bucket, prefix: str, local: pathlib.Path) -> None:
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


def assert_only_own_files_were_deleted(bucket, prefix: str) -> None:
  """Asserts that clients deleted nothing but steps and results of a run."""
  deleted = [x.target for x in bucket.log if x.kind == "delete"]
  names = r"checkpoints%2F\d+(%2F|\b)|(results|cases)\.json"
  own = re.compile(urllib.parse.quote(prefix, safe="") + f"({names})", re.I)
  assert deleted
  assert [x for x in deleted if not own.search(x)] == []


def connect(monkeypatch, scheme: str, port: int) -> None:
  """Lets the clients of this process use a server."""
  monkeypatch.delenv("AWS_PROFILE", raising=False)
  for name, value in environment(scheme, port).items():
    monkeypatch.setenv(name, value)
  fsspec.get_filesystem_class(scheme).clear_instance_cache()
  backend.fsspec_backend._get_filesystem.cache_clear()
