"""Tests encoding of texts, truncation as in ELECTRA, and batching of rows."""

import dataclasses
import itertools

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.tasks import batches
from truenegs_jax.tasks.batches import encode, truncated_sizes
from truenegs_jax.tasks.task import TASKS, EncodedRows, Example

B, LIMIT, SEED = 8, 100, 3
WORDS = ["the", "swan", "is", "##s", "mute", "white", *"abcdefghi", ",", "."]
TOKENIZER = make_tokenizer([*SPECIALS, *WORDS], lowercase=True)


def make_encoded(num_rows=1030, *, longest=LIMIT, seed=0) -> EncodedRows:
  """Makes mostly short rows of 4 to `longest` tokens.

  The label and the first token of a row are its index.
  """
  rng = np.random.default_rng(seed)
  lengths = (4 + (longest - 4) * rng.random(num_rows) ** 3).astype(int)
  lengths[-1] = longest
  tokens = [rng.integers(1, 99, n, np.int32) for n in lengths]
  for i, row in enumerate(tokens):
    row[0] = i
  types = [(np.arange(n) > n // 2).astype(np.int32) for n in lengths]
  numbers = np.arange(num_rows, dtype=np.int32)
  targets = {"label": numbers, "score": numbers.astype(np.float32)}
  return EncodedRows(tokens, types, targets)


def epoch_batches(encoded, epoch=0, *, seed=SEED, batch_size=B, **more):
  steps = batches.num_steps(len(encoded.tokens), batch_size, 1)
  options = dict(batch_size=batch_size, seed=seed, limit=LIMIT) | more
  return [
    batches.batch_at(encoded, epoch * steps + i, **options)
    for i in range(steps)
  ]


def row_sets(batches_):
  return [set(batch["row"][batch["row"] >= 0].tolist()) for batch in batches_]


def padding_share(batches_):
  num_tokens = sum(b["documents"].sum() for b in batches_)
  return 1 - num_tokens / sum(b["documents"].size for b in batches_)


ENCODED = make_encoded()
IN_ORDER = list(batches.batches_in_order(ENCODED, batch_size=B, limit=LIMIT))


@pytest.mark.parametrize(
  "epoch",
  [
    epoch_batches(ENCODED, 1),
    epoch_batches(ENCODED, window=1),
    epoch_batches(make_encoded(3)),  # less than one batch
    epoch_batches(make_encoded(16)),  # full batches only
    IN_ORDER,
  ],
)
def test_an_epoch_has_every_row_once_and_fills_one_batch(epoch):
  row = np.concatenate([batch["row"] for batch in epoch])
  real = row[row >= 0]
  np.testing.assert_array_equal(np.sort(real), np.arange(real.max() + 1))
  assert sum(-1 in batch["row"] for batch in epoch) == bool(len(real) % B)
  assert (row == -1).sum() == -len(real) % B
  weight = np.concatenate([batch["weight"] for batch in epoch])
  np.testing.assert_array_equal(weight, row >= 0)


@pytest.mark.parametrize("epoch", [epoch_batches(ENCODED), IN_ORDER])
def test_batches_contain_exactly_their_rows(epoch):
  for batch in epoch:
    assert all(len(values) == B for values in batch.values())
    for b, row in enumerate(batch["row"]):
      n = 0 if row < 0 else len(ENCODED.tokens[row])
      is_token = np.arange(batch["documents"].shape[1]) < n
      np.testing.assert_array_equal(batch["documents"][b], is_token)
      for name in ("tokens", "types"):
        expected = [] if row < 0 else getattr(ENCODED, name)[row]
        np.testing.assert_array_equal(batch[name][b, :n], expected)
        assert not batch[name][b, n:].any()
      assert batch["label"][b] == batch["score"][b] == max(row, 0)
    floats = [name for name, x in batch.items() if x.dtype == np.float32]
    assert sorted(floats) == ["score", "weight"]


def test_batches_have_the_smallest_bucket_that_fits():
  lengths, in_order = set(), [x["tokens"].shape[1] for x in IN_ORDER]
  assert in_order == sorted(in_order, reverse=True) and in_order[0] == LIMIT
  for batch in epoch_batches(ENCODED):
    length = batch["tokens"].shape[1]
    longest = batch["documents"].sum(axis=1).max()
    allowed = [n for n in batches.BUCKETS if n < LIMIT] + [LIMIT]
    assert length == min(n for n in allowed if n >= longest)
    lengths.add(length)
  assert LIMIT in lengths and len(lengths) > 3
  ungrouped = padding_share(epoch_batches(ENCODED, window=1))
  share = padding_share(epoch_batches(ENCODED))
  assert padding_share(IN_ORDER) < share < 0.6 * ungrouped


def test_a_batch_depends_only_on_seed_and_step():
  again = make_encoded()  # an equal copy, which is not cached
  for step in (130, 4, 0, 260, 4):
    pair = [
      batches.batch_at(x, step, batch_size=B, seed=SEED, limit=LIMIT)
      for x in (ENCODED, again)
    ]
    for name, values in pair[0].items():
      np.testing.assert_array_equal(values, pair[1][name])


def test_other_rows_meet_with_another_seed_and_in_other_epochs():
  """Also where no two rows have one length, by which they are sorted."""
  tokens = [np.full(n, n, np.int32) for n in range(4, 4 + 8 * B)]
  for encoded in (ENCODED, EncodedRows(tokens, tokens, {})):
    orders = [epoch_batches(encoded, epoch) for epoch in (0, 1, 2)]
    orders.append(epoch_batches(encoded, seed=SEED + 1))
    for one, other in itertools.combinations(map(row_sets, orders), 2):
      assert not any(rows in other for rows in one)


def test_batches_are_not_ordered_by_length():
  lengths = [batch["tokens"].shape[1] for batch in epoch_batches(ENCODED)]
  next_epoch = [x["tokens"].shape[1] for x in epoch_batches(ENCODED, 1)]
  for one, other in (
    (lengths, range(len(lengths))),
    (lengths[1:], lengths[:-1]),
    (lengths, next_epoch),
  ):
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.3


@pytest.mark.parametrize(
  ("num_rows", "epochs", "steps"),
  [
    (7336, 3, 690),  # MRPC, in both orders
    (50 * 32, 1.1, 55),  # 1.1 * 50 is above 55 in floats
    (1, 1, 1),
  ],
)
def test_an_incomplete_batch_counts_as_a_step(num_rows, epochs, steps):
  assert batches.num_steps(num_rows, 32, epochs) == steps


# --- encoding


def truncate_by_popping(
  size_a: int, size_b: int, length: int
) -> tuple[int, int]:
  """Removes one token at a time, as ELECTRA's code does."""
  while size_b and size_a + size_b > length - 3:
    if size_a > size_b:
      size_a -= 1
    else:
      size_b -= 1
  return (size_a, size_b) if size_b else (min(size_a, length - 2), 0)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(8, 16))
def test_truncation_matches_electra(size_a, size_b, length):
  expected = truncate_by_popping(size_a, size_b, length)
  assert truncated_sizes(size_a, size_b, length) == expected


def example(first, second=None, label="1") -> Example:
  return Example("0", first, second, label, "x.tsv:7")


def test_encoding_matches_transformers(tmp_path):
  (tmp_path / "vocab.txt").write_text("\n".join(TOKENIZER.vocab))
  bert = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
  pairs = [
    ("The swan's mute.", None),
    ("The swans", "is white, unknown"),
    ("a b c d e f g h i a b c d", None),
    ("a b c d e f", "g h i a b"),
    ("a b", "c"),
  ]
  encoded = encode(
    [example(*pair) for pair in pairs], TASKS["mrpc"], TOKENIZER, length=12
  )
  for tokens, types, pair in zip(
    encoded.tokens, encoded.types, pairs, strict=True
  ):
    expected = bert(*pair, truncation=True, max_length=12)
    assert tokens.tolist() == expected["input_ids"]
    assert types.tolist() == expected["token_type_ids"]
    assert tokens.dtype == types.dtype == np.int32
  assert encoded.num_cut == 2
  assert encoded.lengths_N.max() == 12


def test_an_empty_second_text_is_left_out():
  rows = [example(*pair) for pair in (("a b", ""), ("", "a"))]
  encoded = encode(rows, TASKS["qqp"], TOKENIZER, length=9)
  texts = [TOKENIZER.decode(row) for row in encoded.tokens]
  assert texts == ["[CLS] a b [SEP]", "[CLS] [SEP] a [SEP]"]


def test_scores_are_scaled():
  task = dataclasses.replace(TASKS["stsb"], scale=(2.5, 1.5))
  rows = [example("a", "b", score) for score in (4.0, 1.0)]
  targets = encode(rows, task, TOKENIZER, length=9).targets
  assert targets["label"].tolist() == [1, -1]
  assert targets["label"].dtype == np.float32
