"""Vocabularies are reproducible and fit any language."""

import collections
import functools
import hashlib
import random
import re

import numpy as np
import pytest
from tokenizers import normalizers, pre_tokenizers

from support.texts import ODD_LINES, random_lines
from truenegs_jax.data import vocabulary as vocabulary_lib
from truenegs_jax.data.encoder import Encoder
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.data.vocabulary import train_vocabulary
from truenegs_jax.runtime.errors import InputError

CASES = [(True, True), (False, False), (True, False), (False, True)]
ROOTS = ["swan", "grebe", "crane", "heron", "coot", "plover", "été", "naïve"]
ROOTS += ["façade", "o'clock", "x-ray", "3rd"]
SUFFIXES = ["", "s", "ing", "ed", "like", "ness", "less", "-like", "(a)", *";,"]


def make_lines(number: int = 3000) -> list[str]:
  """Draws lines of words with prefixes and suffixes."""
  rng = np.random.default_rng(7)
  parts = (["un", "re", "", "", "over"], ROOTS, SUFFIXES)
  words = ["".join(map(rng.choice, parts)) for _ in range(9 * number)]
  lines = [" ".join(words[i : i + 9]) for i in range(0, len(words), 9)]
  return [line.capitalize() for line in lines]


def count_words(texts, **options):
  normalizer = normalizers.BertNormalizer(**options)
  return vocabulary_lib._count_words(texts, normalizer, lambda note: None)


@pytest.mark.parametrize("lowercase, strip_accents", CASES)
def test_word_counts_equal_those_of_the_library(lowercase, strip_accents):
  options = {"lowercase": lowercase, "strip_accents": strip_accents}
  lines = make_lines(200)
  texts = ODD_LINES + random_lines(400) + lines + ["\n".join(lines[:9])] * 3
  normalizer = normalizers.BertNormalizer(**options)
  split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
  expected: collections.Counter = collections.Counter()
  for text in texts:
    clean = normalizer.normalize_str(text.encode("utf-8", "ignore").decode())
    expected.update(word for word, _ in split(clean) if len(word) <= 100)
  assert count_words(texts, **options) == expected


def test_vocabularies_do_not_change():
  letters = random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=1800)
  words = ["".join(letters[i : i + 6]) for i in range(0, 1800, 6)] * 2
  # Many letters and ties, for which the trainer of `tokenizers` alone gives
  # another vocabulary in each process.
  ties = [" ".join(words)]
  for lines, size, lowercase, digest in (
    (make_lines(), 300, True, "4002f993717e0176"),
    (make_lines(), 300, False, "d8188aadc5570279"),
    (ties, 400, True, "b653d6d7ae2c7950"),
  ):
    vocab = train_vocabulary(lines, size=size, lowercase=lowercase)
    text = "\n".join(vocab).encode()
    assert hashlib.sha256(text).hexdigest()[:16] == digest


def test_text_without_spaces_gets_enough_characters():
  rng = np.random.default_rng(1)
  characters = rng.permutation([chr(c) for c in range(0x4E00, 0x6E00)])[:5000]
  ranks = np.minimum(rng.zipf(1.3, 120_000), 5000) - 1
  text = "".join(characters[ranks])
  lines = [text[i : i + 50] + "，" for i in range(0, len(text), 50)]
  vocab = train_vocabulary(lines, size=12_000, lowercase=True)
  tokenizer = make_tokenizer(vocab, lowercase=True)
  tokens_T, _ = Encoder(tokenizer).encode(lines)
  share = (tokens_T == tokenizer.unk).mean()
  assert 0 < share < 1.0001 * (1 - vocabulary_lib.MIN_COVERAGE)
  small = train_vocabulary(lines, size=2400, lowercase=True)
  assert set(characters[:500]) < set(small)  # the most frequent ones
  assert len(small) < 2400


def test_the_size_that_a_message_names_is_enough():
  letters = [chr(c) for c in range(0xAC00, 0xAC00 + 3000)]
  lines = [" ".join(a + b for a, b in zip(letters, letters[1:], strict=False))]
  train = functools.partial(train_vocabulary, lines, lowercase=False)
  with pytest.raises(InputError, match="is too small") as error:
    train(size=2000)
  size = int(re.findall(r"vocab_size to (\d+)", str(error.value))[0])
  assert len(train(size=size)) <= size


def test_words_that_occur_once_are_not_learned():
  vocab = train_vocabulary(["abcd efgh abcd"], size=50, lowercase=True)
  assert "abcd" in vocab and "efgh" not in vocab


def test_texts_without_words_give_the_special_entries():
  for texts in ([], [""], ["\x00 \u200b", "\ud800"]):
    assert train_vocabulary(texts, size=50, lowercase=True) == SPECIALS


def test_too_many_words_are_reduced_to_the_frequent_ones(monkeypatch):
  monkeypatch.setattr(vocabulary_lib, "MAX_WORDS", 200)
  monkeypatch.setattr(vocabulary_lib, "BATCH_CHARACTERS", 1000)
  frequent = [f"often{c}" for c in "abcdefgh"]
  rare = [f"rare{i:06}" for i in range(30_000)]
  texts = [" ".join([*frequent, *rare[i : i + 8]]) for i in range(0, 30_000, 8)]
  counts = count_words(texts, lowercase=True)
  assert len(counts) < 1000
  assert [counts[word] for word in frequent] == [len(texts)] * 8
