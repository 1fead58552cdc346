"""The tokenizer equals BERT's and refuses bad vocabularies."""

import json
import lzma

import huggingface_hub.constants
import pytest

from support.texts import ODD_LINES, random_lines
from truenegs_jax.data.tokens.tokenizer import (
  SPECIALS,
  load_tokenizer,
  make_tokenizer,
  write_vocabulary,
)
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats import hf_folder

LETTERS = [c for c in "abcdefghijklmnopqrstuvwxyz0123456789.,!?[]#'-"]
VOCAB = (*SPECIALS, *LETTERS, *("##" + c for c in LETTERS), "swan", "##ing")
ACCENTED = (*VOCAB, "é", "É", "E", "S", "##é", "##É", "swän", "Swän", "##ä")
CASES = [(True, None), (False, None), (True, False), (False, True)]


def bert_ids(path, lines, *, lowercase, strip_accents=None):
  """The reference: transformers, with specials typed in text kept as text."""
  transformers = pytest.importorskip("transformers")
  bert = transformers.BertTokenizer(
    str(path), do_lower_case=lowercase, strip_accents=strip_accents
  )
  tokenize = bert.backend_tokenizer
  tokenize.encode_special_tokens = True
  return [tokenize.encode(line, add_special_tokens=False).ids for line in lines]


def is_valid(text: str) -> bool:
  return not any(0xD800 <= ord(c) < 0xE000 for c in text)


@pytest.mark.parametrize("lowercase, strip_accents", CASES)
def test_ids_are_those_of_transformers_on_odd_text(
  tmp_path, lowercase, strip_accents
):
  write_vocabulary(ACCENTED, tmp_path / "vocab.txt")
  options = {"lowercase": lowercase, "strip_accents": strip_accents}
  tokenizer = load_tokenizer(str(tmp_path / "vocab.txt"), **options)
  lines = [t for t in (*ODD_LINES, *random_lines(400)) if is_valid(t)]
  expected = bert_ids(tmp_path / "vocab.txt", lines, **options)
  assert tokenizer.encode_lines(lines) == expected


@pytest.mark.parametrize("lowercase, strip_accents", CASES)
def test_an_export_tells_transformers_of_accents(
  tmp_path, lowercase, strip_accents
):
  transformers = pytest.importorskip("transformers")
  ours = make_tokenizer(
    ACCENTED, lowercase=lowercase, strip_accents=strip_accents
  )
  config = hf_folder.tokenizer_config(ours, max_length=512)
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  write_vocabulary(ours.vocab, tmp_path / "vocab.txt")
  theirs = transformers.AutoTokenizer.from_pretrained(
    tmp_path, local_files_only=True
  )
  lines = ["É é E e", "Swän swän swan Swan", "e\u0301 SWÄN Swäning"]
  found = theirs(lines, add_special_tokens=False)["input_ids"]
  assert found == ours.encode_lines(lines)


def test_ids_are_those_of_transformers_on_real_text(tmp_path, real_data):
  packed = real_data / "vocab" / "bert-base-uncased-vocab.txt.xz"
  (tmp_path / "vocab.txt").write_bytes(lzma.open(packed).read())
  corpus = lzma.open(real_data / "corpus" / "wikipedia-en-society.txt.xz", "rt")
  with corpus as file:
    lines = file.read(500_000).split("\n")
  tokenizer = load_tokenizer(str(tmp_path), lowercase=True)
  assert tokenizer.special_ids == (0, 100, 101, 102, 103)
  expected = bert_ids(tmp_path / "vocab.txt", lines, lowercase=True)
  assert tokenizer.encode_lines(lines) == expected


def test_no_text_yields_special_ids_but_unknown():
  tokenizer = make_tokenizer(VOCAB, lowercase=True)
  without, with_half = tokenizer.encode_lines(["swan", "sw\ud800an"])
  assert without == with_half
  found = tokenizer.encode_lines(
    [*ODD_LINES, *random_lines(200), "\ud800[MASK]"]
  )
  ids = {i for line in found for i in line}
  assert ids & set(tokenizer.special_ids) <= {tokenizer.unk}
  assert tokenizer.encode_lines(["[MASK]"])[0][0] == VOCAB.index("[")


def test_the_fingerprint_follows_entries_order_case_and_accents():
  swapped = (*VOCAB[:-2], VOCAB[-1], VOCAB[-2])
  prints = {
    make_tokenizer(vocab, lowercase=case[0], strip_accents=case[1]).fingerprint
    for vocab in (VOCAB, VOCAB[:-1], swapped)
    for case in CASES
  }
  assert len(prints) == 12
  again = make_tokenizer(VOCAB, lowercase=True, strip_accents=True).fingerprint
  assert again in prints and len(again) == 16
  assert again == make_tokenizer(VOCAB, lowercase=True).fingerprint


def test_the_fingerprint_is_that_of_runs_saved_earlier():
  saved = {
    lowercase: make_tokenizer(SPECIALS, lowercase=lowercase).fingerprint
    for lowercase in (True, False)
  }
  assert saved == {True: "636657aee9285f87", False: "d5fb6668e89f7014"}


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_line_ends_and_byte_order_marks_do_not_matter(tmp_path, ending):
  data = "\ufeff" + ending.join(VOCAB) + ending
  (tmp_path / "vocab.txt").write_bytes(data.encode())
  tokenizer = load_tokenizer(str(tmp_path), lowercase=True)
  assert tokenizer == make_tokenizer(VOCAB, lowercase=True)


@pytest.mark.parametrize(
  "data, message",
  [
    (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"vocab.txt: 5 entries.*\[MASK\]"),
    (b"[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", r"no \[PAD\]"),
    (b"[PAD]\n[UNK]\n\n[CLS]\n", "vocab.txt:3: empty line"),
    (b"[PAD]\na\nb\na\n", "vocab.txt:4: 'a' stands already in line 2"),
    (b"[PAD]\na\n\xff\xfe\n", "vocab.txt:3: byte 0xff is not UTF-8"),
    (b"", "vocab.txt:1: empty line"),
  ],
)
def test_a_bad_vocabulary_is_refused_by_file_and_line(tmp_path, data, message):
  (tmp_path / "vocab.txt").write_bytes(data)
  with pytest.raises(InputError, match=message):
    load_tokenizer(str(tmp_path / "vocab.txt"), lowercase=True)


def test_what_is_no_vocabulary_is_refused(tmp_path, monkeypatch):
  (tmp_path / "empty").mkdir()
  for name in ("", "no/such/vocab.txt", "./x", "a/b/c"):
    with pytest.raises(InputError, match="neither a file, a folder nor"):
      load_tokenizer(name, lowercase=True)
  with pytest.raises(InputError, match="neither vocab.txt nor tokenizer.json"):
    load_tokenizer(str(tmp_path / "empty"), lowercase=True)
  monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
  with pytest.raises(InputError, match="a local one: --config.data.vocab="):
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
  with pytest.raises(InputError, match="lowercase=False, but .* True"):
    load_tokenizer(str(tmp_path), lowercase=False)


@pytest.mark.parametrize(
  "content, message",
  [
    *[(data, "WordPiece") for data in ("{", "[" * 100_000, "3", "\xff")],
    ('{"model": null}', "WordPiece"),
    ({"type": "BPE"}, "WordPiece"),
    ({"vocab": {"a": 0, "b": 7}}, "WordPiece"),
    ({"vocab": [[1]]}, "WordPiece"),
    ({"normalizer": {"type": "Lowercase"}}, "type=Lowercase"),
    ({"normalizer": {"clean_text": False}}, "clean_text=False"),
    ({"normalizer": {"handle_chinese_chars": None}}, "chars=None"),
  ],
)
def test_a_tokenizer_json_of_another_kind_is_refused(
  tmp_path, content, message
):
  path = tmp_path / "tokenizer.json"
  if isinstance(content, str):
    path.write_text(content, encoding="latin-1")
  else:
    write_json(path, **content)
  with pytest.raises(InputError, match=message):
    load_tokenizer(str(tmp_path), lowercase=True)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("written", [None, True, False])
def test_tokenizer_json_decides_about_accents(tmp_path, lowercase, written):
  write_json(
    tmp_path / "tokenizer.json",
    normalizer={"lowercase": lowercase, "strip_accents": written},
  )
  right = lowercase if written is None else written
  for asked in (True, False):
    if asked == right:
      found = load_tokenizer(
        str(tmp_path), lowercase=lowercase, strip_accents=asked
      )
      assert found.strip_accents == right
      continue
    setting = "strip" if right else "keep"
    with pytest.raises(InputError, match=f'data.accents="{setting}"'):
      load_tokenizer(str(tmp_path), lowercase=lowercase, strip_accents=asked)
