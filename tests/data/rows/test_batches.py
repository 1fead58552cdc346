"""A batch is a function of the step, whoever asks and however often."""

import dataclasses

import numpy as np
import pytest

from support.small_rows import write_rows
from support.texts import FakeCorpus
from truenegs_jax.data.rows import batches as batches_lib
from truenegs_jax.data.rows.rows_folder import RowsOptions, open_rows
from truenegs_jax.data.tokens.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import DataError, InputError

TOKENIZER = make_tokenizer((*SPECIALS, *"abcdefghij"), lowercase=True)
OPTIONS = RowsOptions([], "given", True, True, length=8, held_out=1 / 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """53 rows to train on and a few more, all of one document each."""
  rng = np.random.default_rng(0)
  texts = [
    " ".join(rng.choice(list("abcdefghij"), rng.integers(1, 6)))
    for _ in range(60)
  ]
  path = tmp_path_factory.mktemp("rows") / "rows"
  write_rows(path, FakeCorpus(texts), TOKENIZER, OPTIONS)
  return path


@pytest.fixture(scope="module")
def rows(folder):
  found = open_rows(folder, "train")
  assert len(found) == 53
  return found


def same(a, b):
  assert a.keys() == b.keys()
  return all(np.array_equal(a[name], b[name]) for name in a)


def numbers(rows, steps, **options):
  return np.concatenate(
    [batches_lib.batch_at(rows, s, **options)["row"] for s in steps]
  )


def test_a_batch_is_a_function_of_the_step(folder, rows):
  options = {"batch_size": 8, "seed": 3}
  forward = [batches_lib.batch_at(rows, s, **options) for s in range(20)]
  again = open_rows(folder, "train")
  for step in reversed(range(20)):
    assert same(batches_lib.batch_at(again, step, **options), forward[step])
  assert not same(forward[0], forward[1])


def test_a_batch_holds_the_rows_it_names(rows):
  batch = batches_lib.batch_at(rows, 5, batch_size=16, seed=1)
  assert {n: a.dtype for n, a in batch.items()} == dict.fromkeys(
    ("tokens", "types", "documents", "row"), np.dtype(np.int32)
  )
  assert batch["tokens"].shape == (16, 8) and batch["row"].shape == (16,)
  tokens, types, documents = rows.shards[0]
  np.testing.assert_array_equal(batch["tokens"], tokens[batch["row"]])
  np.testing.assert_array_equal(batch["types"], types[batch["row"]])
  np.testing.assert_array_equal(batch["documents"], documents[batch["row"]])


@pytest.mark.parametrize("batch_size", [1, 7, 26, 53])
def test_each_row_comes_at_most_once_an_epoch(rows, batch_size):
  num_batches = 53 // batch_size
  left_out = set()
  for epoch in range(4):
    steps = range(epoch * num_batches, (epoch + 1) * num_batches)
    seen = numbers(rows, steps, batch_size=batch_size, seed=0)
    assert len(set(seen.tolist())) == len(seen) == num_batches * batch_size
    assert seen.min() >= 0 and seen.max() < 53
    left_out |= set(range(53)) - set(seen.tolist())
  rest = 53 - num_batches * batch_size
  # What an epoch leaves out, another one shows.
  assert (len(left_out) > rest) == (rest > 0)


def test_epochs_and_seeds_have_different_orders(rows):
  orders = [
    tuple(numbers(rows, [step], batch_size=53, seed=seed).tolist())
    for seed in range(3)
    for step in range(4)
  ]
  assert len(set(orders)) == 12
  assert tuple(range(53)) not in orders


def test_the_order_is_the_one_of_all_earlier_versions(rows):
  # A change here ends the resuming of runs: only with a new major version.
  found = numbers(rows, [0, 10**6], batch_size=4, seed=0)
  assert found.tolist() == [18, 35, 50, 7, 30, 8, 13, 27]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_the_shares_of_processes_are_the_global_batch(rows, count):
  options = {"batch_size": 16, "seed": 0}
  whole = batches_lib.batch_at(rows, 7, **options)
  parts = [
    batches_lib.batch_at(rows, 7, **options, process=(p, count))
    for p in range(count)
  ]
  assert all(len(part["row"]) == 16 // count for part in parts)
  assert same({n: np.concatenate([p[n] for p in parts]) for n in whole}, whole)


def test_a_batch_that_does_not_divide_is_refused(rows):
  with pytest.raises(InputError, match="number of processes, 4; try 8"):
    batches_lib.batch_at(rows, 0, batch_size=10, seed=0, process=(0, 4))
  with pytest.raises(InputError, match="batch_size=0 must be at least 1"):
    batches_lib.batch_at(rows, 0, batch_size=0, seed=0)


def test_fewer_rows_than_a_batch_are_refused(rows):
  with pytest.raises(DataError, match="53 rows .*fewer than batch_size=54"):
    batches_lib.batch_at(rows, 0, batch_size=54, seed=0)


@pytest.mark.parametrize("batch_size", [1, 4, 53, 64])
@pytest.mark.parametrize("count", [1, 4])
def test_evaluation_sees_every_row_once_in_one_shape(rows, batch_size, count):
  batch_size *= count
  parts = [
    list(batches_lib.held_out_batches(rows, batch_size, process=(p, count)))
    for p in range(count)
  ]
  assert {len(part) for part in parts} == {-(-53 // batch_size)}
  shape = (batch_size // count, 8)
  batches = [batch for part in parts for batch in part]
  assert {batch["tokens"].shape for batch in batches} == {shape}
  row = np.concatenate([batch["row"] for batch in batches])
  assert sorted(row[row >= 0]) == list(range(53))
  for batch in batches:
    padding = batch["row"] == -1
    assert (batch["documents"][padding] == 0).all()
    assert (batch["tokens"][padding] == rows.pad).all()
    assert batch["documents"][~padding].any(axis=1).all()
    assert all(array.dtype == np.int32 for array in batch.values())


def test_an_empty_split_has_no_batches(tmp_path):
  options = dataclasses.replace(OPTIONS, held_out=0.0)
  write_rows(tmp_path / "rows", FakeCorpus(["a b"]), TOKENIZER, options)
  empty = open_rows(tmp_path / "rows", "held_out")
  assert list(batches_lib.held_out_batches(empty, 4)) == []
