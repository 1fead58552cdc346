"""Uploads of exports with the hub's real client to a local server."""

import functools

import pytest
from huggingface_hub import ModelCard, constants

from support import hub_stand_in, hub_uploads, tiny
from support.weight_files import TOKENIZER, random_params, run_export
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError, UnavailableError
from truenegs_jax.weights.export import model_card, pretrained

# Of the client, about its own code for uploads without Xet.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=")
REFUSED, FAILED = InputError.exit_code, UnavailableError.exit_code


@pytest.fixture(scope="module")
def server():
  with hub_stand_in.HubServer(hub_uploads.Handler) as server:
    yield server
    server.shutdown()


@pytest.fixture
def hub(server, monkeypatch):
  server.hub = hub_uploads.Hub()
  monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
  with hub_stand_in.connect(server, monkeypatch):
    yield server.hub


def _write(output, model):
  origin = model_card.ModelOrigin()
  pretrained.export_model(
    model, random_params(model), TOKENIZER, output, origin=origin
  )
  return output


@pytest.fixture
def pair(tmp_path, no_torch):
  return _write(tmp_path / "pair", tiny.make_model())


def _read(folder):
  return {x.name: x.read_bytes() for x in folder.iterdir()}


def _push(output, name, *words):
  return run_export(f"--output={output}", f"--push={name}", *words)


def _error(capsys):
  error = capsys.readouterr().err
  (line,) = [x for x in error.splitlines() if x.startswith("error: ")]
  assert "Traceback" not in error and "secret" not in error
  return line


def test_a_pair_becomes_two_models_with_the_same_bytes(hub, pair, capsys):
  (pair / "discriminator" / "notes.txt").write_text("mine")
  expected = {
    f"lake/mute-{role}": _read(pair / role)
    for role in ("discriminator", "generator")
  }
  del expected["lake/mute-discriminator"]["notes.txt"]
  assert _push(pair, "lake/mute", "--private") == 0
  assert hub.models == expected and hub.commits == list(expected)
  assert set(hub.visibility.values()) == {"private"}
  printed = capsys.readouterr().out
  assert all(f"/{name}\n" in printed for name in expected)

  assert _push(pair, "lake/mute") == 0  # changes nothing
  assert hub.models == expected and len(hub.commits) == 2


def test_bert_and_single_models_get_the_name(hub, pair, tmp_path):
  model = pretrain.make_bert(vocab_size=tiny.V, variant="tiny")
  bert = _write(tmp_path / "bert", model)
  assert _push(bert, "mute") == 0
  assert _push(pair / "generator", "lake/fills") == 0
  assert hub.models == {
    f"{hub_uploads.USER}/mute": _read(bert / "bert"),
    "lake/fills": _read(pair / "generator"),
  }
  assert set(hub.visibility.values()) == {None}


def test_an_export_is_pushed_with_its_license(hub, pair, tmp_path, capsys):
  output = tmp_path / "again"
  words = f"--init={pair}", f"--output={output}", "--license=cc-by-4.0"
  assert run_export(*words) == 0
  assert not hub.requests
  assert run_export(*words, "--push=lake/mute") == 0
  assert hub.models["lake/mute-generator"] == _read(output / "generator")
  card = ModelCard.load(output / "generator" / "README.md")
  assert card.data.license == "cc-by-4.0"
  assert card.data.pipeline_tag == "fill-mask"


def test_license_changes_only_its_line_of_a_finished_card(pair):
  before = _read(pair / "generator")
  assert run_export(f"--output={pair}", "--license=mit") == 0
  after = _read(pair / "generator")
  assert sorted(set(before["README.md"].split(b"\n"))) == sorted(
    set(after["README.md"].replace(b": mit\n", b": unknown\n").split(b"\n"))
  )
  assert before | {"README.md": after["README.md"]} == after


@pytest.mark.parametrize(
  ("changed", "expected"),
  [
    ({"role": "read"}, "may only read"),
    ({"failures": {"whoami": 401}}, "hf auth login"),
  ],
)
def test_a_token_is_checked_before_the_export(
  hub, pair, tmp_path, capsys, changed, expected
):
  for name, value in changed.items():
    setattr(hub, name, value)
  words = f"--init={pair}", f"--output={tmp_path / 'new'}", "--push=lake/mute"
  assert run_export(*words) == REFUSED
  assert expected in _error(capsys)
  assert hub.requests == ["GET /api/whoami-v2"]
  assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
  ("name", "token", "offline", "expected"),
  [
    ("a/b/c", "x", False, "--push='a/b/c' is no name"),
    ("mute", None, False, "hf auth login"),
    ("mute", "x", True, "HF_HUB_OFFLINE"),
  ],
)
def test_refusals_without_a_request(
  hub, pair, monkeypatch, capsys, name, token, offline, expected
):
  monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
  assert _push(pair, name) == REFUSED
  assert expected in _error(capsys) and not hub.requests


@pytest.mark.parametrize("part", ["repos/create", "/preupload/", "/commit/"])
@pytest.mark.parametrize(
  ("status", "code"), [(401, REFUSED), (403, REFUSED), (503, FAILED)]
)
def test_a_failed_push_keeps_the_export_and_can_be_repeated(
  hub, pair, capsys, part, status, code
):
  _assert_repeatable(hub, pair, capsys, {part: status}, code)


@pytest.mark.parametrize("part", ["whoami", "repos/create", "lfs", "/blobs/"])
def test_a_dropped_connection_ends_in_one_line(hub, pair, capsys, part):
  _assert_repeatable(hub, pair, capsys, {part: 0}, FAILED)


def _assert_repeatable(hub, pair, capsys, failures, code):
  read = functools.partial(
    map, _read, (pair / "discriminator", pair / "generator")
  )
  before, hub.failures = list(read()), failures
  assert _push(pair, "lake/mute") == code
  error = _error(capsys)
  assert not any(hub.models.values()) and not hub.commits
  if "whoami" not in failures:
    assert f"export --output={pair} --push=lake/mute" in error
  hub.failures = {}
  assert _push(pair, "lake/mute") == 0
  assert list(read()) == before == list(hub.models.values())


def test_private_refuses_a_model_that_is_public(hub, pair, capsys):
  assert _push(pair / "generator", "lake/mute") == 0
  (pair / "generator" / "README.md").write_text("secret plans")
  assert _push(pair / "generator", "lake/mute", "--private") == REFUSED
  assert "lake/mute exists and is public" in _error(capsys)
  assert len(hub.commits) == 1


def test_the_second_push_completes_a_pair(hub, pair, capsys):
  hub.failures = {"mute-generator/commit": 503}
  assert _push(pair, "lake/mute") == FAILED
  assert "'lake/mute-generator' was not uploaded (HTTP 503" in _error(capsys)
  assert hub.commits == ["lake/mute-discriminator"]
  hub.failures = {}
  assert _push(pair, "lake/mute") == 0
  assert hub.commits == ["lake/mute-discriminator", "lake/mute-generator"]


def test_an_unreachable_hub_ends_in_one_line(hub, pair, monkeypatch, capsys):
  monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
  assert _push(pair, "lake/mute") == FAILED
  assert "does not answer (ConnectError" in _error(capsys)


def test_a_refused_card_is_quoted(hub, pair, monkeypatch, capsys):
  monkeypatch.setitem(hub.failures, "/validate-yaml", 400)
  assert _push(pair, "lake/mute") == REFUSED
  assert "Invalid metadata in README.md" in _error(capsys)


def test_damaged_or_incomplete_exports_are_refused(hub, pair, capsys):
  with (pair / "generator" / "model.safetensors").open("ab") as file:
    file.write(b"x")
  assert _push(pair, "lake/mute") == REFUSED
  assert "differs from its checksum" in _error(capsys)
  (pair / "generator" / "config.json").unlink()
  assert _push(pair, "lake/mute") == REFUSED
  assert "no finished export: it lacks config.json" in _error(capsys)
  assert _push(pair.parent, "lake/mute") == REFUSED
  assert not hub.models


@pytest.mark.parametrize(
  "words",
  [
    ["--init=a", "--output=b", "--private"],
    ["--output=b", "--push=c", "--dtype=bfloat16"],
    ["--output=b", "--push=c", "--step=3"],
    ["--push=c"],
    ["--output=b", "--license=Apache 2.0"],
  ],
)
def test_conflicting_flags_are_refused(hub, words, capsys):
  assert run_export(*words) == REFUSED
  assert "--" in _error(capsys) and not hub.requests
