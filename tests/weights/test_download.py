"""Downloads with the hub's real client from a local server."""

import errno
import pathlib
import re

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from support import hub_stand_in
from truenegs_jax.runtime.errors import DiskError, InputError
from truenegs_jax.weights import find

NAME = "swans/mute-small"
VOCABULARY = {
  "config.json": b"{}",
  "vocab.txt": b"[PAD]\nswan\n",
}
SAFE = {**VOCABULARY, "model.safetensors": b"safe"}
FLAX = {**VOCABULARY, "flax_model.msgpack": b"flax"}
PICKLED = {**VOCABULARY, "pytorch_model.bin": b"pickled"}
# Files that must not be requested.
UNWANTED = {"README.md": b"", "tf_model.h5": b"", "onnx/model.onnx": b""}


@pytest.fixture(scope="module")
def server():
  with hub_stand_in.HubServer() as server:
    yield server
    server.shutdown()


@pytest.fixture
def stand_in(server, monkeypatch, tmp_path):
  """Makes the client use an empty local hub and an empty cache."""
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
  server.hub = hub_stand_in.Hub()
  with hub_stand_in.connect(server, monkeypatch):
    yield server.hub


def download(name=NAME):
  """Returns the content of each downloaded file by name."""
  folder = find.download(name, report=lambda _: None)
  return {f.name: f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def error_message(name=NAME, kind=InputError):
  with pytest.raises(kind) as caught:
    find.download(name, report=lambda _: None)
  message = str(caught.value)
  assert message.startswith("init: ") and repr(name.split("@")[0]) in message
  assert "secret" not in message
  return message


@pytest.mark.parametrize(
  ("files", "unused"),
  [(SAFE, FLAX | PICKLED), (FLAX, PICKLED), (PICKLED, {})],
  ids=["safetensors", "flax", "a pickle alone"],
)
def test_downloads_only_needed_files(stand_in, monkeypatch, files, unused):
  stand_in.models[NAME] = {"main": {**unused, **UNWANTED, **files}}
  assert download() == files
  unwanted = {*UNWANTED, *unused} - set(files)
  assert not [r for r in stand_in.requests if r.endswith(tuple(unwanted))]
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  stand_in.requests.clear()
  assert download() == files and not stand_in.requests


@pytest.mark.parametrize("revision", ["v2", "refs/pr/3"])
def test_downloads_the_revision_after_the_at_sign(stand_in, revision):
  other = {**SAFE, "model.safetensors": b"other"}
  stand_in.models[NAME] = {"main": SAFE, revision: other}
  assert download(f"{NAME}@{revision}") == other
  assert download() == SAFE


@pytest.mark.parametrize(
  "files", [VOCABULARY, {"model.safetensors": b"safe"}], ids=str
)
def test_a_model_without_weights_or_config_is_refused(stand_in, files):
  stand_in.models[NAME] = {"main": files}
  message = error_message()
  assert "config.json" in message and "pytorch_model.bin" in message


@pytest.mark.parametrize("cached", [[], ["config.json"]])
def test_offline_error_suggests_a_folder(stand_in, monkeypatch, cached):
  stand_in.models[NAME] = {"main": SAFE}
  for file in cached:
    huggingface_hub.hf_hub_download(NAME, file)
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  message = error_message()
  assert "--config.init=FOLDER" in message and "HF_HOME" in message


@pytest.mark.parametrize(
  ("url_part", "response", "expected"),
  [
    ("/api/", (404, "RepoNotFound"), "RepositoryNotFoundError.*HTTP 404"),
    ("/api/", (404, "RevisionNotFound"), "RevisionNotFoundError.*HTTP 404"),
    ("/resolve/", (403, "GatedRepo"), "request access"),
    ("/api/", (500, ""), "HTTP 500"),
  ],
)
def test_http_errors_are_explained(stand_in, url_part, response, expected):
  name = f"{NAME}@v2"
  stand_in.models[NAME] = {"v2": SAFE}
  stand_in.refusals[url_part] = response
  message = error_message(name)
  fix = "--config.init=FOLDER" if response[0] == 500 else "set HF_TOKEN"
  assert re.search(expected, message) and fix in message
  stand_in.refusals.clear()
  assert download(name) == SAFE


@pytest.mark.parametrize(
  "error",
  [
    RuntimeError("writer: No space left on device (os error 28)"),
    PermissionError(errno.EACCES, "Permission denied"),
  ],
  ids=lambda error: type(error).__name__,
)
def test_unwritable_cache_raises_disk_error(stand_in, monkeypatch, error):
  def fail(*_, **__):
    raise error

  monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
  cache = pathlib.Path(constants.HF_HUB_CACHE)
  assert str(cache) in error_message(kind=DiskError)


def test_error_text_with_a_token_is_not_shown(stand_in, monkeypatch):
  def fail(*_, **__):
    raise errors.LocalEntryNotFoundError("hf_secret") from OSError("hf_secret")

  monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
  assert "OSError" in error_message()


def test_is_model_name():
  valid = ["bert", "google/electra-small", "a/b@main", "a/b@refs/pr/3", "a.b/c"]
  valid += ["a/b@v1.0", "a/b@feature/x--y", "x" * 40 + "/y_z"]
  assert [name for name in valid if not find.is_model_name(name)] == []
  invalid = ["", "/a", "a/b/c", "../a", "a/..", "./a", "a/", ".a", "-a/b"]
  invalid += ["~/a", "a--b", "a..b", "a/b@", "a@../b", "a@b/../c", "ä/b", "a,b"]
  invalid += ["a b", "a/b-", "a/bäb", "a\n", "a@/b", "a/b@c/"]
  assert [name for name in invalid if find.is_model_name(name)] == []
