"""Trains vocabularies of BERT's WordPiece.

  vocab = train_vocabulary(corpus, size=30_522, lowercase=True)

Training counts words, which are normalized once per 2 MB; the trainer of
`tokenizers` then merges pieces. Its random choices are fixed, so that every
process gets the same vocabulary.
"""

import collections
import itertools
import operator
import re
import string
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from truenegs_jax.data.tokenizer import MAX_WORD_CHARACTERS, SPECIALS
from truenegs_jax.runtime.errors import InputError

Counts = collections.Counter[str]
BATCH_CHARACTERS = 2_000_000  # many, so that most words are repeated
_CHINESE = re.compile("[\u4e00-\u9fff]")  # the most common characters
_SPACES = bytes.maketrans(b"\t\r", b"  ")
# Distinct words in memory, about 200 bytes each. Beyond it, all but the most
# frequent half are dropped, which may change the last entries.
MAX_WORDS = 3 * 2**19
# The trainer must be fed each word as often as it occurs. Larger totals are
# scaled down to this number of words.
MAX_FED_WORDS = 100_000_000
# Characters with entries, as in trainers for BERT; others become [UNK]. A text
# of which these cover less than MIN_COVERAGE, such as Chinese, gets more.
MAX_ALPHABET = 1000
MIN_COVERAGE = 0.9995


def batch_texts(
  texts: Iterable[str], size: int, most: int = sys.maxsize
) -> Iterator[list[str]]:
  """Groups texts until they have `size` characters, or are `most` texts."""
  batch: list[str] = []
  num_chars = 0
  for text in texts:
    batch.append(text)
    num_chars += len(text)
    if num_chars >= size or len(batch) == most:
      yield batch
      batch = []
      num_chars = 0
  if batch:
    yield batch


def split_lines(lines: list[str], *, lowercase: bool) -> Any:
  """Splits one or more lines at ASCII and common Chinese, like BERT.

  Returns pyarrow's ListArray of the words of each line.

  BERT may split these words further, but never joins two of them. Spaces, tabs,
  line ends and punctuation separate words, some of which are empty. Lone
  surrogates have no UTF-8 and are dropped.
  """
  import pyarrow
  import pyarrow.compute

  text = "\n".join([line.replace("\n", " ") for line in lines])
  text = _CHINESE.sub(r" \g<0> ", text)
  data = text.encode("utf-8", "ignore").translate(_SPACES)
  if lowercase:
    data = data.lower()
  for mark in string.punctuation:
    data = data.replace(mark.encode(), f" {mark} ".encode())
  text_1 = pyarrow.scalar(data, pyarrow.large_string())
  lines_N = pyarrow.compute.split_pattern(text_1, "\n").values
  return pyarrow.compute.split_pattern(lines_N, " ")


def train_vocabulary(
  texts: Iterable[str],
  *,
  size: int,
  lowercase: bool,
  strip_accents: bool | None = None,
  progress: Callable[[str], object] = lambda _: None,
) -> tuple[str, ...]:
  """Trains a WordPiece vocabulary of at most `size` entries.

  Special entries come first (ids 0 to 4), then single characters, then pieces
  by frequency. It has fewer entries if the texts have too few distinct words.

  Args:
    strip_accents: whether "é" becomes "e"; None for the value of `lowercase`.
    progress: called about every 2 MB with a note for the user.
  """
  normalizer = normalizers.BertNormalizer(
    lowercase=lowercase, strip_accents=strip_accents
  )
  counts = _count_words(texts, normalizer, progress)
  characters = _choose_characters(counts, limit=size // 2 - len(SPECIALS))
  inner = {c for word in counts for c in word[1:]} & characters
  fixed = [*SPECIALS, *sorted(characters), *("##" + c for c in sorted(inner))]
  if size < len(fixed):
    raise InputError(
      f"data.vocab_size={size} is too small: special entries and characters of"
      f" this text take {len(fixed):,}. Set --config.data.vocab_size to"
      f" {2 * len(fixed)} or more."
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
  texts: Iterable[str],
  normalizer: normalizers.BertNormalizer,
  progress: Callable[[str], object],
) -> Counts:
  split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
  counts = Counts()
  num_words = 0
  for batch in batch_texts(texts, BATCH_CHARACTERS):
    lines = split_lines(batch, lowercase=normalizer.lowercase)
    words = lines.values.value_counts().to_pylist()
    for word, number in map(operator.itemgetter("values", "counts"), words):
      if word.isascii() and word.isprintable():
        tokens = [word]
      else:
        tokens = [token for token, _ in split(normalizer.normalize_str(word))]
      for token in tokens:
        if 0 < len(token) <= MAX_WORD_CHARACTERS:
          counts[token] += number
          num_words += number
    if len(counts) > MAX_WORDS:
      # Words of equal count are dropped together: their order is irrelevant.
      least = sorted(counts.values())[-MAX_WORDS // 2]
      counts = Counts({word: n for word, n in counts.items() if n > least})
    progress(f"counting, {num_words:,} words")
  progress(f"learning, {num_words:,} words")
  return counts


def _choose_characters(counts: Counts, *, limit: int) -> set[str]:
  """Chooses the MAX_ALPHABET characters most frequent in distinct words.

  If they cover too little of the text, chooses the most frequent characters of
  the text instead: enough for MIN_COVERAGE, or those of `limit` entries, two
  for a character that words also go on with, if that is fewer.
  """
  in_words = collections.Counter("".join(counts))
  by_words = sorted(in_words, key=lambda c: (-in_words[c], c))
  kept = set(by_words[:MAX_ALPHABET])
  if len(kept) == len(in_words):
    return kept
  in_text = Counts()
  for word, number in counts.items():
    for character in word:
      in_text[character] += number
  needed = MIN_COVERAGE * in_text.total()
  if sum(in_text[c] for c in kept) >= needed:
    return kept
  by_text = sorted(in_text, key=lambda c: (-in_text[c], c))
  covered = itertools.accumulate(in_text[c] for c in by_text)
  least = sum(value < needed for value in covered) + 1
  inner = {c for word in counts for c in word[1:]}
  entries = itertools.accumulate(1 + (c in inner) for c in by_text)
  most = sum(value <= limit for value in entries)
  return set(by_text[: max(MAX_ALPHABET, min(least, most))])


def _repeat_words(counts: Counts) -> Iterator[str]:
  """Yields each word as often as it occurs, in strings of bounded length."""
  scale = -(-counts.total() // MAX_FED_WORDS) or 1
  for word in sorted(counts):
    remaining = counts[word] // scale
    while remaining > 0:
      yield " ".join([word] * min(remaining, 10_000))
      remaining -= 10_000
