"""Words are found, split, numbered and cached as spans of bytes."""

import collections
import itertools

import numpy as np
import pytest

from truenegs_jax.data.tokens import split_words, word_cache
from truenegs_jax.data.tokens.split_words import (
  Splitter,
  WordSpans,
  find_words,
  join_words,
)
from truenegs_jax.data.tokens.word_cache import WordIdCache, WordIndex

# Lengths around 8 and 16 bytes, at which words are stored differently.
EDGE_WORDS = [*("a" * n for n in (1, 7, 8, 9, 16)), "ab", "x" * 5000]
EDGE_WORDS += ["a" * 16 + "b", "a" * 16 + "c", "b" + "a" * 15]
EDGE_WORDS += ["é" * 8, "é" * 9, "天" * 5, "天" * 6]


def decode(words: WordSpans) -> list[str]:
  data = words.data_B.tobytes()
  spans = zip(words.starts_W.tolist(), words.lengths_W.tolist(), strict=True)
  return [data[start : start + size].decode() for start, size in spans]


def split_lines(lines: list[str]) -> list[list[str]]:
  """Returns the words of each line."""
  words, ends_N = find_words(lines)
  texts = decode(words)
  return [texts[a:b] for a, b in itertools.pairwise([0, *ends_N.tolist()])]


def test_lines_are_split_at_white_space_and_around_chinese():
  lines = ["", "a mute\tswan\r", " ", "天鹅ab天", "a\u00a0b \x0bc", "x\ny", ""]
  assert split_lines(lines) == [
    [],
    ["a", "mute", "swan"],
    [],
    ["天", "鹅", "ab", "天"],
    ["a\u00a0b", "\x0bc"],  # left to the normalizer
    ["x", "y"],
    [],
  ]
  assert split_lines([]) == []
  assert split_lines(["sw\ud800an"]) == [["swan"]]


def test_only_characters_that_bert_splits_off_are_split_off():
  from tokenizers import normalizers

  bert = normalizers.BertNormalizer(lowercase=False)
  letters = [chr(c) for c in range(0x20000) if not 0xD800 <= c < 0xE000]
  lines = split_lines([f"a{c}b" for c in letters])
  is_split = [len(words) > 1 for words in lines]
  split_off = list(itertools.compress(letters, is_split))
  assert len(split_off) > 20_000
  assert all(" " in bert.normalize_str(f"a{c}b") for c in split_off)


def test_ascii_is_normalized_as_by_the_library():
  ascii_lines = [f"a{chr(c)}B {chr(c)}" for c in range(128)]
  for lowercase in (True, False):
    splitter = Splitter(lowercase=lowercase, strip_accents=lowercase)
    tokens, ends_W = splitter.basic_tokens(find_words(ascii_lines)[0])
    # One other word sends all of them through the library's normalizer.
    words, _ = find_words([*ascii_lines, "я"])
    library_tokens, library_ends_W = splitter.basic_tokens(words)
    assert decode(tokens) == decode(library_tokens)[:-1]
    np.testing.assert_array_equal(ends_W, library_ends_W[:-1])


def test_words_are_split_alike_alone_and_together():
  separators = "".join(split_words._SEPARATORS)
  splitter = Splitter(lowercase=True, strip_accents=True)
  lines = ["É,x \x00 天鹅 ß", f"É,x \x00 {separators} ß"]
  for line in (*lines, f"É {separators[3:]}"):
    words, _ = find_words([line])
    tokens, ends_W = splitter.basic_tokens(words)
    assert len(ends_W) == len(words.starts_W)
    indices = np.arange(len(ends_W))[:, None]
    alone = [splitter.basic_tokens(words.take(index)) for index in indices]
    assert decode(tokens) == sum((decode(t) for t, _ in alone), [])
    counts = np.diff(ends_W, prepend=0)
    assert counts.tolist() == [int(ends[-1]) for _, ends in alone]


def random_words(count: int) -> list[str]:
  rng = np.random.default_rng(0)
  letters = list("ab天é")
  sizes = rng.integers(1, 9, count)
  words = ["".join(rng.choice(letters, size)) for size in sizes]
  return [*words, *EDGE_WORDS, *words[:100], *EDGE_WORDS]


@pytest.mark.parametrize("collide", [False, True])
def test_each_distinct_word_has_its_own_row(monkeypatch, collide):
  if collide:

    def hash_to_zero(self, low_W, high_W):
      return np.zeros(len(low_W), np.intp)

    monkeypatch.setattr(WordIndex, "_first_slots", hash_to_zero)
  words = random_words(300 if collide else 20_000)
  index = WordIndex()
  row_of: dict[str, int] = {}
  for start in range(0, len(words), 1000):
    batch = words[start : start + 1000]
    rows_W, new_N = index.lookup(join_words([word.encode() for word in batch]))
    before = len(row_of)
    for word, row in zip(batch, rows_W.tolist(), strict=True):
      assert row_of.setdefault(word, row) == row
    assert len(set(row_of.values())) == len(row_of) == index.size
    new = [batch[i] for i in new_N]
    assert [row_of[word] for word in new] == list(range(before, index.size))
  indexed = [word.decode() for word in index.words()]
  assert indexed == sorted(row_of, key=row_of.__getitem__)


def test_kept_rows_are_renumbered_in_order():
  words = [word.encode() for word in dict.fromkeys(random_words(5000))]
  index = WordIndex()
  index.lookup(join_words(words))
  order = index.words()
  is_kept_N = np.arange(index.size) % 3 != 0
  index.keep(is_kept_N)
  kept = list(itertools.compress(order, is_kept_N))
  assert index.words() == kept
  rows_W, new_N = index.lookup(join_words(kept))
  assert rows_W.tolist() == list(range(len(kept))) and len(new_N) == 0
  assert index.long_bytes == sum(len(w) for w in kept if len(w) > 16)


class StubEncode:
  """Encodes n bytes as n, n modulo 3 times; counts the calls per word."""

  def __init__(self):
    self.calls = collections.Counter()

  def __call__(self, words: WordSpans):
    self.calls.update(decode(words))
    lengths_N = words.lengths_W % 3
    return np.repeat(words.lengths_W, lengths_N).astype(np.int32), lengths_N


def check_lookup(cache: WordIdCache, words: list[str]) -> None:
  ids_T, lengths_W = cache.lookup(join_words([w.encode() for w in words]))
  sizes_W = np.array([len(word.encode()) for word in words])
  np.testing.assert_array_equal(lengths_W, sizes_W % 3)
  np.testing.assert_array_equal(ids_T, np.repeat(sizes_W, sizes_W % 3))


def test_the_cache_is_bounded_and_keeps_repeated_words(monkeypatch):
  monkeypatch.setattr(word_cache, "MAX_WORDS", 200)
  monkeypatch.setattr(word_cache, "MAX_LONG_BYTES", 2000)
  encode = StubEncode()
  cache = WordIdCache(encode)
  frequent = [f"often{i}" for i in range(30)]
  for turn in range(100):
    rare = [f"{turn}.{i}" + "long" * 10 * (i == 5) for i in range(20)]
    check_lookup(cache, frequent + rare)
    assert cache._index.size <= 200 + 20
    assert cache._index.long_bytes <= 2000 + 100
  assert max(encode.calls[word] for word in frequent) == 1
  assert len(encode.calls) == 30 + 100 * 20


def test_the_cache_can_be_used_after_a_failed_call():
  encode = StubEncode()
  failures = [False, True, False, False]

  def fail_sometimes(words):
    if failures.pop(0):
      raise KeyboardInterrupt
    return encode(words)

  cache = WordIdCache(fail_sometimes)
  check_lookup(cache, ["a", "bb"])
  with pytest.raises(KeyboardInterrupt):
    check_lookup(cache, ["bb", "cccc"])
  check_lookup(cache, ["cccc", "a", "bb"])
  check_lookup(cache, ["d", "cccc"])
