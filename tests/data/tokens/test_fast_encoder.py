"""The encoder's ids are the tokenizer's, whatever it has met before."""

import importlib.util
import itertools
import lzma
import tracemalloc

import numpy as np
import pytest
import transformers

from truenegs_jax.data.tokens import fast_encoder, split_words, word_cache
from truenegs_jax.data.tokens.fast_encoder import Encoder
from truenegs_jax.data.tokens.tokenizer import (
  SPECIALS,
  Tokenizer,
  load_tokenizer,
  make_tokenizer,
)
from truenegs_jax.runtime.errors import InputError

LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789.,!?[]#'-ABSÉéß天한я"]
VOCAB = (
  *SPECIALS,
  *(LETTERS + ["##" + c for c in LETTERS]),
  *("swan", "Swan", "##ing", "##sw", "a b", "x,y", "天天", "##", "mask", "ᄒ"),
)
CASES = [(True, True), (False, False), (True, False), (False, True)]
INSTALLED = ["fast"]
if importlib.util.find_spec("tensorflow_text"):
  INSTALLED.append("tf_text")
ODD = [
  "",
  " \t ",
  "\u200b\u200e",
  "a\x00b \x00 b\x00",
  "\ufeffswan",
  "SWAN Swan swän, (Swan) swans' swan-swan...",
  "swan\u0301ing e\u0301 \u0301 \u0327\u0301e",
  "天鹅 swan 天天swan天",
  "ﬁ İ ß Σς ΟΔΟΣ ¹²½ Ⅷ … №",
  "مرحبا שלום",
  "x" * 100,
  "x" * 101,
  "x" * 200 + " " + "x" * 20_000,
  "天" * 300,
  "e" + "\u0300" * 150 + "f",
  "é" * 99 + " " + "한" * 34,
  "[MASK] [SEP] a[MASK]b [CLS] [PAD] [UNK]",
  "##ing ## # a##s",
  "🦢\u200d🦢 👨\u200d👩\u200d👧 👩🏽\u200d💻 ✊🏿",
  "a b a\u00a0b x,y",
  "a\nb\r\nc\x0bd\x0ce\x1cf\x1fg\x85h\u2028i\u2029j",
  "".join(chr(c) for c in range(0xFDD0, 0xFDF0)) + " swan",
  "a\ud800b \udfff sw\udbffan",
  "a\u3000\u1680\u2003\u202f\u205fb",
  "\ue000x \uffff x\ufffd \U0010ffff",
]


def tokenizer_of(lowercase: bool, strip_accents: bool) -> Tokenizer:
  return make_tokenizer(VOCAB, lowercase=lowercase, strip_accents=strip_accents)


def random_texts(number: int) -> list[str]:
  rng = np.random.default_rng(0)
  spans = [(0, 0x80), (0, 0x250), (0x2000, 0x2100), (0, 0x110000), (97, 103)]
  texts = []
  for i in range(number):
    codes = rng.integers(*spans[i % len(spans)], size=40)
    codes[rng.random(40) < 0.2] = 32
    texts.append("".join(map(chr, codes)))
  return texts


def check(encoder: Encoder, lines: list[str], expected: list[list[int]]):
  tokens_T, lengths_N = encoder.encode(lines)
  assert (tokens_T.dtype, lengths_N.dtype) == (np.int32, np.int64)
  wrong = [
    (line, ids)
    for line, ids, count in zip(lines, expected, lengths_N, strict=True)
    if len(ids) != count
  ]
  assert not wrong
  assert tokens_T.tolist() == list(itertools.chain.from_iterable(expected))


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("lowercase, strip_accents", CASES)
def test_ids_are_those_of_encode_lines(backend, lowercase, strip_accents):
  if backend == "tf_text" and lowercase != strip_accents:
    return  # refused: test_tf_text
  tokenizer = tokenizer_of(lowercase, strip_accents)
  lines = ODD + random_texts(500)
  expected = tokenizer.encode_lines(lines)
  encoder = Encoder(tokenizer, backend)
  check(encoder, lines, expected)
  check(encoder, lines[::-1], expected[::-1])  # by now it knows all words


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_is_encoded_as_transformers_does(
  tmp_path, backend, lowercase
):
  codes = [
    *range(0xD800),
    *range(0xE000, 0x10000),
    *range(0x10000, 0x110000, 97),
  ]
  lines = [f"a{chr(code)}b {chr(code)}" for code in codes]
  tokenizer = tokenizer_of(lowercase, lowercase)
  bert = transformers.BertTokenizer(
    {entry: i for i, entry in enumerate(VOCAB)}, do_lower_case=lowercase
  ).backend_tokenizer
  bert.encode_special_tokens = True
  found = bert.encode_batch_fast(lines, add_special_tokens=False)
  expected = [encoding.ids for encoding in found]
  check(Encoder(tokenizer, backend), lines, expected)


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("name", ["wikipedia-en-society", "wikipedia-en-2018"])
def test_real_text_is_encoded_as_transformers_does(
  tmp_path, real_data, name, backend
):
  packed = real_data / "vocab" / "bert-base-uncased-vocab.txt.xz"
  (tmp_path / "vocab.txt").write_bytes(lzma.open(packed).read())
  corpus = lzma.open(
    real_data / "corpus" / f"{name}.txt.xz", "rt", encoding="utf-8"
  )
  with corpus as file:
    lines = file.read(8_000_000).split("\n")
  bert = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
  expected = bert(lines, add_special_tokens=False, split_special_tokens=True)
  tokenizer = load_tokenizer(str(tmp_path), lowercase=True)
  check(Encoder(tokenizer, backend), lines, expected["input_ids"])


def test_batches_and_parts_of_long_lines_do_not_show(monkeypatch):
  tokenizer = tokenizer_of(True, True)
  lines = [*ODD, *random_texts(100), "a\x0bb\x1cc " * 50, "swan " * 99, ""]
  expected = tokenizer.encode_lines(lines)
  for module in (split_words, fast_encoder):
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 64)
  assert len(fast_encoder._parts(lines)[0]) > len(lines) + 10
  check(Encoder(tokenizer), lines, expected)


def test_no_lines_and_empty_ones():
  encoder = Encoder(tokenizer_of(True, True))
  check(encoder, [], [])
  check(encoder, ["", "", " "], [[], [], []])


def test_what_is_forgotten_does_not_show(monkeypatch):
  monkeypatch.setattr(word_cache, "MAX_WORDS", 100)
  monkeypatch.setattr(word_cache, "MAX_LONG_BYTES", 300)
  tokenizer = tokenizer_of(True, True)
  encoder = Encoder(tokenizer)
  lines = ODD + random_texts(200)
  for line, ids in zip(lines, tokenizer.encode_lines(lines), strict=True):
    check(encoder, [line], [ids])


@pytest.mark.parametrize("size", [6, 20])  # of a word: short or long
def test_a_text_without_repetition_takes_bounded_memory(monkeypatch, size):
  monkeypatch.setattr(word_cache, "MAX_WORDS", 5000)
  monkeypatch.setattr(word_cache, "MAX_LONG_BYTES", 200_000)
  encoder = Encoder(tokenizer_of(True, True))

  def read(numbers):
    for start in numbers:
      line = " ".join(f"{start + i:0{size}}" for i in range(1000))
      encoder.encode([line])

  read(range(0, 20_000, 1000))
  tracemalloc.start()
  read(range(20_000, 100_000, 1000))
  grown, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert grown < 4e6 and peak < 12e6  # the words alone are 0.7 or 2 MB


def test_two_encoders_with_other_pasts_agree():
  tokenizer = tokenizer_of(True, True)
  lines = random_texts(300)
  first, second = Encoder(tokenizer), Encoder(tokenizer)
  second.encode(lines[150:])
  for a, b in zip(first.encode(lines), second.encode(lines), strict=True):
    np.testing.assert_array_equal(a, b)


def test_vocabularies_of_one_entry_do():
  for entry in ("a", "##a", "x,y", "a b"):
    tokenizer = make_tokenizer((*SPECIALS, entry), lowercase=True)
    lines = ["a", "aa a", "a,a x,y a b", "aaa" * 50]
    check(Encoder(tokenizer), lines, tokenizer.encode_lines(lines))


def test_an_unknown_backend_is_refused():
  with pytest.raises(InputError, match="tokenizer='slow' .* fast, tf_text"):
    Encoder(tokenizer_of(True, True), "slow")
