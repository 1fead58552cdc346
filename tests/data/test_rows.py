"""A rows folder is complete or reports its damage."""

import io
import json
import os
import shutil

import numpy as np
import pytest

from support.small_rows import read_split, write_texts
from support.texts import make_texts
from truenegs_jax.data import build
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.rows import (
  SPLITS,
  load_vocabulary,
  open_rows,
  read_manifest,
  verify_rows,
)
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import DataError

SHARD = "train-00000-0000.tokens.npy"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  """A folder with several shards, some of which hold no document out."""
  folder = tmp_path_factory.mktemp("written") / "rows"
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(build, "MIN_SLICE", 1000)
    write_texts(folder, make_texts(60))
  return folder


@pytest.fixture
def folder(written, tmp_path):
  return shutil.copytree(written, tmp_path / "rows")


def test_counts_and_rows_of_any_order_are_right(folder):
  manifest = read_manifest(folder)
  for split in SPLITS:
    batch = read_split(folder, split)
    counts = manifest["splits"][split]
    shards = dict(counts["shards"])
    assert len(shards) > 1
    assert counts["rows"] == len(batch["tokens"]) == sum(shards.values())
    padding = 1 - batch["documents"].mean()
    assert counts["padding_share"] == pytest.approx(padding, abs=1e-6)
  rows = open_rows(folder, "train")
  batch = read_split(folder, "train")
  index_B = np.random.default_rng(0).integers(0, len(rows), 50)
  for name, array in rows.take(index_B).items():  # rows in any order
    assert array.dtype == np.int32
    np.testing.assert_array_equal(array, batch[name][index_B])
  tokens_RxL = batch["tokens"]
  expected_V = np.bincount(tokens_RxL.ravel(), minlength=31)
  expected_V[:5] = 0
  np.testing.assert_array_equal(np.load(folder / "unigram_V.npy"), expected_V)
  size = sum(map(len, make_texts(60)))
  part = {"documents": 60, "text_bytes": size, "passes": 1}
  assert manifest["parts"] == [part]


@pytest.mark.parametrize("size, dtype", [(2**16, "uint16"), (2**16 + 1, "u4")])
def test_large_vocabularies_have_wide_tokens(tmp_path, size, dtype):
  entries = [*SPECIALS, *(f"w{i}" for i in range(size - 6)), "z"]
  tokenizer = make_tokenizer(entries, lowercase=True)
  write_texts(tmp_path / "rows", ["z z", "z"], tokenizer=tokenizer)
  rows = open_rows(tmp_path / "rows", "train")
  assert rows.shards[0][0].dtype == dtype
  assert rows.take(np.array([0]))["tokens"].max() == size - 1


def test_fingerprints_depend_on_content(tmp_path, written, monkeypatch):
  monkeypatch.setattr(build, "MIN_SLICE", 1000)
  fingerprint = read_manifest(written)["fingerprint"]
  assert fingerprint == "b27c24ea01a15381"  # as in earlier versions
  for number in (60, 59):  # the path and the time of the text are irrelevant
    other = write_texts(tmp_path / f"{number}", make_texts(number))
    assert (other["fingerprint"] == fingerprint) == (number == 60)


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "zero", "delete"])
def test_verify_finds_damage_to_any_file(folder, damage):
  rng = np.random.default_rng(0)
  for path in sorted(folder.iterdir()):
    content = path.read_bytes()
    data = bytearray(content)
    if damage == "flip":
      data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    elif damage == "cut":
      data = data[: len(data) // 2]
    elif damage == "grow":
      data += b"\0"
    elif damage == "zero":
      data = bytearray(len(data))
    path.write_bytes(data)
    if damage == "delete":
      path.unlink()
    with pytest.raises(DataError, match=path.name):
      verify_rows(folder)
    path.write_bytes(content)
  verify_rows(folder)


def test_opening_reports_what_is_cut_missing_or_a_pickle(folder):
  for name in ("train-00000-0001.types.npy", rows_folder.UNIGRAMS):
    path = folder / name
    content = path.read_bytes()
    pickled = io.BytesIO()
    np.save(pickled, np.array([print], dtype=object), allow_pickle=True)
    padded = pickled.getvalue().ljust(len(content), b"\0")[: len(content)]
    for data in (content[:-1], b"", padded, None):
      path.unlink() if data is None else path.write_bytes(data)
      with pytest.raises(DataError, match=name):
        open_rows(folder, "train")
    path.write_bytes(content)
  path = folder / "vocab.txt"
  *entries, last = path.read_text().split()
  path.write_text("\n".join([last, *entries, ""]))
  with pytest.raises(DataError, match="damaged or missing files: vocab.txt"):
    load_vocabulary(folder)
  open_rows(folder, "held_out")


def test_an_endless_file_is_not_read(folder):
  path = folder / SHARD
  for make in (
    lambda: os.mkfifo(path),  # a read would wait forever
    lambda: path.touch() or os.truncate(path, 2**42),  # 4 TB
  ):
    path.unlink()
    make()
    with pytest.raises(DataError, match=f"damaged or missing files: {SHARD}"):
      verify_rows(folder)


# Changes of a manifest by somebody who knows its checksum, and the messages.
HOSTILE = [
  *[
    (lambda m, x=x: m.update(fingerprint=x), "fingerprint is not 16 hex digits")
    for x in ("/home", "../../x", "0123456789abcde", "0123456789ABCDEF", "")
  ],
  *[
    (lambda m, x=x: m["files"].update({x: m["files"][SHARD]}), "is no file of")
    for x in ("/dev/zero", f"../{SHARD}", "thesis.txt", "", f"{SHARD}.tmp")
  ],
  *[
    (lambda m, x=x: m["splits"]["train"].update(shards=x), "cannot be read")
    for x in (
      *(None, [[]], [["99999-0000", 3]], [["00000-0000", 10**9]]),
      *([["../00000-0000", 1]], [["00000-0000", -1]], [["00000-0000", True]]),
    )
  ],
  (lambda m: m["options"].update(length=10**9), "cannot be read"),
  (lambda m: m["tokenizer"].update(size=10**15), "cannot be read"),
  *[
    (lambda m, x=x: m["files"].pop(x), "cannot be read")
    for x in (SHARD, "unigram_V.npy", "vocab.txt")
  ],
  (lambda m: m["files"][SHARD].update(bytes=10**15), "damaged or missing"),
  (lambda m: m.update(version=5), "not of version"),
  (lambda m: m.pop("splits"), "cannot be read"),
]


def test_a_hostile_manifest_is_refused(folder):
  path = folder / rows_folder.MANIFEST
  text = path.read_text()
  for number, (change, message) in enumerate(HOSTILE):
    manifest = json.loads(text)
    del manifest["checksum"]
    change(manifest)
    manifest["checksum"] = rows_folder.hash_json(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=message):
      load_vocabulary(folder)
      open_rows(folder, "train")
      verify_rows(folder)
      raise AssertionError(f"case {number}")
  path.write_text(text.replace('"rows": ', '"rows": 1', 1))
  with pytest.raises(DataError, match="changed or damaged"):
    open_rows(folder, "train")
