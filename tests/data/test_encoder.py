"""The encoder returns the tokenizer's ids, whatever is in its cache."""

import itertools
import json
import pathlib
import random
import subprocess

import numpy as np
import pytest
import transformers

from support.texts import ODD_LINES, random_lines
from truenegs_jax.data import encoder as encoder_lib
from truenegs_jax.data import vocabulary as vocabulary_lib
from truenegs_jax.data.encoder import Encoder
from truenegs_jax.data.tokenizer import SPECIALS, Tokenizer, make_tokenizer

LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789.,!?[]#'-ABSÉéß天한я"]
VOCAB = (
  *SPECIALS,
  *(LETTERS + ["##" + c for c in LETTERS]),
  *("swan", "Swan", "##ing", "##sw", "a b", "x,y", "天天", "##", "mask", "ᄒ"),
)
CASES = [(True, True), (False, False), (True, False), (False, True)]
ROOT = pathlib.Path(__file__).parents[2]
TENSORFLOW = ROOT / ".venv" / "tf-text" / "bin" / "python"
# Reads vocabulary, lines and options; writes what the encoder returns.
ENCODE = """
import json, sys
from truenegs_jax.data.encoder import Encoder
from truenegs_jax.data.tokenizer import make_tokenizer
vocab, lines, options = json.load(sys.stdin)
for option in options:
  encoder = Encoder(make_tokenizer(vocab, **option), "tf_text")
  print(json.dumps([x.tolist() for x in encoder.encode(lines)]))
"""


def build_tokenizer(lowercase: bool, strip_accents: bool) -> Tokenizer:
  return make_tokenizer(VOCAB, lowercase=lowercase, strip_accents=strip_accents)


def check_encode(encoder: Encoder, lines: list[str], expected: list[list[int]]):
  tokens_T, lengths_N = encoder.encode(lines)
  assert (tokens_T.dtype, lengths_N.dtype) == (np.int32, np.int64)
  for line, ids, length in zip(lines, expected, lengths_N, strict=True):
    assert len(ids) == length, line
  assert tokens_T.tolist() == list(itertools.chain.from_iterable(expected))


@pytest.mark.slow
@pytest.mark.skipif(not TENSORFLOW.exists(), reason="no TensorFlow Text")
def test_tensorflow_text_gives_the_same_ids():
  rng = random.Random(0)
  lines = [*ODD_LINES, *random_lines(2000)]
  lines += [" ".join(rng.choices(VOCAB, k=19)) for _ in range(999)]
  names = ("lowercase", "strip_accents")
  options = [dict(zip(names, case, strict=True)) for case in CASES[:2]]
  result = subprocess.run(
    [TENSORFLOW, "-c", ENCODE],
    input=json.dumps([VOCAB, lines, options]),
    env={"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
    capture_output=True,
    text=True,
  )
  assert result.returncode == 0, result.stderr
  answers = map(json.loads, result.stdout.splitlines())
  for option, answer in zip(options, answers, strict=True):
    expected = Encoder(make_tokenizer(VOCAB, **option)).encode(lines)
    assert answer == [x.tolist() for x in expected]


@pytest.mark.parametrize("lowercase, strip_accents", CASES)
def test_ids_depend_on_neither_batches_nor_the_cache(
  lowercase, strip_accents, monkeypatch
):
  tokenizer = build_tokenizer(lowercase, strip_accents)
  lines = ODD_LINES + random_lines(500) + ["a\x0bb\x1cc " * 50, "swan " * 99]
  expected = tokenizer.encode_lines(lines)
  encoder = Encoder(tokenizer)
  check_encode(encoder, lines, expected)
  check_encode(encoder, lines[::-1], expected[::-1])  # from the cache
  check_encode(encoder, [], [])
  monkeypatch.setattr(vocabulary_lib, "BATCH_CHARACTERS", 64)
  monkeypatch.setattr(encoder_lib, "BATCH_WORDS", 3)
  monkeypatch.setattr(encoder_lib, "MAX_CACHE_BYTES", 3000)
  check_encode(Encoder(tokenizer), lines, expected)


def test_every_character_is_encoded_as_in_transformers():
  codes = [*range(0xD800), *range(0xE000, 0x10000)]
  codes += range(0x10000, 0x110000, 97)
  lines = [f"a{chr(code)}b {chr(code)}" for code in codes]
  tokenizer = build_tokenizer(True, True)
  bert = transformers.BertTokenizer(
    {entry: i for i, entry in enumerate(VOCAB)}, do_lower_case=True
  ).backend_tokenizer
  bert.encode_special_tokens = True
  encodings = bert.encode_batch_fast(lines, add_special_tokens=False)
  expected = [encoding.ids for encoding in encodings]
  check_encode(Encoder(tokenizer), lines, expected)


def test_no_ids_look_like_the_end_of_a_word():
  # The end of a word gets id 65,537: as bytes 01 00 01 00, which the ids 65,536
  # and 1 contain, too.
  vocab = [*SPECIALS, *(f"a{i}" for i in range(2**16 + 1 - len(SPECIALS)))]
  tokenizer = make_tokenizer(vocab, lowercase=True)
  lines = [f"{vocab[-1]}天 {vocab[-1]}"]
  check_encode(Encoder(tokenizer), lines, tokenizer.encode_lines(lines))
