"""Weights from the hub, through its real client and a server of our own."""

import errno
import json
import pathlib

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from support import hub_stand_in
from truenegs_jax.runtime.errors import DiskError, InputError
from truenegs_jax.weights.formats import hf_hub

NAME = "swans/mute-small"
PULL = "refs/pr/8"
BOTS = hub_stand_in.thread(NAME, 8)
VOCABULARY = {"config.json": b"{}", "vocab.txt": b"[PAD]\nswan\n"}
PICKLED = {**VOCABULARY, "pytorch_model.bin": b"pickled", "tf_model.h5": b"h5"}
SAFE = {**VOCABULARY, "model.safetensors": b"safe"}
CONVERTED = {**PICKLED, **SAFE}
SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
INDEX = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
SHARDED = {
  **VOCABULARY,
  "model.safetensors.index.json": json.dumps(INDEX).encode(),
  **{shard: shard.encode() for shard in SHARDS},
}
# Nothing but what is needed may be asked for.
UNWANTED = {"README.md": b"", "flax_model.msgpack": b"", "onnx/model.onnx": b""}


@pytest.fixture(scope="module")
def server():
  with hub_stand_in.HubServer() as server:
    yield server
    server.shutdown()


@pytest.fixture
def stand_in(server, monkeypatch, tmp_path):
  """The hub, empty, as the one that the client knows; its cache is empty."""
  template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
  monkeypatch.setattr(constants, "ENDPOINT", server.url)
  monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
  monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
  monkeypatch.setenv("NO_PROXY", "127.0.0.1")
  monkeypatch.setenv("HF_TOKEN", "hf_secret")
  huggingface_hub.close_session()  # it knows proxies from when it was opened
  server.hub = hub_stand_in.Hub()
  yield server.hub
  huggingface_hub.close_session()


@pytest.fixture
def go_offline(stand_in, monkeypatch):
  def go():
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    stand_in.requests.clear()

  return go


def fetch(name=NAME):
  """What is fetched, name -> content, and what was said."""
  said = []
  folder = hf_hub.fetch(name, say=said.append)
  found = {f.name: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
  return found, said


def refused(name=NAME, kind=InputError):
  with pytest.raises(kind) as caught:
    hf_hub.fetch(name, say=lambda _: None)
  message = str(caught.value)
  assert message.startswith("init: ") and repr(name.split("@")[0]) in message
  assert "secret" not in message
  return message


def never_asked_for(stand_in, *suffixes):
  asked = [r for r in stand_in.requests if r.endswith(suffixes)]
  assert stand_in.requests and not asked


@pytest.mark.parametrize("files", [SAFE, SHARDED], ids=["one", "shards"])
def test_only_what_is_read_is_downloaded(stand_in, go_offline, files):
  stand_in.models[NAME] = {"main": {**files, **PICKLED, **UNWANTED}}
  found, said = fetch()
  assert found == files
  never_asked_for(stand_in, ".bin", ".h5", ".msgpack", ".onnx", ".md")
  (line,) = said
  assert NAME in line and " MB" in line
  assert fetch() == (files, [])  # all there: nothing to say
  go_offline()
  assert fetch()[0] == files
  assert not stand_in.requests


@pytest.mark.parametrize("revision", ["v2", "refs/pr/3"])
def test_a_revision_is_asked_for_behind_an_at(stand_in, go_offline, revision):
  stand_in.models[NAME] = {
    "main": SAFE,
    revision: {**SAFE, "model.safetensors": b"other"},
  }
  for _ in range(2):
    found, _ = fetch(f"{NAME}@{revision}")
    assert found["model.safetensors"] == b"other"
    go_offline()
  assert "HF_HOME" in refused()  # main is another one


def test_the_bots_conversion_stands_in_for_pickled_weights(
  stand_in, go_offline
):
  stand_in.models[NAME] = {"main": {**PICKLED, "README.md": b"new"}}
  stand_in.models[NAME] |= {PULL: CONVERTED, "refs/pr/9": CONVERTED}
  others = hub_stand_in.thread(NAME, 9, author="somebody")
  stand_in.threads[NAME] = [others, BOTS]
  stand_in.authors = [hf_hub.BOT]
  found, said = fetch()
  assert found == SAFE
  assert any("SFconvertbot" in line and PULL in line for line in said)
  go_offline()
  assert fetch()[0] == SAFE
  assert not stand_in.requests


@pytest.mark.parametrize(
  "thread",
  [
    {"author": "somebody"},
    {"title": "Adding weights"},
    {"isPullRequest": False},
    {"status": "closed"},
    {"num": 9},  # of other pickled weights
    {"num": 10},  # without safetensors
    {},  # there is none
  ],
  ids=str,
)
def test_no_other_pull_request_is_taken(stand_in, thread):
  stand_in.models[NAME] = {
    "main": PICKLED,
    PULL: CONVERTED,
    "refs/pr/9": {**CONVERTED, "pytorch_model.bin": b"older"},
    "refs/pr/10": PICKLED,
  }
  stand_in.config = {"architectures": ["SwanForPreTraining"]}
  stand_in.authors = [hf_hub.BOT]
  if thread:
    stand_in.threads[NAME] = [hub_stand_in.thread(NAME, **{"num": 8} | thread)]
  message = refused()
  convert = f'SwanForPreTraining.from_pretrained("{NAME}").save_pretrained('
  for part in ("pytorch_model.bin", convert, "--config.init=FOLDER", "TF1"):
    assert part in message
  never_asked_for(stand_in, ".bin", ".h5", ".safetensors")


@pytest.mark.parametrize(
  "authors",
  [["somebody", hf_hub.BOT], ["somebody"], [hf_hub.BOT, "somebody"], []],
)
def test_what_others_push_to_the_bots_request_is_not_taken(stand_in, authors):
  stand_in.models[NAME] = {"main": PICKLED, PULL: CONVERTED}
  stand_in.threads[NAME] = [BOTS]
  stand_in.authors = authors
  refused()
  never_asked_for(stand_in, ".bin", ".safetensors")
  stand_in.authors = [hf_hub.BOT]
  assert fetch()[0] == SAFE


def test_the_bots_conversion_is_of_the_main_branch_alone(stand_in):
  stand_in.models[NAME] = {"v2": PICKLED, "main": PICKLED, PULL: CONVERTED}
  stand_in.threads[NAME], stand_in.authors = [BOTS], [hf_hub.BOT]
  assert 'revision="v2"' in refused(f"{NAME}@v2")


def test_a_hub_without_discussions_has_no_conversions(stand_in):
  stand_in.models[NAME] = {"main": PICKLED, PULL: CONVERTED}
  stand_in.refusals["/discussions"] = (403, "")
  assert "pytorch_model.bin" in refused()


def test_a_model_of_another_library_is_no_network(stand_in):
  stand_in.models[NAME] = {"main": {"model.safetensors": b"safe"}}
  assert "config.json" in refused()
  never_asked_for(stand_in, ".safetensors")


@pytest.mark.parametrize(
  "cached",
  [
    [],
    ["vocab.txt"],  # as data.vocab=NAME leaves it
    ["config.json", "vocab.txt"],
    ["config.json", "model.safetensors.index.json", SHARDS[0]],
    ["model.safetensors.index.json", *SHARDS],
  ],
  ids=["nothing", "vocabulary", "no weights", "a shard", "no config"],
)
def test_what_is_not_whole_in_the_cache_is_not_taken(
  stand_in, go_offline, cached
):
  stand_in.models[NAME] = {"main": SHARDED}
  for file in cached:
    huggingface_hub.hf_hub_download(NAME, file)
  go_offline()
  message = refused()
  assert "--config.init=FOLDER" in message and "HF_HOME" in message
  assert not stand_in.requests


def test_a_rest_is_downloaded(stand_in):
  stand_in.models[NAME] = {"main": SAFE}
  huggingface_hub.hf_hub_download(NAME, "vocab.txt")
  found, said = fetch()
  assert found == SAFE and len(said) == 1


@pytest.mark.parametrize(
  ("piece", "answer", "expected"),
  [
    ("/api/", (404, "RepoNotFound"), "no model"),
    ("/api/", (401, ""), "no model"),
    ("/api/", (404, "RevisionNotFound"), "no branch, tag or commit 'v2'"),
    ("/resolve/", (403, "GatedRepo"), "ask for access"),
    ("/api/", (403, ""), "ask for access"),
    ("/api/", (500, ""), "HTTP 500"),
  ],
)
def test_a_refusal_is_told_apart(stand_in, piece, answer, expected):
  name = f"{NAME}@v2"
  stand_in.models[NAME] = {"v2": SAFE}
  stand_in.refusals[piece] = answer
  message = refused(name)
  assert expected in message
  assert "--config.init=FOLDER" in message and "HF_HOME" in message
  stand_in.refusals.clear()
  fetch(name)
  stand_in.refusals[piece] = answer
  found, said = fetch(name)  # what is in the cache is not lost to us
  assert found == SAFE
  assert piece != "/api/" or "cache" in said[0]


def test_a_name_that_nobody_has(stand_in):
  assert "no model" in refused("swans/black")


def test_a_hub_that_does_not_answer_is_not_waited_for(stand_in, monkeypatch):
  stand_in.models[NAME] = {"main": SAFE}
  stand_in.delay = 0.5
  monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.1)
  assert "Timeout" in refused()


def test_no_hub_at_all(stand_in, monkeypatch):
  nowhere = "http://127.0.0.1:9"
  monkeypatch.setattr(constants, "ENDPOINT", nowhere)
  assert "ConnectError" in refused()


@pytest.mark.parametrize(
  "error",
  [
    OSError(errno.ENOSPC, "No space left on device"),
    RuntimeError("writer: No space left on device (os error 28)"),
    PermissionError(errno.EACCES, "Permission denied"),
  ],
  ids=lambda error: type(error).__name__,
)
def test_a_cache_that_cannot_be_written(stand_in, monkeypatch, error):
  def fail(*_, local_files_only=False, **__):
    kind = errors.LocalEntryNotFoundError
    raise kind("") if local_files_only else error

  stand_in.models[NAME] = {"main": SAFE}
  monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
  cache = pathlib.Path(constants.HF_HUB_CACHE)
  assert str(cache) in refused(kind=DiskError)


def test_names():
  names = ["bert", "google/electra-small", "a/b@main", "a/b@refs/pr/3", "a.b/c"]
  names += ["a/b@v1.0", "a/b@feature/x--y", "x" * 40 + "/y_z"]
  assert [name for name in names if not hf_hub.is_name(name)] == []
  others = ["", "/a", "a/b/c", "../a", "a/..", "./a", "a/", ".a", "-a/b", "a b"]
  others += ["~/a", "a--b", "a..b", "a/b@", "a@../b", "a@b/../c", "ä/b", "a,b"]
  others += ["a/b-", "a/bäb", "a\n", "a@/b", "a/b@c/"]
  assert [name for name in others if hf_hub.is_name(name)] == []
