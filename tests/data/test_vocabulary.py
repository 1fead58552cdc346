"""Vocabularies are reproducible, fit any language, and show their words."""

import collections
import hashlib
import itertools
import random

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from support.texts import ODD_LINES, random_lines
from truenegs_jax.data import vocabulary as vocabulary_lib
from truenegs_jax.data.encoder import Encoder
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer, read_tokens
from truenegs_jax.data.vocabulary import (
  read_words,
  train_vocabulary,
  word_edges,
)
from truenegs_jax.objectives import mlm
from truenegs_jax.runtime.errors import InputError

CASES = [(True, True), (False, False), (True, False), (False, True)]
ROOTS = ["swan", "grebe", "crane", "heron", "coot", "plover", "été", "naïve"]
ROOTS += ["façade", "o'clock", "x-ray", "3rd"]
SUFFIXES = ["", "s", "ing", "ed", "like", "ness", "less", "-like", "(a)", *";,"]
WORDS = ["main", "mainly", "primary", "chief", "chiefs", "élan", "naïve", "x2"]
SEPARATORS = (" ", " ", " ", " (", "-", ", ", "  ", '"', "\n", " 2", "_", "")
FORMS = (str.lower, str.capitalize, str.upper, str.swapcase)


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


def test_words_that_occur_once_are_not_learned():
  vocab = train_vocabulary(["abcd efgh abcd"], size=50, lowercase=True)
  assert "abcd" in vocab and "efgh" not in vocab


def test_texts_without_words_and_small_sizes():
  for texts in ([], [""], ["\x00 \u200b", "\ud800"]):
    assert train_vocabulary(texts, size=50, lowercase=True) == SPECIALS
  with pytest.raises(InputError, match=r"vocab_size=20 .* take \d+\..* \d\d+ "):
    train_vocabulary(make_lines(50), size=20, lowercase=True)


def test_too_many_words_are_reduced_to_the_frequent_ones(monkeypatch):
  monkeypatch.setattr(vocabulary_lib, "MAX_WORDS", 200)
  monkeypatch.setattr(vocabulary_lib, "BATCH_CHARACTERS", 1000)
  frequent = [f"often{c}" for c in "abcdefgh"]
  rare = [f"rare{i:06}" for i in range(30_000)]
  texts = [" ".join([*frequent, *rare[i : i + 8]]) for i in range(0, 30_000, 8)]
  counts = count_words(texts, lowercase=True)
  assert len(counts) < 1000
  assert [counts[word] for word in frequent] == [len(texts)] * 8


def draw_text(seed):
  rng = random.Random(seed)
  parts = (
    rng.choice(FORMS)(rng.choice(WORDS)) + rng.choice(SEPARATORS)
    for _ in range(12)
  )
  return "".join(parts).strip()


def train_backend(kind):
  """Trains a tokenizer that has some forms of words whole, splits others."""
  specials = ["<s>", "</s>", "[MASK]", "<unk>"]
  if kind == "unigram":
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
      vocab_size=110, special_tokens=specials, unk_token="<unk>"
    )
  else:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=170, special_tokens=specials)
  texts = [*map(draw_text, range(300)), *["main Main (main (chief"] * 99]
  backend.train_from_iterator(texts, trainer)
  return backend


@pytest.mark.parametrize("kind", ["byte-level", "unigram"])
def test_only_whole_words_of_a_text_are_whole(kind):
  """The text around a token decides, not the tokens beside it."""
  backend = train_backend(kind)
  tokens, _ = read_tokens(backend)
  words = read_words(tokens)
  numbers = {True: 0, False: 0}
  texts = [*map(draw_text, range(40))]
  encodings = backend.encode_batch(texts)
  columns = itertools.zip_longest(*(x.ids for x in encodings), fillvalue=-1)
  tokens_BxL = np.array([*columns]).T
  batch = {"tokens": tokens_BxL, "documents": jnp.array(tokens_BxL >= 0)}
  positions_BxL = jnp.indices(tokens_BxL.shape)[1]
  whole_BxL = mlm.is_whole_word(batch, positions_BxL, word_edges(tokens))
  rows = zip(texts, encodings, whole_BxL.tolist(), strict=True)
  for text, encoding, whole_L in rows:
    for i, (start, end) in enumerate(encoding.offsets):
      start += text[start:end][:1] == " "
      token = encoding.ids[i]
      if words.words[token].isalpha():
        expected = not any(
          (text[:cut][-1:] + text[cut:][:1]).isalnum() and 0 < cut < len(text)
          for cut in (start, end)
        )
        assert whole_L[i] == expected, (text, tokens[token])
        assert words.texts[token] == text[start:end]
        numbers[expected] += 1
  assert min(numbers.values()) > 50


@pytest.mark.parametrize(
  ("tokens", "texts", "words", "edges", "classes"),
  [
    ("[PAD] # [] ##s", "[PAD] # [] ##s", " # [] ", "2223", "1110"),
    (
      "Ġa Ġ <s> Ãł Ã ĠÃ , Ġ(b Ċ ĠMain main MAIN mAin",
      "a Ġ <s> à \ufffd \ufffd , (b Ċ Main main MAIN mAin",
      "a   à   , (b  main main main main",
      "2003320202333",
      "1110010103046",
    ),
    ("▁A <0xC3> [x] ", "A <0xC3> [x] ", "a   ", "2300", "3111"),  # and ""
  ],
)
def test_texts_words_edges_and_classes(tokens, texts, words, edges, classes):
  result = read_words(tuple(tokens.split(" ")))
  assert result.texts == tuple(texts.split(" "))
  assert result.words == tuple(words.split(" "))
  assert "".join(map(str, result.edges_V)) == edges
  assert "".join(map(str, result.classes_V)) == classes
