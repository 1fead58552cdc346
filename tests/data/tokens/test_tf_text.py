"""TensorFlow Text gets only lines that it encodes as BERT does.

These tests use a stub with TensorFlow's differences. test_fast_encoder runs
TensorFlow itself if it is installed.
"""

import sys
import types
import unicodedata

import numpy as np
import pytest

from truenegs_jax.data.tokens import tf_text
from truenegs_jax.data.tokens.fast_encoder import Encoder
from truenegs_jax.data.tokens.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import InputError

LETTERS = [*"abcdefghij0123456789.,½²"]
VOCAB = (*SPECIALS, *LETTERS, *("##" + c for c in LETTERS), "天", "swan")
TOKENIZER = make_tokenizer(VOCAB, lowercase=True)
EQUAL = ["abc, abc.", "É\u00a0é", "天a天", "", "\tx  y\r", "a" * 33, "(swan)"]
DIFFERENT = [
  "½",  # folded by NFKC
  "a ² b",
  "a\ue000b",  # kept; BERT drops it
  "a\u200bb",
  "a⹑b",  # punctuation in a newer Unicode version
  "a" * 34,  # may be too long for one tokenizer
  "a\ud800b",
  "\u302e\u302f",  # marks that decomposition may reorder
]


class Array:
  def __init__(self, values):
    self.numpy = lambda: values


def make_ragged(ids: list[list[int]]):
  """Returns a stub of a RaggedTensor."""
  flat = np.array(sum(ids, []), np.int32)
  lengths = np.array(list(map(len, ids)))
  return types.SimpleNamespace(
    flat_values=Array(flat), row_lengths=lambda: Array(lengths)
  )


def fold(text: str) -> str:
  """Folds characters as TensorFlow does before it decomposes text."""
  text = unicodedata.normalize("NFKC", text)
  return text.replace("\ue000", "?").replace("\u200b", "?").replace("⹑", ".")


class FastBertTokenizer:
  def __init__(self, vocab, *, lower_case_nfd_strip_accents, **options):
    self._bert = make_tokenizer(vocab, lowercase=lower_case_nfd_strip_accents)

  def tokenize(self, texts):
    assert texts, "TensorFlow takes an empty list for numbers"
    for text in texts:
      text.encode()  # raises if it is not valid UTF-8
    return make_ragged(self._bert.encode_lines([fold(text) for text in texts]))


class FastBertNormalizer:
  def __init__(self, *, lower_case_nfd_strip_accents):
    self._bert = tf_text.normalizers.BertNormalizer(
      lowercase=lower_case_nfd_strip_accents, handle_chinese_chars=False
    )

  def normalize(self, texts):
    normal = [
      text if text.isspace() else self._bert.normalize_str(fold(text))
      for text in texts
    ]
    return Array(np.array([text.encode() for text in normal], object))


@pytest.fixture
def tensorflow(monkeypatch):
  """Installs stubs of tensorflow and tensorflow_text."""
  calls = []
  threading = types.SimpleNamespace(
    set_intra_op_parallelism_threads=lambda n: calls.append(("intra", n)),
    set_inter_op_parallelism_threads=lambda n: calls.append(("inter", n)),
  )
  config = types.SimpleNamespace(
    threading=threading,
    set_visible_devices=lambda *args: calls.append(("devices", *args)),
  )
  tensorflow = types.SimpleNamespace(config=config, calls=calls)
  text = types.SimpleNamespace(
    FastBertTokenizer=FastBertTokenizer, FastBertNormalizer=FastBertNormalizer
  )
  monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
  monkeypatch.setitem(sys.modules, "tensorflow_text", text)
  return tensorflow


def encode(encoder: Encoder, lines: list[str]) -> list[list[int]]:
  """Returns the ids of each line."""
  tokens_T, lengths_N = encoder.encode(lines)
  ids = np.split(tokens_T, np.cumsum(lengths_N))
  return [ids_T.tolist() for ids_T in ids[:-1]]


def test_lines_that_may_differ_go_to_the_fallback(tensorflow):
  fallback_lines = []

  def fallback(lines):
    fallback_lines.extend(lines)
    ids = TOKENIZER.encode_lines(lines)
    return np.array(sum(ids, []), np.int32), np.array(list(map(len, ids)))

  lines = [*EQUAL, *DIFFERENT, *EQUAL]
  ids_T, lengths_N = tf_text.TfTextEncoder(TOKENIZER, fallback).encode(lines)
  assert fallback_lines == DIFFERENT
  assert ids_T.tolist() == sum(TOKENIZER.encode_lines(lines), [])
  assert lengths_N.sum() == len(ids_T)


def test_ids_equal_those_of_encode_lines(tensorflow):
  encoder = Encoder(TOKENIZER, "tf_text")
  for lines in (EQUAL, DIFFERENT, [*DIFFERENT, *EQUAL], ["²"], ["a"]):
    assert encode(encoder, lines) == TOKENIZER.encode_lines(lines)
  stub = FastBertTokenizer(VOCAB, lower_case_nfd_strip_accents=True)
  stub_ids = stub.tokenize(DIFFERENT[:5]).flat_values.numpy().tolist()
  assert stub_ids != sum(TOKENIZER.encode_lines(DIFFERENT[:5]), [])


def test_entries_with_white_space_are_replaced(tensorflow):
  vocab = (*VOCAB, "a b", "##c d")
  tokenizer = make_tokenizer(vocab, lowercase=True)
  fallback = Encoder(tokenizer)._encode_batch
  encoder = tf_text.TfTextEncoder(tokenizer, fallback)
  tf_vocab = encoder._tokenizer._bert.vocab
  assert tf_vocab[: len(VOCAB)] == VOCAB and len(tf_vocab) == len(vocab)
  assert not any(" " in entry for entry in tf_vocab)


def test_tensorflow_uses_one_core_and_no_gpu(tensorflow):
  Encoder(TOKENIZER, "tf_text")
  assert ("devices", [], "GPU") in tensorflow.calls
  assert ("intra", 1) in tensorflow.calls and ("inter", 1) in tensorflow.calls


def test_the_error_for_a_missing_package_names_a_command(monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow_text", None)
  monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace())
  with pytest.raises(InputError, match=r"pip install 'truenegs_jax\[tf-text\]"):
    Encoder(TOKENIZER, "tf_text")


@pytest.mark.parametrize("lowercase", [True, False])
def test_accents_that_differ_from_case_are_rejected(lowercase):
  tokenizer = make_tokenizer(
    VOCAB, lowercase=lowercase, strip_accents=not lowercase
  )
  with pytest.raises(InputError, match=r"not support .*data.tokenizer=fast"):
    Encoder(tokenizer, "tf_text")


def test_an_unsupported_vocabulary_is_rejected(tensorflow, monkeypatch):
  def refuse(*args, **options):
    raise RuntimeError("No valid vocab tokens were found")

  text = sys.modules["tensorflow_text"]
  monkeypatch.setattr(text, "FastBertTokenizer", refuse)
  with pytest.raises(InputError, match="No valid vocab.*Set.*data.tokenizer"):
    Encoder(TOKENIZER, "tf_text")
