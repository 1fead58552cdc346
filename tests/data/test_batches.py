"""A batch is a function of the step, in every process and after a restart."""

import shutil
import time

import numpy as np
import pytest

from support.small_rows import write_texts
from truenegs_jax.data import batches as batches_lib
from truenegs_jax.data.rows import FIELDS, open_rows
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import DataError, InputError

TOKENIZER = make_tokenizer((*SPECIALS, *"abcdefghij"), lowercase=True)
OPTIONS = {"tokenizer": TOKENIZER, "length": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """53 rows to train on and 7 held out, one document each."""
  rng = np.random.default_rng(0)
  texts = [
    " ".join(rng.choice(list("abcdefghij"), rng.integers(1, 6)))
    for _ in range(60)
  ]
  path = tmp_path_factory.mktemp("rows") / "rows"
  write_texts(path, texts, held_out=1 / 8, **OPTIONS)
  return path


@pytest.fixture(scope="module")
def rows(folder):
  rows = open_rows(folder, "train")
  assert len(rows) == 53
  return rows


def are_equal(a, b):
  assert a.keys() == b.keys()
  return all(np.array_equal(a[name], b[name]) for name in a)


def row_order(rows, steps, **options):
  return np.concatenate(
    [batches_lib.batch_at(rows, s, **options)["row"] for s in steps]
  )


def test_a_batch_contains_the_rows_of_its_indices(rows):
  batch = batches_lib.batch_at(rows, 5, batch_size=16, seed=1)
  assert batch.keys() == {*FIELDS, "row"}
  assert all(array.dtype == np.int32 for array in batch.values())
  assert batch["tokens"].shape == (16, 8) and batch["row"].shape == (16,)
  for name, file in zip(FIELDS, rows.shards[0], strict=True):
    array_RxL = np.load(file.path)
    np.testing.assert_array_equal(batch[name], array_RxL[batch["row"]])


@pytest.mark.parametrize("batch_size", [1, 7, 26, 53])
def test_each_row_occurs_at_most_once_per_epoch(rows, batch_size):
  num_batches = 53 // batch_size
  skipped = set()
  for epoch in range(4):
    steps = range(epoch * num_batches, (epoch + 1) * num_batches)
    order = row_order(rows, steps, batch_size=batch_size, seed=0)
    assert len(set(order.tolist())) == len(order) == num_batches * batch_size
    assert order.min() >= 0 and order.max() < 53
    skipped |= set(range(53)) - set(order.tolist())
  rest = 53 - num_batches * batch_size
  # Epochs skip different rows.
  assert (len(skipped) > rest) == (rest > 0)


def test_the_order_equals_that_of_earlier_versions(rows):
  # A change would break resuming of runs and needs a new major version.
  order = row_order(rows, [0, 10**6], batch_size=4, seed=0)
  assert order.tolist() == [18, 35, 50, 7, 30, 8, 13, 27]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_the_slices_of_processes_are_the_global_batch(rows, count):
  options = {"batch_size": 16, "seed": 0}
  batch = batches_lib.batch_at(rows, 7, **options)
  slices = [
    batches_lib.batch_at(rows, 7, **options, process=(p, count))
    for p in range(count)
  ]
  assert all(len(s["row"]) == 16 // count for s in slices)
  joined = {name: np.concatenate([s[name] for s in slices]) for name in batch}
  assert are_equal(joined, batch)


def test_a_batch_size_must_be_divisible_by_processes(rows):
  with pytest.raises(InputError, match="processes, 4.*to 8"):
    batches_lib.batch_at(rows, 0, batch_size=10, seed=0, process=(0, 4))
  with pytest.raises(InputError, match="batch_size=0 is not a positive"):
    batches_lib.batch_at(rows, 0, batch_size=0, seed=0)


def test_fewer_rows_than_a_batch_are_rejected(rows):
  with pytest.raises(DataError, match="batch_size=54 is more than the 53 rows"):
    batches_lib.batch_at(rows, 0, batch_size=54, seed=0)


@pytest.mark.parametrize("batch_size", [1, 4, 53, 64])
@pytest.mark.parametrize("count", [1, 4])
def test_evaluation_yields_every_row_once_in_one_shape(rows, batch_size, count):
  batch_size *= count
  batches = []
  for p in range(count):
    slices = batches_lib.held_out_batches(rows, batch_size, process=(p, count))
    batches += slices
    assert len(batches) == (p + 1) * -(-53 // batch_size)
  shape = (batch_size // count, 8)
  assert {batch["tokens"].shape for batch in batches} == {shape}
  row = np.concatenate([batch["row"] for batch in batches])
  assert sorted(row[row >= 0]) == list(range(53))
  for batch in batches:
    padding = batch["row"] == -1
    assert (batch["documents"][padding] == 0).all()
    assert (batch["tokens"][padding] == rows.pad).all()
    assert batch["documents"][~padding].any(axis=1).all()
    assert all(array.dtype == np.int32 for array in batch.values())


@pytest.mark.parametrize("limit", [1, 16, 20, 99])
def test_evaluation_of_a_part_is_its_beginning(rows, limit):
  batches = batches_lib.held_out_batches(rows, 16, limit=limit)
  row = np.concatenate([batch["row"] for batch in batches])
  assert row[row >= 0].tolist() == list(range(min(limit, 53)))


def test_damage_ends_batches(folder, tmp_path):
  shutil.copytree(folder, tmp_path / "rows")
  steps = batches_lib.batches(tmp_path / "rows", 4, tokenizer=TOKENIZER)
  next(steps)
  path = next((tmp_path / "rows").glob("train-*.types.npy"))
  data = bytearray(path.read_bytes())
  data[-1] ^= 1
  path.write_bytes(data)
  damaged = batches_lib.batches(tmp_path / "rows", 4, tokenizer=TOKENIZER)
  with pytest.raises(DataError, match=f"damaged.*{path.name}"):
    for _ in range(1_000):
      next(damaged)
      time.sleep(0.01)


def test_an_empty_split_has_no_batches(tmp_path):
  write_texts(tmp_path / "rows", ["a b"], held_out=0.0, **OPTIONS)
  empty = open_rows(tmp_path / "rows", "held_out")
  assert list(batches_lib.held_out_batches(empty, 4)) == []
