"""Locations of weights: folders, pairs, runs, and names on the hub.

Downloads are made by the hub's real client from a local server.
"""

import errno
import time
from concurrent.futures import ThreadPoolExecutor

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from support import hub_stand_in, tiny
from support.weight_files import (
  TOKENIZER,
  assert_same_tree,
  load_params,
  random_params,
  write_export,
  write_run,
)
from truenegs_jax.configs import electra_small
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.weights import find, load, match
from truenegs_jax.workdir import files
from truenegs_jax.workdir.saved_model import build_model

NAME = "swans/mute-small"
VOCABULARY = {"config.json": b"{}", "vocab.txt": b"[PAD]\nswan\n"}
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
def hub(server, monkeypatch, tmp_path):
  """Makes the client use an empty local hub and an empty cache."""
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
  server.hub = hub_stand_in.Hub()
  with hub_stand_in.connect(server, monkeypatch):
    yield server.hub


class SlowBucket:
  """A folder in a bucket; remembers the names of the files that are read."""

  def __init__(self, path, reads):
    self.path = path
    self.name = path.name
    self.reads = reads

  def __truediv__(self, name):
    return SlowBucket(self.path / name, self.reads)

  def exists(self):
    return self.path.exists()

  def find(self):
    return {x.name: x.stat().st_size for x in self.path.iterdir()}

  def read_bytes(self):
    self.reads.append(self.name)
    time.sleep(0.05)
    return self.path.read_bytes()


def test_of_several_processes_one_copies_from_a_bucket(tmp_path, monkeypatch):
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  folder = write_export(tmp_path / "weights", tiny.make_bert())
  bucket = SlowBucket(folder / "bert", [])
  with ThreadPoolExecutor() as pool:
    opened = [*pool.map(find._open_anywhere, [bucket] * 3)]
  assert len(opened) == 3
  assert bucket.reads.count("model.safetensors") == 1


def _download(name=NAME):
  """Returns the content of each downloaded file by name."""
  folder = find.download(name, report=lambda _: None)
  return {f.name: f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize(
  ("files", "unused"),
  [(SAFE, FLAX | PICKLED), (FLAX, PICKLED), (PICKLED, {})],
  ids=["safetensors", "flax", "a pickle alone"],
)
def test_downloads_only_needed_files(hub, monkeypatch, files, unused):
  other = {**SAFE, "model.safetensors": b"other"}
  complete = {**unused, **UNWANTED, **files}
  hub.models[NAME] = {"main": complete, "refs/pr/3": other}
  assert _download(f"{NAME}@refs/pr/3") == other
  assert _download() == files
  unwanted = {*UNWANTED, *unused} - set(files)
  assert not [r for r in hub.requests if r.endswith(tuple(unwanted))]
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  hub.requests.clear()
  assert _download() == files and not hub.requests


def _fail(error):
  def fail(*_, **__):
    raise error

  return {"snapshot_download": fail}


# Case -> answers of the hub by part of a URL, what is replaced in the hub's
# client, and a word of the message.
REFUSALS = {
  "no revision": (
    {"/api/": (404, "RevisionNotFound")},
    {},
    "RevisionNotFoundError",
  ),
  "gated": ({"/resolve/": (403, "GatedRepo")}, {}, "GatedRepoError"),
  "offline": ({}, {"constants.HF_HUB_OFFLINE": True}, ""),
  "no room": ({}, _fail(PermissionError(errno.EACCES, "x")), "PermissionError"),
  "token": ({}, _fail(errors.LocalEntryNotFoundError("hf_secret")), "LocalEnt"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_says_what_to_do_and_shows_no_token(hub, monkeypatch, case):
  hub.models[NAME] = {"v2": SAFE}
  answers, replaced, word = REFUSALS[case]
  hub.refusals.update(answers)
  if case == "offline":  # with a part of the model in the cache
    huggingface_hub.hf_hub_download(NAME, "config.json", revision="v2")
  with monkeypatch.context() as patch:
    for name, value in replaced.items():
      patch.setattr(f"huggingface_hub.{name}", value)
    with pytest.raises(InputError, match="^init: ") as caught:
      find.download(f"{NAME}@v2", report=lambda _: None)
  message = str(caught.value)
  assert "secret" not in message
  for words in (repr(NAME), "HF_TOKEN", "--config.init=FOLDER", word):
    assert words in message
  hub.refusals.clear()
  assert _download(f"{NAME}@v2") == SAFE


def test_is_model_name():
  valid = ["bert", "google/electra-small", "a/b@refs/pr/3", "a/b@feature/x--y"]
  assert [name for name in valid if not find.is_model_name(name)] == []
  invalid = ["", "/a", "a/b/c", "../a", "a/..", "./a", "a/", ".a", "-a/b"]
  invalid += ["~/a", "a--b", "a/b@", "a@../b", "a@b/../c", "ä/b", "a b", "a\n"]
  assert [name for name in invalid if find.is_model_name(name)] == []


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("/home/me/my texts/*.txt weight=2, ~/b.txt", "*.txt weight=2, b.txt"),
    ("omw | vectors path=/x y/g.txt top=10", "omw | vectors path=g.txt top=10"),
    ("hf:/data/mine, ('texts/a.txt', '/b/c')", "mine, ('texts/a.txt', 'c')"),
    ("google/electra@main, /w/generator", "google/electra@main, generator"),
  ],
)
def test_folders_are_hidden(text, expected):
  assert find.hide_folders(text) == expected


def test_a_pair_is_found_in_one_folder_or_two(tmp_path):
  model = tiny.make_model(max_positions=64)
  write_export(tmp_path, model)
  generator, discriminator = (tmp_path / x for x in PAIR[::-1])
  for init in (tmp_path, f"{generator}, {discriminator}"):
    assert_same_tree(load_params(init, model)[0], random_params(model))
  alone = find.Weights(str(tmp_path)).for_roles(["discriminator"])
  assert [*alone] == ["discriminator"]
  for init, words in {
    f"{discriminator},{tmp_path}": "are both a discriminator",
    generator: "holds a generator, but .*Pass weights of a discriminator",
    tmp_path / "config.json": "there is no folder",
    tmp_path.parent: "holds no weights. Pass a folder",
  }.items():
    with pytest.raises(InputError, match=words):
      load_params(init, model)
  with pytest.raises(InputError, match="fine-tuning needs one BERT"):
    find.Weights(str(generator)).encoder()


def test_a_folder_must_hold_the_network_that_it_is_named_after(tmp_path):
  folder = write_export(tmp_path / "a", tiny.make_model())
  (folder / "generator").rename(tmp_path / "g")
  (folder / "discriminator").rename(folder / "generator")
  with pytest.raises(InputError, match="holds a discriminator, accord"):
    _ = find.Weights(str(folder)).networks
  (tmp_path / "b").mkdir()
  (tmp_path / "b" / "generator").symlink_to(tmp_path / "g")
  with pytest.raises(InputError, match="leads out"):
    _ = find.Weights(str(tmp_path / "b")).networks


PAIR = ("discriminator", "generator")
STEPS = (10, 20)


def _config(backbone):
  c = electra_small.get_config("runlocal")
  c.model.backbone = backbone
  c.generator.multiplier = 1.0
  return c


@pytest.mark.parametrize("backbone", ["encoder", "modern"])
def test_a_run_is_read_as_its_export_would_be(tmp_path, backbone):
  config = _config(backbone)
  model = build_model(config, vocab_size=tiny.V)
  params = {step: random_params(model, step) for step in STEPS}
  folder = write_run(tmp_path / "run", config, params)
  before = sorted(folder.rglob("*"))
  for path, step in (folder, 20), (folder / "checkpoints" / "10", 10):
    assert_same_tree(load_params(path, model)[0], params[step])
  assert sorted(folder.rglob("*")) == before
  with pytest.raises(CheckpointError, match="no checkpoint of step 15"):
    load_params(folder / "checkpoints" / "15", model)
  other = _config("modern" if backbone == "encoder" else "encoder")
  advice = f"model.backbone='.*Set --config.model.backbone={backbone}"
  with pytest.raises(InputError, match=advice):
    load_params(folder, build_model(other, vocab_size=tiny.V))


def test_networks_are_of_one_step_although_their_run_goes_on(tmp_path):
  config = _config("encoder")
  model = build_model(config, vocab_size=tiny.V)
  params = {step: random_params(model, step) for step in STEPS}
  folder = write_run(tmp_path / "run", config, {10: params[10]})
  networks = find.Weights(str(folder)).for_roles(model.roles)
  matched = match.match_weights(networks, model, TOKENIZER)
  networks["discriminator"].load()
  write_run(folder, config, {20: params[20]})
  loaded = load.load_params(matched, report=print)
  assert_same_tree(loaded, params[10])


def test_parse_run_path_recognizes_runs_and_their_steps(tmp_path):
  # A workdir whose path looks like a step.
  workdir = tmp_path / "checkpoints" / "2024"
  (workdir / "checkpoints").mkdir(parents=True)
  assert files.parse_run_path(workdir) == (workdir, None)
  for other in (tmp_path / "checkpoints" / "9", tmp_path / "nothing"):
    assert files.parse_run_path(other) is None
