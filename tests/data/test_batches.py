"""A batch is a function of the step, in every process and after a restart."""

import shutil

import numpy as np
import pytest

from support.small_rows import write_texts
from truenegs_jax.data import batches as batches_lib
from truenegs_jax.data.rows import FIELDS, open_rows
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import DataError

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
  return open_rows(folder, "train")


def row_order(rows, steps, **options):
  return np.concatenate(
    [batches_lib.batch_at(rows, s, **options)["row"] for s in steps]
  )


def test_a_batch_has_the_rows_of_its_indices_in_every_process(rows):
  options = {"batch_size": 16, "seed": 1}
  batch = batches_lib.batch_at(rows, 7, **options)
  assert batch.keys() == {*FIELDS, "row"}
  assert all(array.dtype == np.int32 for array in batch.values())
  assert batch["tokens"].shape == (16, 8) and batch["row"].shape == (16,)
  for name, file in zip(FIELDS, rows.shards[0], strict=True):
    np.testing.assert_array_equal(batch[name], file[batch["row"]])
  for count in (1, 2, 4, 8):
    processes = [(process, count) for process in range(count)]
    slices = [
      batches_lib.batch_at(rows, 7, **options, process=x) for x in processes
    ]
    assert {len(x["row"]) for x in slices} == {16 // count}
    for name, array in batch.items():
      joined = np.concatenate([x[name] for x in slices])
      np.testing.assert_array_equal(joined, array)


def test_short_rows_are_the_row_and_keep_its_documents_apart(rows):
  batch = batches_lib.batch_at(rows, 7, batch_size=16, seed=1)
  short = batches_lib.split_rows(batch, 4)
  for name in FIELDS:
    assert short[name].shape == (64, 2) and short[name].dtype == np.int32
    joined = short[name].reshape(16, 8)
    np.testing.assert_array_equal(joined, batch[name])
  numbers = short["row"].reshape(16, 4)
  assert len(set(short["row"])) == 64 and short["row"].dtype == np.int32
  assert (numbers // 4 == batch["row"][:, None]).all()
  halves = [
    batches_lib.batch_at(rows, 7, batch_size=16, seed=1, process=(p, 2))
    for p in (0, 1)
  ]
  for name, array in short.items():
    parts = [batches_lib.split_rows(x, 4)[name] for x in halves]
    np.testing.assert_array_equal(np.concatenate(parts), array)


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


def test_a_batch_of_more_than_all_rows_is_refused(rows):
  with pytest.raises(DataError, match="batch_size=56 is more than the 53 rows"):
    batches_lib.batch_at(rows, 0, batch_size=56, seed=0)


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


def test_evaluation_of_a_part_is_its_beginning(rows, tmp_path):
  for limit in (1, 16, 20, 99):
    batches = batches_lib.held_out_batches(rows, 16, limit=limit)
    row = np.concatenate([batch["row"] for batch in batches])
    assert row[row >= 0].tolist() == list(range(min(limit, 53)))
  write_texts(tmp_path / "rows", ["a b"], held_out=0.0, **OPTIONS)
  empty = open_rows(tmp_path / "rows", "held_out")
  assert list(batches_lib.held_out_batches(empty, 4)) == []


def test_damaged_rows_are_refused(folder, tmp_path):
  shutil.copytree(folder, tmp_path / "rows")
  next(batches_lib.batches(tmp_path / "rows", 4, tokenizer=TOKENIZER))
  path = next((tmp_path / "rows").glob("train-*.types.npy"))
  data = bytearray(path.read_bytes())
  data[-1] ^= 1
  path.write_bytes(data)
  with pytest.raises(DataError, match=f"damaged.*{path.name}"):
    next(batches_lib.batches(tmp_path / "rows", 4, tokenizer=TOKENIZER))
