"""Weights in buckets, on servers of this machine."""

import json

import pytest

from support import bucket_servers
from support.weight_files import assert_same_tree, run_export
from truenegs_jax.runtime import cache
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.weights import load
from truenegs_jax.weights.find import Weights
from truenegs_jax.workdir import files

pytestmark = [
  pytest.mark.slow,
  pytest.mark.filterwarnings("ignore:Sending a large body"),
]
MODEL = "export/discriminator"


@pytest.fixture
def bucket(server, monkeypatch, tmp_path, shared_pretraining):
  """Returns a bucket with a run in the folder "run"."""
  bucket_servers.connect(monkeypatch, server.scheme, server.port)
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  for name in server.list():
    server.delete(name)
  server.upload(shared_pretraining.workdir, "run")
  return server


only_gs = pytest.mark.parametrize("server", ["gs"], indirect=True)


def read(init) -> load.Pretrained:
  return load.load(str(init), report=lambda line: None)


def copies() -> int:
  """Returns the number of folders in the cache."""
  return len(list((cache.folder() / "buckets").glob("*")))


@only_gs
def test_a_run_is_read_from_its_bucket(bucket, shared_pretraining):
  for name in ("", "/", "/checkpoints/10"):
    model, params, tokenizer = read(f"{bucket.url}/run{name}")
    expected = read(f"{shared_pretraining.workdir}{name}")
    assert_same_tree(params, expected.params)
    assert (model, tokenizer) == (expected.model, expected.tokenizer)
  assert not copies()


def test_a_model_folder_is_copied_once_and_again_after_a_change(
  bucket, shared_pretraining
):
  bucket.write(f"run/{MODEL}/pytorch_model.bin", b"of another format")
  expected = read(shared_pretraining.workdir / MODEL)
  for url in (f"{bucket.url}/run/{MODEL}", f"{bucket.url}/run/{MODEL}/"):
    assert_same_tree(read(url).params, expected.params)
  assert copies() == 1
  [copied] = (cache.folder() / "buckets").iterdir()
  assert not {"README.md", "pytorch_model.bin"} & set(
    path.name for path in copied.iterdir()
  )
  sums = bucket.read(f"run/{MODEL}/SHA256SUMS")
  bucket.write(f"run/{MODEL}/SHA256SUMS", b"\n" + sums)
  read(f"{bucket.url}/run/{MODEL}")
  assert copies() == 2


def test_a_pair_of_urls(bucket, shared_pretraining):
  roles = "generator", "discriminator"
  urls = [f"{bucket.url}/run/export/{role}" for role in roles]
  expected = read(shared_pretraining.workdir / "export")
  assert_same_tree(read(", ".join(urls)).params, expected.params)


def test_exports_are_whole_when_they_are_read(bucket, no_torch, monkeypatch):
  source, output = f"{bucket.url}/run/export", f"{bucket.url}/out"
  for _ in range(2):  # an export is replaced
    assert run_export(source, f"--output={output}") == 0
  for name in (x for x in bucket.list("out/") if x.endswith("safetensors")):
    assert bucket.read(name) == bucket.read(name.replace("out", "run/export"))
  assert_same_tree(read(output).params, read(source).params)
  manifest = json.loads(bucket.read("out/generator/files.json"))
  manifest["files"]["vocab.txt"] = "0"
  for listed in (None, {"../vocab.txt": ""}, manifest["files"]):
    text = json.dumps({"files": listed}).encode()
    bucket.write("out/generator/files.json", text)
    with pytest.raises(InputError, match=r"out/generator' is incomplete"):
      read(output)
  bucket.delete("out/generator/files.json")  # as the message says
  read(output)
  bucket.write("out/files.json", json.dumps({"files": None}).encode())
  with pytest.raises(InputError, match=r"out' is incomplete"):
    read(output)


def test_errors_name_the_url(bucket, capsys):
  url = f"{bucket.url}/run/{MODEL}"
  bucket.write(f"run/{MODEL}/config.json", b"{}")
  with pytest.raises(InputError, match=f"'{url}/config.json' is not as listed"):
    read(url)
  assert run_export(url, f"--output={bucket.url}/run") == 2
  assert "does not replace: about.json" in capsys.readouterr().err


def test_other_urls_are_refused(bucket):
  bucket.write("run/notes/a.txt", b"")
  for name, message in (
    ("missing", "there is no folder"),
    ("run/checkpoints/11/x", "there is no folder"),
    ("run/notes", "holds no weights"),
    (f"run/{MODEL}/vocab.txt", "holds no weights"),
    ("run//export", "is no folder or file in a bucket"),
    ("run/notes/../export", "is no folder or file in a bucket"),
  ):
    with pytest.raises(InputError, match=message):
      _ = Weights(f"{bucket.url}/{name}").networks


def test_missing_buckets_and_runs_in_s3_are_refused(bucket, no_torch, capsys):
  url = f"{bucket.scheme}://missing/run"
  with pytest.raises(InputError, match="there is no folder"):
    _ = Weights(url).networks
  source = f"{bucket.url}/run/export"
  assert run_export(source, f"--output={url}") == 2
  assert "cannot be used" in capsys.readouterr().err
  path = open_path("url", url)
  assert not any((*path.iterdir(), *path.glob("*"), path.exists()))
  if bucket.scheme == "s3":
    assert run_export(f"{bucket.url}/run") == 2
    assert "aws s3 cp --recursive" in capsys.readouterr().err


@pytest.mark.parametrize(
  "text", ["gs:/bucket/run", "hf://owner/run", "GS://a/b"]
)
def test_other_schemes_are_refused(text):
  with pytest.raises(InputError, match="is a URL that cannot be used"):
    _ = Weights(text).networks


def test_a_vocabulary_is_read_from_a_bucket(bucket, shared_pretraining):
  from truenegs_jax.data.tokenizer import load_tokenizer

  expected = load_tokenizer(
    str(shared_pretraining.workdir / "vocab.txt"), lowercase=True
  )
  for name in ("run/vocab.txt", "run"):
    url = f"{bucket.url}/{name}"
    assert load_tokenizer(url, lowercase=True) == expected
  with pytest.raises(InputError, match="neither a vocab"):
    load_tokenizer(f"{bucket.url}/vocab.txt", lowercase=True)
  run = open_path("url", f"{bucket.url}/run")
  assert files.read_state(run) == files.FINISHED  # a copied run does not run
