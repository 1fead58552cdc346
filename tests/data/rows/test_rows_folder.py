"""A rows folder is whole, the same everywhere, and shows any damage."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from support.small_rows import contents, letters, write
from support.texts import FakeCorpus, make_texts
from truenegs_jax.data.rows import chunks, merge_chunks, rows_folder
from truenegs_jax.data.rows.rows_folder import (
  open_rows,
  verify_rows,
)
from truenegs_jax.data.tokens.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import DataError


@pytest.fixture
def folder(tmp_path):
  write(tmp_path / "rows", make_texts(60))
  return tmp_path / "rows"


@pytest.mark.parametrize("shard_tokens", [16 * 7, 2**27])
def test_what_is_read_is_what_was_written(tmp_path, monkeypatch, shard_tokens):
  monkeypatch.setattr(merge_chunks, "SHARD_TOKENS", shard_tokens)
  monkeypatch.setattr(chunks, "CHUNK_CHARACTERS", 1000)
  texts = make_texts(60)
  manifest = write(tmp_path / "rows", texts)
  train, held = (contents(tmp_path / "rows", s) for s in rows_folder.SPLITS)
  kept = [t for i, t in enumerate(texts) if (i + 1) % 10]
  assert letters(train) == "".join(kept).replace(" ", "").replace("\n", "")
  taken = "".join(texts[9::10])
  assert letters(held) == taken.replace(" ", "").replace("\n", "")
  assert manifest["held_out_by"] == "documents"
  size = sum(map(len, texts))
  assert manifest["parts"] == [
    {"documents": 60, "text_bytes": size, "passes": 1}
  ]
  many = len(manifest["splits"]["train"]["shards"]) > 1
  assert many == (shard_tokens == 16 * 7)


def test_the_manifest_counts_what_is_there(folder):
  manifest = rows_folder.read_manifest(folder)
  for split in rows_folder.SPLITS:
    batch = contents(folder, split)
    counts = manifest["splits"][split]
    assert counts["rows"] == len(batch["tokens"]) == sum(counts["shards"])
    assert counts["tokens"] == batch["documents"].sum()
    padding = 1 - batch["documents"].mean()
    assert counts["padding_share"] == pytest.approx(padding, abs=1e-6)
  counts_V = np.load(folder / "unigram_V.npy")
  tokens = contents(folder, "train")["tokens"]
  expected_V = np.bincount(tokens.ravel(), minlength=31)
  expected_V[:5] = 0
  np.testing.assert_array_equal(counts_V, expected_V)


def test_rows_take_any_numbers_in_any_order(tmp_path, monkeypatch):
  monkeypatch.setattr(merge_chunks, "SHARD_TOKENS", 16 * 9)
  write(tmp_path / "rows", make_texts(60))
  found = open_rows(tmp_path / "rows", "train")
  whole = found.take(np.arange(len(found)))
  numbers = np.random.default_rng(0).integers(0, len(found), 50)
  for name, array in found.take(numbers).items():
    assert array.dtype == np.int32
    np.testing.assert_array_equal(array, whole[name][numbers])


@pytest.mark.parametrize("size, dtype", [(2**16, "uint16"), (2**16 + 1, "u4")])
def test_large_vocabularies_have_wide_tokens(tmp_path, size, dtype):
  entries = [*SPECIALS, *(f"w{i}" for i in range(size - 6)), "z"]
  tokenizer = make_tokenizer(entries, lowercase=True)
  write(tmp_path / "rows", ["z z", "z"], tokenizer=tokenizer)
  found = open_rows(tmp_path / "rows", "train")
  assert found.shards[0][0].dtype == dtype
  assert found.take(np.array([0]))["tokens"].max() == size - 1


@pytest.mark.parametrize("count", [1, 2, 9])
def test_with_few_documents_the_last_rows_are_held_out(tmp_path, count):
  texts = make_texts(count, seed=5)
  manifest = write(tmp_path / "rows", texts)
  train, held = (contents(tmp_path / "rows", s) for s in rows_folder.SPLITS)
  assert manifest["held_out_by"] == "rows"
  num_rows = len(train["tokens"]) + len(held["tokens"])
  assert len(held["tokens"]) == max(1, round(num_rows / 10))
  whole = "".join(texts).replace(" ", "").replace("\n", "")
  assert letters(train) + letters(held) == whole


def test_nothing_is_held_out_where_nothing_is_asked_or_to_spare(tmp_path):
  assert write(tmp_path / "a", make_texts(30), held_out=0.0)["held_out_by"] == (
    "none"
  )
  assert len(open_rows(tmp_path / "a", "held_out")) == 0
  write(tmp_path / "b", ["a b c"])
  assert len(open_rows(tmp_path / "b", "train")) == 1
  assert len(open_rows(tmp_path / "b", "held_out")) == 0


def test_the_same_text_gives_the_same_bytes_in_every_process(tmp_path):
  code = (
    "import sys; sys.path.insert(0, 'tests')\n"
    "from support import small_rows, texts\n"
    "small_rows.write(sys.argv[1], texts.make_texts(60))"
  )
  for name, seed in (("a", "1"), ("b", "2")):
    subprocess.run(
      [sys.executable, "-c", code, str(tmp_path / name)],
      env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
      cwd=str(pathlib.Path(__file__).parents[3]),
      check=True,
    )
  names = sorted(p.name for p in (tmp_path / "a").iterdir())
  assert len(names) == 9
  for name in names:
    same = (tmp_path / "a" / name).read_bytes()
    assert same == (tmp_path / "b" / name).read_bytes()


def test_the_fingerprint_is_that_of_the_content(tmp_path, folder, monkeypatch):
  base = open_rows(folder, "train").fingerprint
  assert write(tmp_path / "seed", make_texts(60), seed=1)["fingerprint"] != base
  # Where the text lay does not change what the rows are.
  monkeypatch.setattr(FakeCorpus, "identity", lambda self: [{"x": 1}])
  moved = write(tmp_path / "moved", make_texts(60), sources=[{"x": 1}])
  assert moved["fingerprint"] == base


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "zero", "delete"])
def test_damage_to_any_file_is_found(folder, damage):
  rng = np.random.default_rng(0)
  for path in sorted(folder.iterdir()):
    whole = path.read_bytes()
    for _ in range(5 if damage == "flip" else 1):
      data = bytearray(whole)
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
    path.write_bytes(whole)
  verify_rows(folder)


def test_a_cut_shard_is_named_at_opening(folder):
  path = folder / "train-00000.types.npy"
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(DataError, match="train-00000.types.npy: .* bytes"):
    open_rows(folder, "train")
  path.unlink()
  with pytest.raises(DataError, match="train-00000.types.npy"):
    open_rows(folder, "train")
  open_rows(folder, "held_out")


def test_a_shard_of_python_objects_is_refused(folder):
  path = folder / "train-00000.types.npy"
  size = path.stat().st_size
  with open(path, "wb") as file:
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    file.truncate(size)
  with pytest.raises(DataError, match="train-00000.types.npy: cannot be read"):
    open_rows(folder, "train")


def test_a_changed_manifest_is_refused(folder):
  path = folder / "manifest.json"
  manifest = json.loads(path.read_text())
  manifest["splits"]["train"]["rows"] += 1
  path.write_text(json.dumps(manifest))
  with pytest.raises(DataError, match="was changed or is damaged"):
    open_rows(folder, "train")


def test_a_token_beyond_the_vocabulary_is_refused(folder):
  path = folder / "train-00000.tokens.npy"
  array = np.load(path)
  array[3, 1] = 31
  np.save(path, array)
  found = open_rows(folder, "train")
  found.take(np.array([2]))
  with pytest.raises(DataError, match="row 3 of 'train' holds token id 31"):
    found.take(np.array([2, 3]))


@pytest.mark.parametrize("layout", ["electra", "packed"])
@pytest.mark.parametrize("overflow", ["carry", "discard"])
def test_the_manifest_says_what_share_of_the_text_is_lost(
  tmp_path, layout, overflow
):
  texts = make_texts(60)
  manifest = write(tmp_path / "rows", texts, layout=layout, overflow=overflow)
  kept = sum(
    len(letters(contents(tmp_path / "rows", split)))
    for split in rows_folder.SPLITS
  )
  whole = len("".join(texts).replace(" ", "").replace("\n", ""))
  assert manifest["lost_share"] == pytest.approx(1 - kept / whole, abs=1e-6)
  assert (manifest["lost_share"] == 0) == (overflow == "carry")
