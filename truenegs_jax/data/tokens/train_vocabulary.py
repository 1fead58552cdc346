"""Learns a WordPiece vocabulary from text of any language.

  vocab = train_vocabulary(corpus, size=30_522, lowercase=True)

Words are counted as they stand between white space; each different one is
normalised once. The merging of pieces is that of `tokenizers`, made to give the
same result in every process.
"""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from truenegs_jax.data.tokens.split_words import (
  PADDING,
  Splitter,
  WordSpans,
  batch_texts,
  find_words,
  join_words,
)
from truenegs_jax.data.tokens.tokenizer import MAX_WORD_CHARACTERS, SPECIALS
from truenegs_jax.data.tokens.word_cache import WordIndex, ensure_capacity
from truenegs_jax.runtime.errors import InputError

Counts = collections.Counter[str]

# Different words that are kept in mind, each some 100 bytes. Beyond, from some
# 700 MB of English on, the rarest are forgotten: counts of rare words are too
# low by a few, and other entries may come last for it.
MAX_WORDS = 3 * 2**19
MAX_LONG_BYTES = 2**26
# Words that the trainer is shown: it wants each as often as it occurs. Counts
# that add up to more are scaled down.
MAX_SHOWN = 100_000_000
# Characters with entries; others become [UNK]. The first is the default of
# trainers for BERT; where it does not cover as much of the text as the second
# says, as in Chinese, more are taken.
MAX_ALPHABET = 1000
MIN_COVERAGE = 0.9995
NORMALISED_AT_ONCE = 500_000  # bytes


def train_vocabulary(
  texts: Iterable[str],
  *,
  size: int,
  lowercase: bool,
  strip_accents: bool | None = None,
  progress: Callable[..., object] = lambda *_, **__: None,
) -> tuple[str, ...]:
  """Learns a WordPiece vocabulary of at most `size` entries.

  Specials come first (ids 0 to 4), then single characters, then pieces by
  frequency. The same texts in the same order give the same vocabulary in every
  process. It is shorter than `size` where they hold too few different words.

  Args:
    strip_accents: None does it where text is lower-cased, as BERT.
    progress: called about every 100 kB with the bytes that were counted and
      words for a person; as a stage begins, also with `at_once=True`.

  Raises:
    InputError: `size` does not hold the specials and the characters.
  """
  splitter = Splitter(
    lowercase=lowercase,
    strip_accents=lowercase if strip_accents is None else strip_accents,
  )
  counts = _count_words(texts, splitter, progress)
  first = list(SPECIALS) + _alphabet(counts, limit=size // 2)
  if size < len(first):
    raise InputError(
      f"data.vocab_size={size}: the special entries and the characters of"
      f" this text alone take {len(first)}; set at least {2 * len(first)}."
    )
  backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
  backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  # The trainer numbers the characters in the order of a randomly seeded hash
  # table and breaks ties between merges by these numbers. Handing it the
  # characters as "special" entries fixes the numbers, hence the result.
  trainer = trainers.WordPieceTrainer(
    vocab_size=size,
    min_frequency=2,
    show_progress=False,
    special_tokens=first,
    limit_alphabet=0,
  )
  backend.train_from_iterator(_repeated(counts), trainer)
  ids = backend.get_vocab()
  return tuple(sorted(ids, key=ids.__getitem__))


def _count_words(
  texts: Iterable[str],
  splitter: Splitter,
  progress: Callable[..., object],
) -> Counts:
  """Counts what BERT tokenizes: words, normalised and without punctuation."""
  raw, basic = _Tally(), _Tally()
  text_bytes = num_words = 0
  progress(0, "counting", at_once=True)
  for batch in batch_texts(texts):
    words, _ = find_words(batch)
    raw.add(words, 1)
    num_words += len(words.starts_W)
    text_bytes += len(words.data_B) - PADDING - 1
    if raw.index.size > MAX_WORDS or raw.index.long_bytes > MAX_LONG_BYTES:
      _add_basic(basic, raw, splitter)
      basic.forget_rare()
      raw = _Tally()
    progress(text_bytes, f"counting, {num_words:,} words")
  progress(text_bytes, f"learning, {num_words:,} words", at_once=True)
  _add_basic(basic, raw, splitter)
  return basic.counts()


def _add_basic(basic: "_Tally", raw: "_Tally", splitter: Splitter) -> None:
  """Adds what words of a text are when normalised and parted."""
  words = join_words(raw.index.words())
  counts_W = raw.counts_N[: raw.index.size]
  is_ascii_W = words.are_ascii()
  for some_W in (is_ascii_W, ~is_ascii_W):  # apart: see Splitter
    some = np.flatnonzero(some_W)
    parts = np.cumsum(words.lengths_W[some]) // NORMALISED_AT_ONCE
    for part in np.split(some, np.flatnonzero(np.diff(parts)) + 1):
      found, ends_W = splitter.basic_tokens(words.take(part))
      counts_P = np.repeat(counts_W[part], np.diff(ends_W, prepend=0))
      is_short_P = found.num_characters() <= MAX_WORD_CHARACTERS
      basic.add(found.take(is_short_P), counts_P[is_short_P])


class _Tally:
  """Counts words."""

  def __init__(self) -> None:
    self.index = WordIndex()
    self.counts_N = np.zeros(0, np.int64)  # of the rows; with room to grow

  def add(self, words: WordSpans, counts_W: np.ndarray | int) -> None:
    """Counts words, each as often as is said."""
    old = self.index.size
    rows_W, _ = self.index.rows(words)
    self.counts_N = ensure_capacity(self.counts_N, self.index.size)
    self.counts_N[old : self.index.size] = 0
    np.add.at(self.counts_N, rows_W, counts_W)

  def forget_rare(self) -> None:
    """Keeps the more frequent half of too many words."""
    counts_N = self.counts_N[: self.index.size]
    if len(counts_N) <= MAX_WORDS:
      return
    least = np.sort(counts_N)[-MAX_WORDS // 2]
    is_kept_N = counts_N > least  # of equals all or none: no order decides
    self.counts_N = counts_N[is_kept_N]
    self.index.keep(is_kept_N)

  def counts(self) -> Counts:
    """The words and how often each was counted."""
    words = map(bytes.decode, self.index.words())
    counts_N = self.counts_N[: self.index.size].tolist()
    return collections.Counter(dict(zip(words, counts_N, strict=True)))


def _alphabet(counts: Counts, *, limit: int) -> list[str]:
  """The characters with entries, as word starts and as `##` inside."""
  kept = _characters(counts, limit=limit)
  inner = {c for word in counts for c in word[1:]} & kept
  return sorted(kept) + ["##" + c for c in sorted(inner)]


def _characters(counts: Counts, *, limit: int) -> set[str]:
  """Characters of the most words, or those that cover the text."""
  in_words = collections.Counter("".join(counts))
  by_words = sorted(in_words, key=lambda c: (-in_words[c], c))
  kept = set(by_words[:MAX_ALPHABET])
  if len(by_words) <= MAX_ALPHABET:
    return kept
  in_text: Counts = collections.Counter()
  for word, number in counts.items():
    for character in word:
      in_text[character] += number
  needed = MIN_COVERAGE * in_text.total()
  if sum(in_text[c] for c in kept) >= needed:
    return kept
  by_text = sorted(in_text, key=lambda c: (-in_text[c], c))
  covered = itertools.accumulate(in_text[c] for c in by_text)
  least = sum(value < needed for value in covered) + 1
  return set(by_text[: max(MAX_ALPHABET, min(least, limit))])


def _repeated(counts: Counts) -> Iterator[str]:
  """Every word as often as it occurs, in strings of bounded length."""
  scale = -(-counts.total() // MAX_SHOWN) or 1
  for word in sorted(counts):
    left = counts[word] // scale
    while left > 0:
      yield " ".join([word] * min(left, 10_000))
      left -= 10_000
