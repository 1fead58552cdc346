"""The tokenizer equals BERT's and rejects invalid vocabularies."""

import functools
import json

import huggingface_hub.constants
import pytest
from tests.support.tokenizer_files import write_vocabulary

from support.texts import ODD_LINES, random_lines
from truenegs_jax.data.tokenizer import (
  SPECIALS,
  load_tokenizer,
  make_tokenizer,
)
from truenegs_jax.runtime.errors import InputError

LETTERS = list("abcdefghijklmnopqrstuvwxyz0123456789.,!?[]#'-")
VOCAB = (*SPECIALS, *LETTERS, *("##" + c for c in LETTERS), "swan", "##ing")
ACCENTED = (*VOCAB, "é", "É", "E", "S", "##é", "##É", "swän", "Swän", "##ä")
CASES = [(True, None), (False, None), (True, False), (False, True)]


def bert_ids(path, lines, *, lowercase, strip_accents=None):
  """Returns ids of transformers, which encodes a literal "[MASK]" as text."""
  transformers = pytest.importorskip("transformers")
  bert = transformers.BertTokenizer(
    str(path), do_lower_case=lowercase, strip_accents=strip_accents
  ).backend_tokenizer
  bert.encode_special_tokens = True
  return [bert.encode(line, add_special_tokens=False).ids for line in lines]


def has_surrogates(text: str) -> bool:
  return any(0xD800 <= ord(c) < 0xE000 for c in text)


@pytest.mark.parametrize("lowercase, strip_accents", CASES)
def test_ids_equal_those_of_transformers_on_odd_text(
  tmp_path, lowercase, strip_accents
):
  write_vocabulary(ACCENTED, tmp_path / "vocab.txt")
  options = {"lowercase": lowercase, "strip_accents": strip_accents}
  tokenizer = load_tokenizer(str(tmp_path / "vocab.txt"), **options)
  lines = [t for t in (*ODD_LINES, *random_lines(400)) if not has_surrogates(t)]
  expected = bert_ids(tmp_path / "vocab.txt", lines, **options)
  assert tokenizer.encode_lines(lines) == expected
  assert [tokenizer.encode(line) for line in lines[:50]] == expected[:50]


def test_text_gets_no_special_ids_except_unknown():
  tokenizer = make_tokenizer(VOCAB, lowercase=True)
  plain, with_surrogate = tokenizer.encode_lines(["swan", "sw\ud800an"])
  assert plain == with_surrogate
  lines = [*ODD_LINES, *random_lines(200), "\ud800[MASK]"]
  ids = {i for line_ids in tokenizer.encode_lines(lines) for i in line_ids}
  assert ids & set(tokenizer.special_ids) <= {tokenizer.unk}
  assert tokenizer.encode_lines(["[MASK]"])[0][0] == VOCAB.index("[")


def test_words_are_normalized_as_the_text_is():
  tokenizers = (
    make_tokenizer(VOCAB, lowercase=lowercase, strip_accents=strip_accents)
    for lowercase, strip_accents in CASES
  )
  words = [tokenizer.normalize("É\ud800t\x00é") for tokenizer in tokenizers]
  assert words == ["ete", "Été", "été", "Ete"]


def test_fingerprints_equal_those_of_earlier_versions():
  uncased = make_tokenizer(SPECIALS, lowercase=True)
  cased = make_tokenizer(SPECIALS, lowercase=False)
  assert uncased.fingerprint == "636657aee9285f87"
  assert cased.fingerprint == "d5fb6668e89f7014"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_line_ends_and_byte_order_marks_are_ignored(tmp_path, ending):
  data = "\ufeff" + ending.join(VOCAB) + ending
  (tmp_path / "vocab.txt").write_bytes(data.encode())
  tokenizer = load_tokenizer(str(tmp_path), lowercase=True)
  assert tokenizer == make_tokenizer(VOCAB, lowercase=True)


@pytest.mark.parametrize(
  "data, message",
  [
    (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"vocab.txt: 5 entries.*\[MASK\]"),
    (b"[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", r"no \[PAD\]"),
    (b"[PAD]\n[UNK]\n\n[CLS]\n", "vocab.txt:3: .*'' is empty"),
    (b"[PAD]\na\nb\na\n", "vocab.txt:4: .*'a' is empty or repeated"),
    (b"\xfd7zXZ\n", "vocab.txt: cannot be read .byte 0 is not UTF-8"),
    (b"", "vocab.txt:1: .*'' is empty"),
  ],
)
def test_errors_name_file_and_line_of_a_vocabulary(tmp_path, data, message):
  (tmp_path / "vocab.txt").write_bytes(data)
  with pytest.raises(InputError, match=message):
    load_tokenizer(str(tmp_path / "vocab.txt"), lowercase=True)


def test_missing_vocabularies_are_rejected(tmp_path, monkeypatch):
  (tmp_path / "empty").mkdir()
  for name in ("", "no/such/vocab.txt", "./x", "a/b/c", tmp_path / "empty"):
    with pytest.raises(InputError, match=f"'{name}' is neither a vocab.txt, a"):
      load_tokenizer(str(name), lowercase=True)
  monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
  with pytest.raises(InputError, match="downloading.*--config.data.vocab="):
    load_tokenizer("some-owner/no-such-model", lowercase=True)


def write_json(path, *, normalizer=None, **changes):
  ids = {entry: i for i, entry in enumerate(VOCAB)}
  content = {
    "normalizer": {"lowercase": True} if normalizer is None else normalizer,
    "model": {"type": "WordPiece", "vocab": ids},
  }
  content["model"].update(changes)
  path.write_text(json.dumps(content))


def test_a_folder_with_tokenizer_json_is_read(tmp_path):
  write_json(tmp_path / "tokenizer.json")
  tokenizer = load_tokenizer(str(tmp_path), lowercase=True)
  assert tokenizer == make_tokenizer(VOCAB, lowercase=True)
  with pytest.raises(InputError, match="lowercase=False differs .*=True"):
    load_tokenizer(str(tmp_path), lowercase=False)


@pytest.mark.parametrize(
  "content, message",
  [
    *[(data, "cannot be read") for data in ("{", "[" * 100_000, "3", "\xff")],
    ('{"model": null}', "cannot be read"),
    ({"vocab": {"a": 0, "b": 7}}, "no mask token.*--config.data.mask_token="),
    ({"vocab": {}}, "cannot be read .no entries"),
  ],
)
def test_an_unsupported_tokenizer_json_is_rejected(tmp_path, content, message):
  path = tmp_path / "tokenizer.json"
  if isinstance(content, str):
    path.write_text(content, encoding="latin-1")
  else:
    write_json(path, **content)
  with pytest.raises(InputError, match=message):
    load_tokenizer(str(tmp_path), lowercase=True)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("json_value", [None, True, False])
def test_strip_accents_must_match_json(tmp_path, lowercase, json_value):
  write_json(
    tmp_path / "tokenizer.json",
    normalizer={"lowercase": lowercase, "strip_accents": json_value},
  )
  value = lowercase if json_value is None else json_value
  load = functools.partial(load_tokenizer, str(tmp_path), lowercase=lowercase)
  assert load(strip_accents=value).strip_accents == value
  message = f"strip_accents={not value} differs from strip_accents={value}"
  with pytest.raises(InputError, match=message):
    load(strip_accents=not value)
