"""A rows folder is complete, reproducible, and reports any damage."""

import json

import numpy as np
import pytest

from support.small_rows import (
  read_letters,
  read_split,
  write_texts,
)
from support.texts import make_texts
from truenegs_jax.data import shards
from truenegs_jax.data.corpus.corpus import Corpus
from truenegs_jax.data.rows import SPLITS, open_rows, read_manifest, verify_rows
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import DataError


def without_spaces(texts) -> str:
  return "".join("".join(texts).split())


@pytest.fixture
def folder(tmp_path):
  write_texts(tmp_path / "rows", make_texts(60))
  return tmp_path / "rows"


@pytest.mark.parametrize("shard_chunks", [1, 2, 32])
def test_splits_contain_their_text(tmp_path, monkeypatch, shard_chunks):
  monkeypatch.setattr(shards, "SHARD_CHUNKS", shard_chunks)
  monkeypatch.setattr(shards, "CHUNK_CHARACTERS", 1000)
  texts = make_texts(60)
  manifest = write_texts(tmp_path / "rows", texts)
  train_texts = [t for i, t in enumerate(texts) if (i + 1) % 10]
  train, held_out = (read_letters(tmp_path / "rows", s) for s in SPLITS)
  assert train == without_spaces(train_texts)
  assert held_out == without_spaces(texts[9::10])
  assert manifest["held_out_by"] == "documents"
  part = {"documents": 60, "text_bytes": sum(map(len, texts)), "passes": 1}
  assert manifest["parts"][0].items() >= part.items()
  has_many_shards = len(manifest["splits"]["train"]["shards"]) > 1
  assert has_many_shards == (shard_chunks < 32)


def test_counts_of_the_manifest_are_right(folder):
  manifest = read_manifest(folder)
  for split in SPLITS:
    batch = read_split(folder, split)
    counts = manifest["splits"][split]
    assert counts["rows"] == len(batch["tokens"]) == sum(counts["shards"])
    assert counts["tokens"] == batch["documents"].sum()
    padding = 1 - batch["documents"].mean()
    assert counts["padding_share"] == pytest.approx(padding, abs=1e-6)
  counts_V = np.load(folder / "unigram_V.npy")
  tokens = read_split(folder, "train")["tokens"]
  expected_V = np.bincount(tokens.ravel(), minlength=31)
  expected_V[:5] = 0
  np.testing.assert_array_equal(counts_V, expected_V)


def test_take_returns_rows_in_any_order(tmp_path, monkeypatch):
  monkeypatch.setattr(shards, "SHARD_CHUNKS", 1)
  monkeypatch.setattr(shards, "CHUNK_CHARACTERS", 200)  # some hold none out
  write_texts(tmp_path / "rows", make_texts(60))
  rows = open_rows(tmp_path / "rows", "train")
  all_rows = rows.take(np.arange(len(rows)))
  index_B = np.random.default_rng(0).integers(0, len(rows), 50)
  for name, array in rows.take(index_B).items():
    assert array.dtype == np.int32
    np.testing.assert_array_equal(array, all_rows[name][index_B])


@pytest.mark.parametrize("size, dtype", [(2**16, "uint16"), (2**16 + 1, "u4")])
def test_large_vocabularies_have_wide_tokens(tmp_path, size, dtype):
  entries = [*SPECIALS, *(f"w{i}" for i in range(size - 6)), "z"]
  tokenizer = make_tokenizer(entries, lowercase=True)
  write_texts(tmp_path / "rows", ["z z", "z"], tokenizer=tokenizer)
  rows = open_rows(tmp_path / "rows", "train")
  assert np.load(rows.shards[0][0].path).dtype == dtype
  assert rows.take(np.array([0]))["tokens"].max() == size - 1


@pytest.mark.parametrize("count", [1, 2, 9])
def test_with_few_documents_the_last_rows_are_held_out(tmp_path, count):
  texts = make_texts(count, seed=5)
  manifest = write_texts(tmp_path / "rows", texts)
  assert manifest["held_out_by"] == "rows"
  train, held_out = (len(open_rows(tmp_path / "rows", s)) for s in SPLITS)
  assert held_out == max(1, round((train + held_out) / 10))
  letters = "".join(read_letters(tmp_path / "rows", s) for s in SPLITS)
  assert letters == without_spaces(texts)


def test_fingerprints_depend_on_content(tmp_path, folder, monkeypatch):
  fingerprint = open_rows(folder, "train").fingerprint
  other = write_texts(tmp_path / "seed", make_texts(60), seed=1)
  assert other["fingerprint"] != fingerprint
  # The path of the text is irrelevant.
  monkeypatch.setattr(Corpus, "identity", lambda self: [{"x": 1}])
  moved = write_texts(tmp_path / "moved", make_texts(60), sources=[{"x": 1}])
  assert moved["fingerprint"] == fingerprint


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "zero", "delete"])
def test_verify_finds_damage_to_any_file(folder, damage):
  rng = np.random.default_rng(0)
  for path in sorted(folder.iterdir()):
    content = path.read_bytes()
    for _ in range(5 if damage == "flip" else 1):
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


def test_opening_reports_a_cut_or_missing_shard(folder):
  path = folder / "train-00000.types.npy"
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(DataError, match="train-00000.types.npy: cannot be"):
    open_rows(folder, "train")
  path.unlink()
  with pytest.raises(DataError, match="train-00000.types.npy"):
    open_rows(folder, "train")
  open_rows(folder, "held_out")


def test_a_shard_of_python_objects_is_rejected(folder):
  path = folder / "train-00000.types.npy"
  size = path.stat().st_size
  with open(path, "wb") as file:
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    file.truncate(size)
  with pytest.raises(DataError, match="train-00000.types.npy: cannot be read"):
    open_rows(folder, "train")


def test_a_changed_manifest_is_rejected(folder):
  path = folder / "manifest.json"
  manifest = json.loads(path.read_text())
  manifest["splits"]["train"]["rows"] += 1
  path.write_text(json.dumps(manifest))
  with pytest.raises(DataError, match="manifest.json' .*changed or damaged"):
    open_rows(folder, "train")


@pytest.mark.parametrize(
  ("layout", "field", "value"),
  [
    ("electra", "tokens", 31),
    ("electra", "types", 2),
    ("electra", "documents", 2),
    ("packed", "documents", 6),
  ],
)
def test_values_out_of_range_are_rejected(tmp_path, layout, field, value):
  write_texts(tmp_path / "rows", make_texts(60), layout=layout)
  path = tmp_path / f"rows/train-00000.{field}.npy"
  array = np.load(path)
  array[3, 1] = value
  np.save(path, array)
  rows = open_rows(tmp_path / "rows", "train")
  rows.take(np.array([2]))
  message = f"{field}.npy: {value} in row 3 of 'train'.* at most {value - 1}"
  with pytest.raises(DataError, match=message):
    rows.take(np.array([2, 3]))


@pytest.mark.parametrize("layout", ["electra", "packed"])
@pytest.mark.parametrize("overflow", ["carry", "discard"])
def test_the_manifest_has_the_lost_share(tmp_path, layout, overflow):
  texts = make_texts(60)
  options = {"layout": layout, "overflow": overflow}
  manifest = write_texts(tmp_path / "rows", texts, **options)
  kept = sum(len(read_letters(tmp_path / "rows", split)) for split in SPLITS)
  total = len(without_spaces(texts))
  assert manifest["lost_share"] == pytest.approx(1 - kept / total, abs=1e-6)
  assert (manifest["lost_share"] == 0) == (overflow == "carry")
