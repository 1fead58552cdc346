"""The encoder returns the tokenizer's ids, whatever is in its cache."""

import importlib.util
import itertools
import lzma
import tracemalloc

import numpy as np
import pytest
import transformers

from support.texts import ODD_LINES, random_lines
from truenegs_jax.data.tokens import fast_encoder, split_words
from truenegs_jax.data.tokens.fast_encoder import Encoder, _CachedEncoder
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
SLOW_TEXT = pytest.param("wikipedia-en-2018", marks=pytest.mark.slow)
INSTALLED = ["fast"]
if importlib.util.find_spec("tensorflow_text"):
  INSTALLED.append("tf_text")


def build_tokenizer(lowercase: bool, strip_accents: bool) -> Tokenizer:
  return make_tokenizer(VOCAB, lowercase=lowercase, strip_accents=strip_accents)


def check_encode(encoder: Encoder, lines: list[str], expected: list[list[int]]):
  tokens_T, lengths_N = encoder.encode(lines)
  assert (tokens_T.dtype, lengths_N.dtype) == (np.int32, np.int64)
  for line, ids, length in zip(lines, expected, lengths_N, strict=True):
    assert len(ids) == length, line
  assert tokens_T.tolist() == list(itertools.chain.from_iterable(expected))


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("lowercase, strip_accents", CASES)
def test_ids_equal_those_of_encode_lines(backend, lowercase, strip_accents):
  if backend == "tf_text" and lowercase != strip_accents:
    return  # not supported, see test_tf_text
  tokenizer = build_tokenizer(lowercase, strip_accents)
  lines = ODD_LINES + random_lines(500)
  expected = tokenizer.encode_lines(lines)
  encoder = Encoder(tokenizer, backend)
  check_encode(encoder, lines, expected)
  check_encode(encoder, lines[::-1], expected[::-1])  # from the cache


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_is_encoded_as_in_transformers(backend, lowercase):
  codes = [*range(0xD800), *range(0xE000, 0x10000)]
  codes += range(0x10000, 0x110000, 97)
  lines = [f"a{chr(code)}b {chr(code)}" for code in codes]
  tokenizer = build_tokenizer(lowercase, lowercase)
  bert = transformers.BertTokenizer(
    {entry: i for i, entry in enumerate(VOCAB)}, do_lower_case=lowercase
  ).backend_tokenizer
  bert.encode_special_tokens = True
  encodings = bert.encode_batch_fast(lines, add_special_tokens=False)
  expected = [encoding.ids for encoding in encodings]
  check_encode(Encoder(tokenizer, backend), lines, expected)


@pytest.mark.parametrize("backend", INSTALLED)
@pytest.mark.parametrize("name", ["wikipedia-en-society", SLOW_TEXT])
def test_real_text_is_encoded_as_in_transformers(
  tmp_path, real_data, name, backend
):
  packed = real_data / "vocab" / "bert-base-uncased-vocab.txt.xz"
  (tmp_path / "vocab.txt").write_bytes(lzma.open(packed).read())
  corpus = lzma.open(
    real_data / "corpus" / f"{name}.txt.xz", "rt", encoding="utf-8"
  )
  with corpus as file:
    lines = file.read(2_000_000).split("\n")
  bert = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
  expected = bert(lines, add_special_tokens=False, split_special_tokens=True)
  tokenizer = load_tokenizer(str(tmp_path), lowercase=True)
  check_encode(Encoder(tokenizer, backend), lines, expected["input_ids"])


def test_ids_depend_on_neither_batches_nor_the_cache(monkeypatch):
  monkeypatch.setattr(split_words, "BATCH_CHARACTERS", 64)
  monkeypatch.setattr(fast_encoder, "BATCH_WORDS", 3)
  monkeypatch.setattr(fast_encoder, "MAX_CACHE_BYTES", 3000)
  tokenizer = build_tokenizer(True, True)
  lines = ODD_LINES + random_lines(200) + ["a\x0bb\x1cc " * 50, "swan " * 99]
  check_encode(Encoder(tokenizer), lines, tokenizer.encode_lines(lines))


def test_known_words_are_not_encoded_again(monkeypatch):
  encoder = _CachedEncoder(build_tokenizer(True, True))
  expected = encoder.encode(["a swan", "Swans"])
  monkeypatch.setattr(encoder, "_backend", None)
  np.testing.assert_equal(encoder.encode(["A swan", "swans"]), expected)


def test_no_ids_look_like_the_end_of_a_word():
  # The end of a word gets id 65,537: as bytes 01 00 01 00, which the ids 65,536
  # and 1 contain, too.
  vocab = [*SPECIALS, *(f"a{i}" for i in range(2**16 + 1 - len(SPECIALS)))]
  tokenizer = make_tokenizer(vocab, lowercase=True)
  lines = [f"{vocab[-1]}天 {vocab[-1]}"]
  check_encode(Encoder(tokenizer), lines, tokenizer.encode_lines(lines))


def test_distinct_words_take_bounded_memory(monkeypatch):
  monkeypatch.setattr(fast_encoder, "MAX_CACHE_BYTES", 500_000)
  encoder = Encoder(build_tokenizer(True, True))

  def encode_numbers(starts):
    for start in starts:
      encoder.encode([" ".join(f"{start + i:012}" for i in range(1000))])

  encode_numbers(range(0, 20_000, 1000))
  tracemalloc.start()
  encode_numbers(range(20_000, 50_000, 1000))
  growth, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert growth < 2e6 and peak < 3e6  # without the limit 6 MB


def test_an_unknown_backend_is_rejected():
  with pytest.raises(InputError, match="tokenizer='slow'.*fast or tf_text"):
    Encoder(build_tokenizer(True, True), "slow")
