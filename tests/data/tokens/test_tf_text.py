"""TensorFlow Text gets only lines that it encodes as BERT does.

Most of this runs without TensorFlow, on a stand-in with faults like its own;
test_encode runs the real one, where it is installed.
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
ALIKE = ["abc, abc.", "É\u00a0é", "天a天", "", "\tx  y\r", "a" * 33, "(swan)"]
DIFFERENT = [
  "½",  # folded by NFKC
  "a ² b",
  "a\ue000b",  # kept, where BERT drops it
  "a\u200bb",
  "a⹑b",  # known as punctuation later than `tokenizers` does
  "a" * 34,  # might be too long for one of the two
  "a\ud800b",
  "\u302e\u302f",  # marks that decomposition may put in another order
]


class Ragged:
  def __init__(self, ids):
    self._ids = ids

  @property
  def flat_values(self):
    return Array(np.array([i for ids in self._ids for i in ids], np.int32))

  def row_lengths(self):
    return Array(np.array([len(ids) for ids in self._ids]))


class Array:
  def __init__(self, values):
    self.numpy = lambda: values


def folded(text: str) -> str:
  """What TensorFlow would make of a text, before it decomposes."""
  text = unicodedata.normalize("NFKC", text)
  return text.replace("\ue000", "?").replace("\u200b", "?").replace("⹑", ".")


class FastBertTokenizer:
  def __init__(self, vocab, *, lower_case_nfd_strip_accents, **options):
    self.options = options
    self.seen = []
    self._bert = make_tokenizer(vocab, lowercase=lower_case_nfd_strip_accents)

  def tokenize(self, texts):
    assert texts, "TensorFlow takes an empty list for numbers"
    for text in texts:
      text.encode()  # it must be UTF-8
    self.seen.extend(texts)
    return Ragged(self._bert.encode_lines([folded(text) for text in texts]))


class FastBertNormalizer:
  def __init__(self, *, lower_case_nfd_strip_accents):
    self._bert = tf_text.normalizers.BertNormalizer(
      lowercase=lower_case_nfd_strip_accents, handle_chinese_chars=False
    )

  def normalize(self, texts):
    normal = [
      text if text.isspace() else self._bert.normalize_str(folded(text))
      for text in texts
    ]
    return Array(np.array([text.encode() for text in normal], object))


@pytest.fixture
def stand_in(monkeypatch):
  """Puts a tensorflow-text where there may be none."""
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


def encoded(encoder: Encoder, lines: list[str]) -> list[list[int]]:
  tokens_T, lengths_N = encoder.encode(lines)
  parts = np.split(tokens_T, np.cumsum(lengths_N))
  return [ids.tolist() for ids in parts[:-1]]


def test_only_lines_that_it_gets_right_are_given_to_it(stand_in):
  given = []

  def others(lines):
    given.extend(lines)
    ids = TOKENIZER.encode_lines(lines)
    return np.array(sum(ids, []), np.int32), np.array(list(map(len, ids)))

  lines = [*ALIKE, *DIFFERENT, *ALIKE]
  ids_T, lengths_N = tf_text.TfTextEncoder(TOKENIZER, others).ids(lines)
  assert given == DIFFERENT
  assert ids_T.tolist() == sum(TOKENIZER.encode_lines(lines), [])
  assert lengths_N.sum() == len(ids_T)


def test_its_ids_are_those_of_encode_lines(stand_in):
  encoder = Encoder(TOKENIZER, "tf_text")
  for lines in (ALIKE, DIFFERENT, [*DIFFERENT, *ALIKE], ["²"], ["a"]):
    assert encoded(encoder, lines) == TOKENIZER.encode_lines(lines)
  bare = FastBertTokenizer(VOCAB, lower_case_nfd_strip_accents=True)
  found = bare.tokenize(DIFFERENT[:5])._ids
  assert found != TOKENIZER.encode_lines(DIFFERENT[:5])  # it has its faults


def test_entries_with_white_space_are_kept_from_it(stand_in):
  vocab = (*VOCAB, "a b", "##c d")
  tokenizer = make_tokenizer(vocab, lowercase=True)
  lines = tf_text.TfTextEncoder(tokenizer, Encoder(tokenizer)._encode_batch)
  given = lines._tokenizer._bert.vocab
  assert given[: len(VOCAB)] == VOCAB and len(given) == len(vocab)
  assert not any(" " in entry for entry in given)


def test_it_takes_one_core_and_no_gpu(stand_in):
  Encoder(TOKENIZER, "tf_text")
  assert ("devices", [], "GPU") in stand_in.calls
  assert ("intra", 1) in stand_in.calls and ("inter", 1) in stand_in.calls


def test_where_it_is_not_installed_a_command_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow_text", None)
  monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace())
  with pytest.raises(InputError, match=r"pip install 'truenegs_jax\[tf_text\]"):
    Encoder(TOKENIZER, "tf_text")


@pytest.mark.parametrize("lowercase", [True, False])
def test_accents_apart_from_case_are_refused(lowercase):
  tokenizer = make_tokenizer(
    VOCAB, lowercase=lowercase, strip_accents=not lowercase
  )
  with pytest.raises(InputError, match=r'needs data.tokenizer="fast"'):
    Encoder(tokenizer, "tf_text")


def test_a_vocabulary_that_it_cannot_use_is_named(stand_in, monkeypatch):
  def refuse(*args, **options):
    raise RuntimeError("No valid vocab tokens were found")

  monkeypatch.setattr(
    sys.modules["tensorflow_text"], "FastBertTokenizer", refuse
  )
  with pytest.raises(InputError, match="No valid vocab .* set data.tokenizer"):
    Encoder(TOKENIZER, "tf_text")
