"""Words as spans of bytes: cut as BERT may, numbered, remembered, bounded."""

import collections
import itertools

import numpy as np
import pytest

from truenegs_jax.data.tokens import split_words, word_cache
from truenegs_jax.data.tokens.split_words import (
  Splitter,
  find_words,
  join_words,
)
from truenegs_jax.data.tokens.word_cache import WordIdCache, WordIndex

HARD = [
  "a",
  "ab",
  "a" * 7,
  "a" * 8,
  "a" * 9,
  "a" * 16,
  "a" * 16 + "b",
  "a" * 16 + "c",
  "b" + "a" * 15,
  "é" * 8,
  "é" * 9,
  "天" * 5,
  "天" * 6,
  "x" * 5000,
]


def texts_of(found) -> list[str]:
  data = found.data_B.tobytes()
  spans = zip(found.starts_W.tolist(), found.lengths_W.tolist(), strict=True)
  return [data[start : start + size].decode() for start, size in spans]


def parted(lines: list[str]) -> list[list[str]]:
  found, ends_N = find_words(lines)
  all_words = texts_of(found)
  return [all_words[a:b] for a, b in itertools.pairwise([0, *ends_N.tolist()])]


def test_lines_are_cut_at_white_space_and_around_chinese():
  lines = ["", "a mute\tswan\r", " ", "天鹅ab天", "a\u00a0b \x0bc", "x\ny", ""]
  assert parted(lines) == [
    [],
    ["a", "mute", "swan"],
    [],
    ["天", "鹅", "ab", "天"],
    ["a\u00a0b", "\x0bc"],  # the normalizer's to decide
    ["x", "y"],
    [],
  ]
  assert parted([]) == []
  assert parted(["sw\ud800an"]) == [["swan"]]


def test_no_character_is_cut_off_that_bert_keeps_in_a_word():
  from tokenizers import normalizers

  bert = normalizers.BertNormalizer(lowercase=False)
  letters = [chr(c) for c in range(0x20000) if not 0xD800 <= c < 0xE000]
  found = parted([f"a{c}b" for c in letters])
  apart = [c for c, cut in zip(letters, found, strict=True) if len(cut) > 1]
  assert len(apart) > 20_000
  assert all(" " in bert.normalize_str(f"a{c}b") for c in apart)


def test_ascii_is_normalised_as_the_library_does():
  every = [f"a{chr(c)}B {chr(c)}" for c in range(128)]
  for lowercase in (True, False):
    splitter = Splitter(lowercase=lowercase, strip_accents=lowercase)
    found, _ = find_words(every)
    alone, ends_W = splitter.basic_tokens(found)
    # A word of other letters sends all through the normalizer.
    beside, ends_V = splitter.basic_tokens(find_words([*every, "я"])[0])
    assert texts_of(alone) == texts_of(beside)[:-1]
    np.testing.assert_array_equal(ends_W, ends_V[:-1])


def test_pieces_stay_with_their_words_whatever_a_text_holds():
  marks = "".join(split_words._MARKS)
  splitter = Splitter(lowercase=True, strip_accents=True)
  for line in ("É,x \x00 天鹅 ß", f"É,x \x00 {marks} ß", f"É {marks[3:]}"):
    found, _ = find_words([line])
    pieces, ends_W = splitter.basic_tokens(found)
    assert len(ends_W) == len(found.starts_W)
    one_by_one = [
      splitter.basic_tokens(found.take(np.array([i])))
      for i in range(len(ends_W))
    ]
    assert texts_of(pieces) == sum((texts_of(p) for p, _ in one_by_one), [])
    counts = np.diff(ends_W, prepend=0)
    assert counts.tolist() == [int(ends[-1]) for _, ends in one_by_one]


def random_words(number: int) -> list[str]:
  rng = np.random.default_rng(0)
  letters = list("ab天é")
  sizes = rng.integers(1, 9, number)
  made = ["".join(rng.choice(letters, size)) for size in sizes]
  return [*made, *HARD, *made[:100], *HARD]


@pytest.mark.parametrize("collide", [False, True])
def test_equal_words_and_no_others_have_one_row(monkeypatch, collide):
  if collide:  # as if all had the same hash
    monkeypatch.setattr(
      WordIndex, "_slots", lambda self, low, high: np.zeros(len(low), np.intp)
    )
  text = random_words(300 if collide else 20_000)
  index = WordIndex()
  row_of: dict[str, int] = {}
  for start in range(0, len(text), 1000):
    part = text[start : start + 1000]
    rows_W, new_N = index.rows(join_words([word.encode() for word in part]))
    before = len(row_of)
    for word, row in zip(part, rows_W.tolist(), strict=True):
      assert row_of.setdefault(word, row) == row
    assert len(set(row_of.values())) == len(row_of) == index.size
    new = [part[place] for place in new_N]
    assert [row_of[word] for word in new] == list(range(before, index.size))
  named = [word.decode() for word in index.words()]
  assert named == sorted(row_of, key=row_of.__getitem__)


def test_rows_that_are_kept_are_numbered_anew():
  text = [word.encode() for word in dict.fromkeys(random_words(5000))]
  index = WordIndex()
  index.rows(join_words(text))
  order = index.words()
  is_kept_N = np.arange(index.size) % 3 != 0
  index.keep(is_kept_N)
  kept = [w for w, keep in zip(order, is_kept_N, strict=True) if keep]
  assert index.words() == kept
  rows_W, new_N = index.rows(join_words(kept))
  assert rows_W.tolist() == list(range(len(kept))) and len(new_N) == 0
  assert index.long_bytes == sum(len(w) for w in kept if len(w) > 16)


def counting_encode(calls: collections.Counter):
  """Ids of a word: its length, once per byte, modulo 3."""

  def encode(some):
    calls.update(texts_of(some))
    lengths_N = some.lengths_W % 3
    return np.repeat(some.lengths_W, lengths_N).astype(np.int32), lengths_N

  return encode


def check_ids(table: WordIdCache, text: list[str]) -> None:
  ids_T, lengths_W = table.ids(join_words([word.encode() for word in text]))
  sizes_W = np.array([len(word.encode()) for word in text])
  np.testing.assert_array_equal(lengths_W, sizes_W % 3)
  np.testing.assert_array_equal(ids_T, np.repeat(sizes_W, sizes_W % 3))


def test_a_table_stays_small_and_keeps_what_is_met_again(monkeypatch):
  monkeypatch.setattr(word_cache, "MAX_WORDS", 200)
  monkeypatch.setattr(word_cache, "MAX_LONG_BYTES", 2000)
  calls: collections.Counter = collections.Counter()
  table = WordIdCache(counting_encode(calls))
  often = [f"often{i}" for i in range(30)]
  for turn in range(100):
    rare = [f"{turn}.{i}" + "long" * 10 * (i == 5) for i in range(20)]
    check_ids(table, often + rare)
    assert table._index.size <= 200 + 20
    assert table._index.long_bytes <= 2000 + 100
  assert max(calls[word] for word in often) == 1
  assert len(calls) == 30 + 100 * 20


def test_a_failed_call_leaves_a_table_that_can_be_used():
  calls: collections.Counter = collections.Counter()
  encode = counting_encode(calls)
  failing = [False, True, False, False]

  def sometimes(some):
    if failing.pop(0):
      raise KeyboardInterrupt
    return encode(some)

  table = WordIdCache(sometimes)
  check_ids(table, ["a", "bb"])
  with pytest.raises(KeyboardInterrupt):
    check_ids(table, ["bb", "cccc"])
  check_ids(table, ["cccc", "a", "bb"])
  check_ids(table, ["d", "cccc"])
