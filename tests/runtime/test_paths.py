"""Files name none outside of their folder, and the cache is private."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import jax
import pytest

from support import small_rows
from support.texts import make_texts, to_jsonl
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.documents import check_data_files
from truenegs_jax.data.sources import open_corpus
from truenegs_jax.data.tokenizer_files import load_tokenizer
from truenegs_jax.runtime import buckets, paths
from truenegs_jax.runtime.errors import InputError, TrueNegsError
from truenegs_jax.runtime.paths import join_inside
from truenegs_jax.workdir import files

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


def write_rows(folder):
  small_rows.write_texts(folder, make_texts(20))


def open_rows(folder):
  rows_folder.open_rows(folder, "train")


def write_saved(folder):
  datasets = pytest.importorskip("datasets")
  saved = datasets.Dataset.from_dict({"text": ["a swan"]})
  datasets.DatasetDict({"train": saved}).save_to_disk(folder)


def write_card(folder, name="train.jsonl"):
  folder.mkdir(exist_ok=True)
  (folder / "train.jsonl").write_bytes(to_jsonl(["a swan"]))
  files = json.dumps([{"split": "train", "path": name}])
  card = f"---\nconfigs:\n- config_name: default\n  data_files: {files}\n---\n"
  (folder / "README.md").write_text(card)


def read_dataset(folder):
  list(open_corpus(f"hf:{folder}"))


def read_vocabulary(folder):
  load_tokenizer(str(folder), lowercase=True)


@pytest.mark.parametrize("name", ["absolute", "../outside/secret.txt", "b\\"])
def test_a_data_card_names_no_file_outside(tmp_path, outside, name):
  write_card(tmp_path / "good")
  read_dataset(tmp_path / "good")  # so it is the name that is refused
  folder = tmp_path / "folder"
  write_card(
    folder, str(outside / "secret.txt") if name == "absolute" else name
  )
  with pytest.raises(TrueNegsError, match="leads out of|Unable to find"):
    read_dataset(folder)


# Writes the files of a folder, reads them, and the file that becomes a link.
LINKED = [
  (write_rows, rows_folder.verify_rows, SHARD),
  (write_rows, open_rows, rows_folder.UNIGRAMS),
  (write_rows, rows_folder.load_vocabulary, "vocab.txt"),
  (write_card, read_dataset, "train.jsonl"),
  (write_saved, read_dataset, f"train/{ARROW}"),
  (pathlib.Path.mkdir, read_vocabulary, "vocab.txt"),
  (pathlib.Path.mkdir, read_vocabulary, "tokenizer.json"),
]


@pytest.mark.parametrize(("write", "read", "file"), LINKED)
def test_a_link_out_of_a_folder_is_refused(
  tmp_path, outside, write, read, file
):
  folder = tmp_path / "folder"
  write(folder)
  path = folder / file
  path.unlink(missing_ok=True)
  path.symlink_to(outside / "secret.txt")
  with pytest.raises(InputError, match="leads out"):
    read(folder)


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
    ("gs://bucket/a/../b", "is no folder or file in a bucket"),
    ("gs://bucket/*", "is no folder or file in a bucket"),
    ("S3://bucket/a", "is a URL that cannot be used"),
    ("hf://owner/name", "is a URL that cannot be used"),
    (pathlib.Path("gs://bucket"), "is a URL that cannot be used"),
  ],
)
def test_a_url_of_no_folder_is_refused(url, message):
  with pytest.raises(InputError, match=f"--workdir='.*' {message}"):
    paths.open_path("--workdir", url)


@pytest.mark.parametrize("path", ["runs/gs://b", "./gs:/b", "C:/runs", ""])
def test_a_colon_makes_no_url(path):
  assert paths.open_path("--workdir", path) == pathlib.Path(path)


def test_checkpoints_in_s3_are_refused():
  with pytest.raises(InputError, match="gs:// only"):
    files.check_checkpoint_folder(buckets.BucketPath("s3://bucket/run"))
  files.check_checkpoint_folder(buckets.BucketPath("gs://bucket/run"))


@pytest.mark.parametrize("is_link", [False, True])
def test_a_name_in_latin_1_is_refused(tmp_path, is_link):
  path = tmp_path / os.fsdecode(b"\xdcbung")
  if is_link:
    (tmp_path / "run").symlink_to(path)
    path = tmp_path / "run"
  with pytest.raises(InputError, match="is not named in UTF-8"):
    paths.check_utf8(path)
  paths.check_utf8(tmp_path)


def test_a_new_private_folder_has_no_access_for_others(tmp_path):
  path = tmp_path / "home" / "cache" / "xla"
  before = os.umask(0)
  try:
    paths.make_private_folder(path)
  finally:
    os.umask(before)
  assert path.stat().st_mode & 0o777 == 0o700
  for parent in (path.parent, path.parent.parent):
    assert parent.stat().st_mode & 0o777 == 0o755
  paths.make_private_folder(path)  # it exists now


@pytest.mark.parametrize("part", ["a", "a/xla"])
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_folder_that_others_can_write_to_or_replace_is_refused(
  tmp_path, part, mode
):
  folder = tmp_path / "a" / "xla"
  paths.make_private_folder(folder)
  (tmp_path / "link").symlink_to(folder)
  (tmp_path / part).chmod(mode)
  for path in (folder, tmp_path / "link"):
    with pytest.raises(PermissionError, match=f"{part}' can be written to"):
      paths.make_private_folder(path)
  (tmp_path / "a").chmod(0o1777)  # sticky: only owners can rename files in it
  folder.chmod(0o700)
  paths.make_private_folder(folder)


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
  paths.make_private_folder(tmp_path / "xla")
  monkeypatch.setattr(paths.os, "geteuid", lambda: 12_345)
  if not os.getuid():
    os.chown(tmp_path / "xla", 54_321, -1)
  with pytest.raises(PermissionError, match="can be written to by others"):
    paths.make_private_folder(tmp_path / "xla")


def test_open_folders_are_not_used_for_compiled_programs(tmp_path, monkeypatch):
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path))
  values, warnings = {}, []
  monkeypatch.setattr(jax.config, "update", values.__setitem__)
  paths.enable_compilation_cache(warnings.append)
  assert values == {"jax_compilation_cache_dir": str(tmp_path / "xla")}
  (tmp_path / "xla").chmod(0o777)
  values.clear()
  paths.enable_compilation_cache(warnings.append)
  assert not values and "are not kept" in warnings[0]
  command = re.findall(r"Run (chmod .*) to end that\.", warnings[0])[0]
  subprocess.run(shlex.split(command), check=True)
  paths.enable_compilation_cache(warnings.append)
  assert values and len(warnings) == 1
