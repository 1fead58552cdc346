"""Trains a WordPiece vocabulary on text of any language.

  vocab = train_vocabulary(corpus, size=30_522, lowercase=True)

Words between white space are counted first; each distinct one is normalized
once. The trainer of `tokenizers` then merges pieces. Its random choices are
fixed, so that every process gets the same vocabulary.
"""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from truenegs_jax.data.tokens import split_words
from truenegs_jax.data.tokens.split_words import Splitter, WordSpans
from truenegs_jax.data.tokens.tokenizer import MAX_WORD_CHARACTERS, SPECIALS
from truenegs_jax.data.tokens.word_cache import WordIndex, ensure_capacity
from truenegs_jax.runtime.errors import InputError

Counts = collections.Counter[str]

# Limits of the distinct words in memory, about 100 bytes each. Beyond them,
# after about 700 MB of English, the rarest words are dropped. Counts of rare
# words then are a few too low, which may change the last entries.
MAX_WORDS = 3 * 2**19
MAX_LONG_BYTES = 2**26
# The trainer must be fed each word as often as it occurs. Larger totals are
# scaled down to this number of words.
MAX_FED_WORDS = 100_000_000
# Number of characters with entries, the default of trainers for BERT; all other
# characters become [UNK]. A text of which these cover less than MIN_COVERAGE,
# such as Chinese, gets more.
MAX_ALPHABET = 1000
MIN_COVERAGE = 0.9995
NORMALIZE_BYTES = 500_000  # bytes of words that are normalized in one call


def train_vocabulary(
  texts: Iterable[str],
  *,
  size: int,
  lowercase: bool,
  strip_accents: bool | None = None,
  progress: Callable[..., object] = lambda *_, **__: None,
) -> tuple[str, ...]:
  """Trains a WordPiece vocabulary of at most `size` entries.

  Special entries come first (ids 0 to 4), then single characters, then pieces
  by frequency. The same texts in the same order give the same vocabulary in
  every process. It has fewer entries if the texts have too few distinct words.

  Args:
    strip_accents: whether "é" becomes "e"; None for the value of `lowercase`.
    progress: called about every 100 kB as `progress(text_bytes, detail)`, and
      at the beginning of a stage also with `at_once=True`.

  Raises:
    InputError: `size` is too small for the special entries and characters.
  """
  splitter = Splitter(
    lowercase=lowercase,
    strip_accents=lowercase if strip_accents is None else strip_accents,
  )
  counts = _count_words(texts, splitter, progress)
  fixed = list(SPECIALS) + _alphabet(counts, limit=size // 2)
  if size < len(fixed):
    raise InputError(
      f"data.vocab_size={size} is too small. The special entries and the"
      f" characters of this text take {len(fixed):,}. Set"
      f" --config.data.vocab_size to {2 * len(fixed)} or more."
    )
  backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
  backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  # The trainer numbers characters in the order of a randomly seeded hash table
  # and breaks ties between merges by these numbers. Passing the characters as
  # special tokens fixes the numbers, and with them the result.
  trainer = trainers.WordPieceTrainer(
    vocab_size=size,
    min_frequency=2,
    show_progress=False,
    special_tokens=fixed,
    limit_alphabet=0,
  )
  backend.train_from_iterator(_repeat_words(counts), trainer)
  ids = backend.get_vocab()
  return tuple(sorted(ids, key=ids.__getitem__))


def _count_words(
  texts: Iterable[str], splitter: Splitter, progress: Callable[..., object]
) -> Counts:
  """Counts the tokens of BERT's BasicTokenizer."""
  raw, basic = _WordCounts(), _WordCounts()
  text_bytes = num_words = 0
  progress(0, "counting", at_once=True)
  for batch in split_words.batch_texts(texts):
    words, _ = split_words.find_words(batch)
    raw.add(words, 1)
    num_words += len(words.starts_W)
    text_bytes += len(words.data_B) - split_words.PADDING - 1
    if raw.index.size > MAX_WORDS or raw.index.long_bytes > MAX_LONG_BYTES:
      _add_basic(basic, raw, splitter)
      basic.drop_rare()
      raw = _WordCounts()
    progress(text_bytes, f"counting, {num_words:,} words")
  progress(text_bytes, f"learning, {num_words:,} words", at_once=True)
  _add_basic(basic, raw, splitter)
  return basic.counts()


def _add_basic(
  basic: "_WordCounts", raw: "_WordCounts", splitter: Splitter
) -> None:
  """Normalizes and splits the words of `raw`, and adds them to `basic`."""
  words = split_words.join_words(raw.index.words())
  counts_W = raw.counts_N[: raw.index.size]
  is_ascii_W = words.are_ascii()
  # Separately, because the splitter is faster on ASCII alone.
  for is_selected_W in (is_ascii_W, ~is_ascii_W):
    selected = np.flatnonzero(is_selected_W)
    batch_of = np.cumsum(words.lengths_W[selected]) // NORMALIZE_BYTES
    for batch in np.split(selected, np.flatnonzero(np.diff(batch_of)) + 1):
      tokens, ends_W = splitter.basic_tokens(words.take(batch))
      counts_P = np.repeat(counts_W[batch], np.diff(ends_W, prepend=0))
      is_short_P = tokens.num_characters() <= MAX_WORD_CHARACTERS
      basic.add(tokens.take(is_short_P), counts_P[is_short_P])


class _WordCounts:
  """Counts of distinct words."""

  def __init__(self) -> None:
    self.index = WordIndex()
    self.counts_N = np.zeros(0, np.int64)  # by row, with spare capacity

  def add(self, words: WordSpans, counts_W: np.ndarray | int) -> None:
    """Adds `counts_W` to the counts of words."""
    old = self.index.size
    rows_W, _ = self.index.lookup(words)
    self.counts_N = ensure_capacity(self.counts_N, self.index.size)
    self.counts_N[old : self.index.size] = 0
    np.add.at(self.counts_N, rows_W, counts_W)

  def drop_rare(self) -> None:
    """Keeps the MAX_WORDS / 2 most frequent words if there are too many."""
    counts_N = self.counts_N[: self.index.size]
    if len(counts_N) <= MAX_WORDS:
      return
    least = np.sort(counts_N)[-MAX_WORDS // 2]
    # Words of equal count are dropped together, so their order is irrelevant.
    is_kept_N = counts_N > least
    self.counts_N = counts_N[is_kept_N]
    self.index.keep(is_kept_N)

  def counts(self) -> Counts:
    """Returns the words and their counts."""
    words = map(bytes.decode, self.index.words())
    counts_N = self.counts_N[: self.index.size].tolist()
    return collections.Counter(dict(zip(words, counts_N, strict=True)))


def _alphabet(counts: Counts, *, limit: int) -> list[str]:
  """Returns the entries of single characters, and those with `##`."""
  kept = _choose_characters(counts, limit=limit)
  inner = {c for word in counts for c in word[1:]} & kept
  return sorted(kept) + ["##" + c for c in sorted(inner)]


def _choose_characters(counts: Counts, *, limit: int) -> set[str]:
  """Chooses the MAX_ALPHABET characters most frequent in distinct words.

  If they cover too little of the text, chooses the most frequent characters of
  the text instead: enough for MIN_COVERAGE, or `limit` if that is fewer.
  """
  in_words = collections.Counter("".join(counts))
  by_words = sorted(in_words, key=lambda c: (-in_words[c], c))
  kept = set(by_words[:MAX_ALPHABET])
  if len(kept) == len(in_words):
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


def _repeat_words(counts: Counts) -> Iterator[str]:
  """Yields each word as often as it occurs, in strings of bounded length."""
  scale = -(-counts.total() // MAX_FED_WORDS) or 1
  for word in sorted(counts):
    remaining = counts[word] // scale
    while remaining > 0:
      yield " ".join([word] * min(remaining, 10_000))
      remaining -= 10_000
