"""Texts as rows of ids, as BERT and ELECTRA cut them, and rows as batches."""

import itertools

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from truenegs_jax.data.tokens.tokenizer import make_tokenizer
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.tasks import batches
from truenegs_jax.tasks.batches import encode, truncated_sizes
from truenegs_jax.tasks.glue import TASKS
from truenegs_jax.tasks.task import EncodedRows, Example

B, LIMIT, SEED = 8, 100, 3
WORDS = "the swan is ##s mute white a b c d e f g h i , .".split()
TOKENIZER = make_tokenizer(
  ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], lowercase=True
)


def make_encoded(num_rows=1030, *, longest=LIMIT, seed=0) -> EncodedRows:
  """Rows of 4 to `longest` tokens, most of them short; a row's label is its
  number, its first token too."""
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


def epoch_of(encoded, epoch=0, *, seed=SEED, batch_size=B, **more):
  steps = batches.num_steps(len(encoded.tokens), batch_size, 1)
  options = dict(batch_size=batch_size, seed=seed, limit=LIMIT) | more
  return [
    batches.batch_at(encoded, epoch * steps + i, **options)
    for i in range(steps)
  ]


def rows_of(found):
  return [set(batch["row"][batch["row"] >= 0].tolist()) for batch in found]


def padding(found):
  return 1 - sum(b["documents"].sum() for b in found) / sum(
    b["documents"].size for b in found
  )


def pairs_of(found):
  return {
    pair
    for rows in rows_of(found)
    for pair in itertools.combinations(sorted(rows), 2)
  }


ENCODED = make_encoded()


@pytest.mark.parametrize(
  "found",
  [
    epoch_of(ENCODED),
    epoch_of(ENCODED, 1),
    epoch_of(ENCODED, window=1),
    epoch_of(make_encoded(3)),  # not even one batch
    epoch_of(make_encoded(16)),  # batches without a rest
    list(batches.batches_in_order(ENCODED, batch_size=B, limit=LIMIT)),
  ],
)
def test_an_epoch_has_every_row_once_and_fills_up_one_batch(found):
  row = np.concatenate([batch["row"] for batch in found])
  real = row[row >= 0]
  np.testing.assert_array_equal(np.sort(real), np.arange(real.max() + 1))
  assert sum(-1 in batch["row"] for batch in found) == bool(len(real) % B)
  assert (row == -1).sum() == -len(real) % B
  weight = np.concatenate([batch["weight"] for batch in found])
  np.testing.assert_array_equal(weight, row >= 0)


@pytest.mark.parametrize(
  "found",
  [
    epoch_of(ENCODED),
    list(batches.batches_in_order(ENCODED, batch_size=B, limit=LIMIT)),
  ],
)
def test_a_batch_holds_its_rows_as_they_are_and_nothing_else(found):
  for batch in found:
    assert all(len(values) == B for values in batch.values())
    for b, row in enumerate(batch["row"]):
      n = 0 if row < 0 else len(ENCODED.tokens[row])
      assert batch["documents"][b].tolist() == [1] * n + [0] * (
        batch["documents"].shape[1] - n
      )
      for name in ("tokens", "types"):
        want = [] if row < 0 else getattr(ENCODED, name)[row]
        np.testing.assert_array_equal(batch[name][b, :n], want)
        assert not batch[name][b, n:].any()
      for name in ("label", "score"):
        assert batch[name][b] == max(row, 0)
    types = {name: str(values.dtype) for name, values in batch.items()}
    floats = {name for name, dtype in types.items() if dtype == "float32"}
    assert floats == {"score", "weight"}
    assert set(types.values()) == {"float32", "int32"}


def test_a_batch_is_the_shortest_of_few_lengths_that_holds_its_rows():
  lengths = set()
  for batch in epoch_of(ENCODED):
    length = batch["tokens"].shape[1]
    longest = batch["documents"].sum(axis=1).max()
    allowed = [n for n in batches.BUCKETS if n < LIMIT] + [LIMIT]
    assert length == min(n for n in allowed if n >= longest)
    lengths.add(length)
  assert LIMIT in lengths and len(lengths) > 3


def test_rows_longer_than_every_bucket_are_as_long_as_the_limit():
  encoded = make_encoded(40, longest=600)
  found = epoch_of(encoded, limit=700)
  assert max(batch["tokens"].shape[1] for batch in found) == 700


def test_a_batch_depends_on_seed_and_step_alone():
  again = make_encoded()  # equal, not the same: nothing of it is cached
  for step in (130, 4, 0, 260, 4):
    pair = [
      batches.batch_at(x, step, batch_size=B, seed=SEED, limit=LIMIT)
      for x in (ENCODED, again)
    ]
    for name, values in pair[0].items():
      np.testing.assert_array_equal(values, pair[1][name])
  other = make_encoded(1030, seed=1)  # the cache knows rows apart
  np.testing.assert_array_equal(
    epoch_of(other)[0]["tokens"], epoch_of(make_encoded(seed=1))[0]["tokens"]
  )


def test_seeds_and_epochs_have_orders_of_their_own():
  orders = [
    epoch_of(ENCODED),
    epoch_of(ENCODED, 1),
    epoch_of(ENCODED, 2),
    epoch_of(ENCODED, seed=SEED + 1),
  ]
  for one, other in itertools.combinations(map(rows_of, orders), 2):
    assert not any(rows in other for rows in one)
    same = sum(a == b for a, b in zip(one, other, strict=True))
    assert same == 0


@pytest.mark.parametrize("num_rows", [100, 400, 1030, 2000])
def test_rows_that_met_in_one_epoch_hardly_meet_in_the_next(num_rows):
  """However few the rows: a window is no more than a quarter of an epoch."""
  encoded = make_encoded(num_rows)
  first, second = (pairs_of(epoch_of(encoded, i)) for i in (0, 1))
  assert len(first & second) < 0.3 * len(first)


def test_grouped_rows_have_far_less_padding():
  assert padding(epoch_of(ENCODED)) < 0.6 * padding(epoch_of(ENCODED, window=1))
  in_order = batches.batches_in_order(ENCODED, batch_size=B, limit=LIMIT)
  assert padding(list(in_order)) < padding(epoch_of(ENCODED))


def test_long_and_short_batches_come_in_no_order():
  lengths = lambda seed: [
    batch["tokens"].shape[1] for batch in epoch_of(ENCODED, seed=seed)
  ]
  found = lengths(SEED)
  for one, other in (
    (found, range(len(found))),
    (found[1:], found[:-1]),
    (found, lengths(SEED + 1)),
  ):
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.3


def test_the_rest_of_an_epoch_is_drawn_without_a_look_at_lengths():
  encoded = make_encoded(9 * B + 4)  # the last window is not whole
  rest = [
    encoded.lengths_N[sorted(rows)].mean()
    for epoch in range(100)
    for rows in rows_of(epoch_of(encoded, epoch))
    if len(rows) < B
  ]
  error = np.std(rest) / np.sqrt(len(rest))
  assert abs(np.mean(rest) - encoded.lengths_N.mean()) < 4 * error


def test_evaluation_begins_with_the_longest_rows():
  found = batches.batches_in_order(ENCODED, batch_size=B, limit=LIMIT)
  lengths = [batch["tokens"].shape[1] for batch in found]
  assert lengths == sorted(lengths, reverse=True) and lengths[0] == LIMIT


def test_a_test_set_has_no_targets():
  encoded = EncodedRows(ENCODED.tokens[:9], ENCODED.types[:9], {})
  for batch in epoch_of(encoded):
    assert set(batch) == {"tokens", "types", "documents", "row", "weight"}


@pytest.mark.parametrize(
  ("num_rows", "batch_size", "epochs", "steps"),
  [
    (7336, 32, 3, 690),  # MRPC, both_orders
    (2490, 32, 10, 780),  # RTE
    (50 * 32, 32, 1.1, 55),  # 1.1 * 50 is above 55 in floats
    (7336, 32, 0.101, 24),
    (1, 32, 1, 1),
  ],
)
def test_the_last_batch_of_an_epoch_counts_as_a_step(
  num_rows, batch_size, epochs, steps
):
  assert batches.num_steps(num_rows, batch_size, epochs) == steps


def test_what_cannot_be_batched_is_refused():
  with pytest.raises(InputError, match="100 tokens, the limit is 99"):
    next(batches.batches_in_order(ENCODED, batch_size=B, limit=99))
  with pytest.raises(InputError, match="batch_size=0 must be at least 1"):
    epoch_of(ENCODED, batch_size=0)
  with pytest.raises(DataError, match="no rows"):
    epoch_of(EncodedRows([], [], {}))


# --- texts as rows of ids


def by_popping(size_a: int, size_b: int, length: int) -> tuple[int, int]:
  """ELECTRA's rule, a token at a time."""
  while size_b and size_a + size_b > length - 3:
    if size_a > size_b:
      size_a -= 1
    else:
      size_b -= 1
  return (size_a, size_b) if size_b else (min(size_a, length - 2), 0)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(8, 16))
def test_tokens_are_taken_from_the_longer_text(size_a, size_b, length):
  got = truncated_sizes(size_a, size_b, length)
  assert got == by_popping(size_a, size_b, length)


def example(first, second=None, label="1") -> Example:
  return Example("0", first, second, label, "x.tsv:7")


def test_rows_are_those_of_berts_tokenizer(tmp_path):
  (tmp_path / "vocab.txt").write_text("\n".join(TOKENIZER.vocab))
  peer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
  pairs = [
    ("The swan's mute.", None),
    ("The swans", "is white, unknown"),
    ("a b c d e f g h i a b c d", None),
    ("a b", "c"),
  ]
  got = encode(
    [example(*pair) for pair in pairs], TASKS["mrpc"], TOKENIZER, length=12
  )
  for tokens, types, pair in zip(got.tokens, got.types, pairs, strict=True):
    want = peer(*pair, truncation=True, max_length=12)
    assert tokens.tolist() == want["input_ids"]
    assert types.tolist() == want["token_type_ids"]
    assert tokens.dtype == types.dtype == np.int32
  assert got.num_cut == 1
  assert got.lengths_N.max() == 12


def test_a_pair_is_cut_and_an_empty_second_text_is_none():
  pairs = [("a b c d e f", "g h i"), ("a b", ""), ("", "a"), ("a", "b " * 9)]
  got = encode(
    [example(*pair) for pair in pairs], TASKS["qqp"], TOKENIZER, length=9
  )
  texts = [TOKENIZER.decode(row) for row in got.tokens]
  assert texts == [
    "[CLS] a b c [SEP] g h i [SEP]",
    "[CLS] a b [SEP]",
    "[CLS] [SEP] a [SEP]",
    "[CLS] a [SEP] b b b b b [SEP]",
  ]
  assert got.types[0].tolist() == [0] * 5 + [1] * 4
  assert got.num_cut == 2


def test_doubled_training_appends_the_pairs_the_other_way_round():
  examples = [example("a", "b", "0"), example("c d", "e", "1")]
  once = encode(examples, TASKS["mrpc"], TOKENIZER, length=9)
  twice = encode(examples, TASKS["mrpc"], TOKENIZER, length=9, swap=True)
  rows = [TOKENIZER.decode(row) for row in twice.tokens]
  assert rows[:2] == [TOKENIZER.decode(row) for row in once.tokens]
  assert rows[2:] == ["[CLS] b [SEP] a [SEP]", "[CLS] e [SEP] c d [SEP]"]
  assert twice.targets["label"].tolist() == [0, 1, 0, 1]


def test_labels_are_all_there_or_none():
  task = TASKS["rte"]
  unlabelled = example("a", "b", None)
  assert encode([unlabelled], task, TOKENIZER, length=9).targets == {}
  for label in ("maybe", 1.0, None):
    rows = [example("a", "b", "entailment"), example("a", "b", label)]
    with pytest.raises(DataError, match=f"x.tsv:7: label {label!r}; those"):
      encode(rows, task, TOKENIZER, length=9)
