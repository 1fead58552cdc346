"""A file that was read cannot name files outside of its folder."""

import json
import os
import pathlib
import shutil
import sys
import types

import pytest

from support import small_rows
from support.texts import make_texts, to_jsonl
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.tables import Study
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.documents import check_data_files
from truenegs_jax.data.sources import open_corpus
from truenegs_jax.data.tokenizer import load_tokenizer
from truenegs_jax.runtime import buckets, paths
from truenegs_jax.runtime.errors import InputError, TrueNegsError
from truenegs_jax.runtime.paths import join_inside
from truenegs_jax.study import parts as parts_lib
from truenegs_jax.weights import hf_folder
from truenegs_jax.weights.find import Weights
from truenegs_jax.workdir import files, saved_model

SHARD = "train-00000-0000.tokens.npy"
ARROW = "data-00000-of-00001.arrow"
BAD_NAMES = ("/", "/etc/x", "../x", "a/../../x", "a/..", "..", ".", "./a", "")
BAD_NAMES += ("a//b", "a/", "..\\x", "C:\\x", "a\0b")
OPENED: list[str] = []  # files that this process has opened


def remember(event, args):
  if event == "open" and isinstance(args[0], str):
    OPENED.append(os.path.realpath(args[0]))


sys.addaudithook(remember)


@pytest.fixture
def outside(tmp_path):
  """A folder beside, of which nothing is opened or changed."""
  folder = tmp_path / "outside"
  folder.mkdir()
  (folder / "secret.txt").write_text("mine")
  OPENED.clear()
  yield folder
  assert not [x for x in OPENED if pathlib.Path(x).is_relative_to(folder)]
  assert [x.name for x in folder.iterdir()] == ["secret.txt"]
  assert (folder / "secret.txt").read_text() == "mine"


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("url", ["", "gs://bucket/folder"])
def test_a_bad_name_is_refused(tmp_path, name, url):
  folder = buckets.BucketPath(url) if url else tmp_path
  with pytest.raises(InputError, match="leads out of it"):
    join_inside(folder, name)


@pytest.mark.parametrize("name", ["a", ".a", "a.b/c", "a..b", "ä ~", "-"])
def test_a_name_of_a_file_is_joined(tmp_path, name):
  assert join_inside(tmp_path, name) == tmp_path / name
  url = buckets.BucketPath("gs://bucket/folder")
  assert str(join_inside(url, name)) == f"gs://bucket/folder/{name}"


def test_links_stay_in_the_folder(tmp_path, outside):
  folder = tmp_path / "folder"
  (folder / "sub").mkdir(parents=True)
  (folder / "file").write_text("")
  (folder / "sub" / "good").symlink_to("../file")
  (folder / "sub" / "bad").symlink_to(outside / "secret.txt")
  (folder / "out").symlink_to(outside)
  (folder / "loop").symlink_to("loop")
  (tmp_path / "link").symlink_to("folder")  # made by the user
  for root in (folder, tmp_path / "link"):
    assert join_inside(root, "sub/good") == root / "sub" / "good"
    for name in ("sub/bad", "out", "out/secret", "out/new"):
      with pytest.raises(InputError, match=f"{name}' is a link that leads out"):
        join_inside(root, name)
    with pytest.raises(InputError, match="loop"):
      join_inside(root, "loop")


def test_links_of_the_hub_s_library_stay_in_their_repository(tmp_path, outside):
  snapshot = tmp_path / "models--X--Y" / "snapshots" / "0123"
  snapshot.mkdir(parents=True)
  (snapshot / "good").symlink_to("../../blobs/abc")
  (snapshot / "other").symlink_to("../../../models--X--Z/blobs/abc")
  (snapshot / "bad").symlink_to(outside / "secret.txt")
  assert join_inside(snapshot, "good") == snapshot / "good"
  for name in ("other", "bad"):
    with pytest.raises(InputError, match="leads out of the folder"):
      join_inside(snapshot, name)


def write_rows(folder, name):
  small_rows.write_texts(folder, make_texts(20))
  path = folder / rows_folder.MANIFEST
  manifest = json.loads(path.read_text())
  manifest.pop("checksum")
  manifest["files"][name] = manifest["files"].pop(SHARD)
  manifest["checksum"] = rows_folder.hash_json(manifest)
  path.write_text(json.dumps(manifest))


def open_rows(folder):
  rows_folder.open_rows(folder, "train")


def write_saved(folder, _):
  datasets = pytest.importorskip("datasets")
  saved = datasets.Dataset.from_dict({"text": ["a swan"]})
  datasets.DatasetDict({"train": saved}).save_to_disk(folder)


def write_card(folder, name):
  folder.mkdir(exist_ok=True)
  (folder / "train.jsonl").write_bytes(to_jsonl(["a swan"]))
  files = json.dumps([{"split": "train", "path": name}])
  card = f"---\nconfigs:\n- config_name: default\n  data_files: {files}\n---\n"
  (folder / "README.md").write_text(card)


def read_dataset(folder):
  list(open_corpus(f"hf:{folder}"))


# By kind: writes its files in a folder with a name, reads them, a good name.
NAMED = {
  "rows": (write_rows, rows_folder.verify_rows, SHARD),
  "data card": (write_card, read_dataset, "train.jsonl"),
}
# By kind: writes its files, reads them, and the file that becomes a link.
LINKED = {
  **{name: (*x[:2], x[2], x[2]) for name, x in NAMED.items()},
  "saved data set": (write_saved, read_dataset, ARROW, f"train/{ARROW}"),
  "opened rows": (write_rows, open_rows, SHARD, SHARD),
  "unigrams": (write_rows, open_rows, SHARD, rows_folder.UNIGRAMS),
  "vocabulary of rows": (
    *(write_rows, rows_folder.load_vocabulary, SHARD, "vocab.txt"),
  ),
}


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize(
  "name", ["absolute", "../outside/secret.txt", "..", "b\\"]
)
def test_a_file_names_none_outside(tmp_path, outside, kind, name):
  write, read, good = NAMED[kind]
  write(tmp_path / "good", good)
  read(tmp_path / "good")  # so it is the name that is refused
  folder = tmp_path / "folder"
  write(folder, str(outside / "secret.txt") if name == "absolute" else name)
  message = "leads out of|is no file of rows|Unable to find"
  with pytest.raises(TrueNegsError, match=message):
    read(folder)


@pytest.mark.parametrize("kind", LINKED)
def test_a_link_out_of_a_folder_is_refused(tmp_path, outside, kind):
  write, read, good, file = LINKED[kind]
  folder = tmp_path / "folder"
  write(folder, good)
  replace_by_link(folder / file, outside / "secret.txt")
  with pytest.raises(InputError, match="leads out"):
    read(folder)


def replace_by_link(path, target):
  if path.is_dir():
    shutil.rmtree(path)
  path.unlink(missing_ok=True)
  path.symlink_to(target)


@pytest.mark.parametrize("file", [*hf_folder.FORMATS, hf_folder.CHECKSUMS])
def test_a_folder_of_weights_has_no_links_out(tmp_path, outside, file):
  (tmp_path / "model").mkdir()
  (tmp_path / "model" / file).symlink_to(outside / "secret.txt")
  (tmp_path / "model" / hf_folder.CONFIG).write_text('{"model_type": "bert"}')
  read = hf_folder.verify_checksums
  if file != hf_folder.CHECKSUMS:
    read = hf_folder.open_arrays
  with pytest.raises(InputError, match="leads out"):
    read(tmp_path / "model")


def test_a_role_s_folder_has_no_link_out(tmp_path, outside):
  (tmp_path / "export").mkdir()
  (tmp_path / "export" / "generator").symlink_to(outside)
  with pytest.raises(InputError, match="leads out"):
    _ = Weights(str(tmp_path / "export")).networks


@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.json"])
def test_a_vocabulary_s_folder_has_no_links_out(tmp_path, outside, file):
  (tmp_path / "model").mkdir()
  (tmp_path / "model" / file).symlink_to(outside / "secret.txt")
  with pytest.raises(InputError, match="leads out"):
    load_tokenizer(str(tmp_path / "model"), lowercase=True)
  run = types.SimpleNamespace(
    folder=tmp_path / "model" / "checkpoints", read_description=lambda _: {}
  )
  with pytest.raises(InputError, match="leads out"):
    saved_model.read_saved_model(run, 1)


@pytest.mark.parametrize("name", ["/etc/passwd", "https://x/y", "hf"])
def test_a_data_set_of_the_hub_has_its_files_there(name):
  base = "hf://datasets/owner/set@0123"
  check_data_files(
    "hf:owner/set", base, [f"{base}/x.txt", f"zip://x::{base}/y.zip"]
  )
  with pytest.raises(InputError, match="is not on the hub"):
    check_data_files("hf:owner/set", base, [f"{base}/x.txt", name])


@pytest.mark.parametrize(
  ("url", "message"),
  [
    ("gs://bucket", "is no folder or file in a bucket"),
    ("gs://bucket/a//b", "is no folder or file in a bucket"),
    ("gs://bucket/a/../b", "is no folder or file in a bucket"),
    ("gs://bucket/*", "is no folder or file in a bucket"),
    ("gs:/bucket/a", "is a URL that cannot be used"),
    ("GS://bucket/a", "is a URL that cannot be used"),
    ("hf://owner/name", "is a URL that cannot be used"),
  ],
)
def test_a_url_of_no_folder_is_refused(url, message):
  with pytest.raises(InputError, match=f"--workdir='.*' {message}"):
    paths.open_path("--workdir", url)


def test_checkpoints_in_s3_are_refused():
  with pytest.raises(InputError, match="gs:// only"):
    files.check_checkpoint_folder(buckets.BucketPath("s3://bucket/run"))
  files.check_checkpoint_folder(buckets.BucketPath("gs://bucket/run"))


@pytest.mark.parametrize("name", ["../../x", "a/../../../x", "a\\b"])
def test_an_arm_of_a_study_is_in_its_folder(tmp_path, name):
  values = parse_config(["--config=study"]).study.to_dict()
  study = Study.read(values | {"arms": {name: {}}})
  with pytest.raises(InputError, match="study.arms|leads out of it"):
    parts_lib.make_parts(study, tmp_path / "study")
