"""Ids are those of transformers, and what cannot be read is refused."""

import base64
import itertools
import json
import pickle
import time

import pytest
import transformers

from support.texts import ODD_LINES, random_lines
from support.tokenizer_files import (
  BERT,
  make_texts,
  write_files,
  write_vocabulary,
)
from truenegs_jax.data.encoder import Encoder
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer, read_tokens
from truenegs_jax.data.tokenizer_files import (
  find_file,
  load_tokenizer,
  write_tokenizer,
)
from truenegs_jax.runtime.errors import InputError

LETTERS = list("abcdefghijklmnopqrstuvwxyz0123456789.,!?[]#'-")
VOCAB = (*SPECIALS, *LETTERS, *("##" + c for c in LETTERS), "swan", "##ing")
ACCENTED = (*VOCAB, "é", "É", "E", "S", "##é", "##É", "swän", "Swän", "##ä")
CASES = [(True, None), (False, None), (True, False), (False, True)]
KINDS = ["bpe", "unigram", "wordpiece"]
SPACES = [c for c in map(chr, range(0x3001)) if c.isspace() and c != "\n"]
# Lines of a vocab.txt after the special entries.
ENTRIES = {
  "white": SPACES,
  "white at the end": [f"x{c}" for c in SPACES],
  "white at the start": [f"{c}y" for c in SPACES],
  "empty": ["swan", "", "", "ing"],
  "repeated": ["swan", "a", "swan", "b", "a", "##s", "##s"],
  "repeated specials": ["swan", "[MASK]", "[UNK]", "a"],
  "line ends of Windows": ["swan\r", "a\r", "\r", "##s\r"],
  "line ends of a Mac": ["swan\ra", "##s"],
  "spaces": ["swan ", " swan", "a b", " ", "\t", "##s "],
}


def clean_lines():
  """Returns odd and random lines without lone surrogates."""
  lines = [*ODD_LINES, *random_lines(400)]
  return [x for x in lines if x.encode("utf-8", "ignore").decode() == x]


def bert_ids(path, lines, *, lowercase, strip_accents=None):
  """Returns ids of transformers, which encodes a literal "[MASK]" as text."""
  bert = transformers.BertTokenizer(
    str(path), do_lower_case=lowercase, strip_accents=strip_accents
  ).backend_tokenizer
  bert.encode_special_tokens = True
  return [bert.encode(line, add_special_tokens=False).ids for line in lines]


def load(path, **options):
  return load_tokenizer(str(path), lowercase=True, **options)


def edit(path, **changes):
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("lowercase, strip_accents", CASES)
def test_ids_equal_those_of_transformers_on_odd_text(
  tmp_path, lowercase, strip_accents
):
  write_vocabulary(ACCENTED, tmp_path / "vocab.txt")
  options = {"lowercase": lowercase, "strip_accents": strip_accents}
  tokenizer = load_tokenizer(str(tmp_path / "vocab.txt"), **options)
  lines = clean_lines()
  expected = bert_ids(tmp_path / "vocab.txt", lines, **options)
  assert tokenizer.encode_lines(lines) == expected
  assert [tokenizer.encode(line) for line in lines[:50]] == expected[:50]


@pytest.mark.parametrize("name", ENTRIES)
def test_odd_entries_have_the_ids_of_transformers(tmp_path, name):
  path = tmp_path / "vocab.txt"
  entries = [*SPECIALS, "main", "##in", *ENTRIES[name]]
  path.write_bytes("".join(f"{entry}\n" for entry in entries).encode())
  lines = [*clean_lines(), *entries, "xin maing y swans"]
  expected = bert_ids(path, lines, lowercase=True)
  tokenizer = load(path)
  assert len(tokenizer.vocab) == len({*tokenizer.vocab}) == len(entries)
  assert tokenizer.encode_lines(lines) == expected
  # What we write, and what transformers makes of the file.
  bert = transformers.BertTokenizer(str(path))
  bert.save_pretrained(tmp_path / "own")
  write_tokenizer(tokenizer, tmp_path)
  assert bert_ids(path, lines, lowercase=True) == expected
  saved = load(tmp_path / "own" / "tokenizer.json")
  assert load(tmp_path) == saved == tokenizer


def test_cases_and_entries_have_their_own_words_and_fingerprints():
  options = [{"lowercase": x, "strip_accents": y} for x, y in CASES]
  tokenizers = [make_tokenizer(VOCAB, **x) for x in options]
  words = [x.normalize("É\ud800t\x00é") for x in tokenizers]
  assert words == ["ete", "Été", "été", "Ete"]
  tokenizers.append(make_tokenizer(VOCAB[:-1], lowercase=True))
  assert len({x.fingerprint for x in tokenizers}) == 5


def test_byte_order_marks_and_blank_last_lines_are_ignored(tmp_path):
  for ending in ("\n", "\r\n"):
    data = "\ufeff" + ending.join([*VOCAB, "", ""])
    (tmp_path / "vocab.txt").write_bytes(data.encode())
    assert load(tmp_path) == make_tokenizer(VOCAB, lowercase=True)


@pytest.mark.parametrize(
  "data, message",
  [
    (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"vocab.txt: 5 entries.*\[MASK\]"),
    (b"A swan.\n\nA crane.\n", r"no \[PAD\].*data.vocab=train"),
    (b"\xfd7zXZ\n", "vocab.txt: cannot be read .byte 0 is not UTF-8"),
    (b"a\n" * 900_000, "vocab.txt: cannot be read .more than 800,000 values"),
  ],
)
def test_errors_name_the_file_of_a_vocabulary(tmp_path, data, message):
  (tmp_path / "vocab.txt").write_bytes(data)
  with pytest.raises(InputError, match=message):
    load(tmp_path / "vocab.txt")


def test_missing_vocabularies_are_rejected(tmp_path):
  (tmp_path / "empty").mkdir()
  for name in ("", "no/such/vocab.txt", "./x", "a/b/c"):
    with pytest.raises(InputError, match=f"'{name}' does not exist. Set"):
      load(name)
  with pytest.raises(InputError, match="empty' has no vocab.txt and no"):
    load(tmp_path / "empty")
  with pytest.raises(InputError, match="it is not a file"):
    load("/dev/zero")


@pytest.mark.parametrize("lowercase, strip_accents", CASES)
def test_options_must_be_those_of_a_tokenizer_json(
  tmp_path, lowercase, strip_accents
):
  options = {"lowercase": lowercase, "strip_accents": strip_accents}
  expected = make_tokenizer(VOCAB, **options)
  if strip_accents is None:
    options["strip_accents"] = lowercase
  write_tokenizer(expected, tmp_path)
  bert = transformers.BertTokenizer(
    str(tmp_path / "vocab.txt"), lowercase, strip_accents=strip_accents
  )
  bert.save_pretrained(tmp_path / "own")
  assert load_tokenizer(str(tmp_path / "own"), **options) == expected
  (tmp_path / "old").mkdir()
  write_tokenizer(expected, tmp_path / "old")  # only a vocab.txt
  config = {"do_lower_case": lowercase, "strip_accents": strip_accents}
  (tmp_path / "old/tokenizer_config.json").write_text(json.dumps(config))
  for name, value in options.items():
    message = f"{name}={not value} differs from {name}={value} in"
    for folder in (tmp_path / "own", tmp_path / "old"):
      with pytest.raises(InputError, match=message):
        load_tokenizer(str(folder), **options | {name: not value})


@pytest.mark.parametrize("kind", KINDS)
def test_any_tokenizer_has_ids_and_templates_of_transformers(tmp_path, kind):
  path = write_files(tmp_path / "own", kind)
  lines = [*make_texts(), *clean_lines()]
  # Where special tokens are words, transformers finds them in a text.
  lines = [x for x in lines if not any(name in x for name in BERT)]
  encode = {"add_special_tokens": False, "split_special_tokens": True}
  other = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
  expected = other(lines, **encode)["input_ids"]
  tokenizer = load(path.parent)
  assert tokenizer.special_ids == (0, 1, 2, 3, 4)
  assert not tokenizer.lowercase
  assert tokenizer.encode_lines(lines) == expected
  write_tokenizer(tokenizer, tmp_path)
  other = transformers.AutoTokenizer.from_pretrained(tmp_path)
  assert other(lines, **encode)["input_ids"] == expected
  assert read_tokens(other)[0] == tokenizer.vocab
  a, b = tokenizer.encode_lines(["the swan", "flies"])
  assert other("the swan", "flies")["input_ids"] == [2, *a, 3, *b, 3]
  masked = other(f"the {other.mask_token}")["input_ids"]
  assert masked == [2, *tokenizer.encode("the"), 4, 3]
  tokens_T, lengths_N = Encoder(tokenizer).encode(lines)
  assert lengths_N.tolist() == list(map(len, expected))
  assert tokens_T.tolist() == sum(expected, [])


@pytest.mark.parametrize("kind", ["bert", *KINDS])
def test_text_gets_no_special_ids_also_after_a_copy(tmp_path, kind):
  tokenizer = make_tokenizer(VOCAB, lowercase=True)
  if kind != "bert":
    tokenizer = load(write_files(tmp_path, kind))
  lines = [*ODD_LINES, *random_lines(99), "<s> </s> <mask>[SEP]"]
  lines += ["sw\ud800an[MA\ud800SK]", "[unused row 7]"]
  expected = tokenizer.encode_lines(lines)
  assert expected[-2] == tokenizer.encode("swan[MASK]")
  ids = {*itertools.chain.from_iterable(expected)}
  assert not ids & {*tokenizer.special_ids} - {tokenizer.unk}
  assert not any(tokenizer.vocab[i].startswith("[unused") for i in ids)
  write_tokenizer(tokenizer, tmp_path)
  for copy in (pickle.loads(pickle.dumps(tokenizer)), load(tmp_path)):
    assert copy == tokenizer and copy.fingerprint == tokenizer.fingerprint
    assert copy.encode_lines(lines) == expected


def test_roles_and_rows_without_tokens_are_those_of_the_files_beside(tmp_path):
  path = write_files(tmp_path)
  roles = tmp_path / "tokenizer_config.json"
  config = {"cls_token": {"content": "<new>"}, "pad_token": "[UNK]"}
  roles.write_text(json.dumps(config))
  vocab = load(path).vocab
  assert load(path).special_ids == (1, vocab.index("<new>"), 3, 4)
  roles.unlink()
  content = json.loads(path.read_text())
  ids = content["model"]["vocab"]
  last = max(ids, key=ids.__getitem__)
  ids[last] += 2  # leaves two holes
  edit(path, model=content["model"] | {"dropout": 0.5})
  (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 320}))
  tokenizer = load(tmp_path)
  vocab = tokenizer.vocab
  assert len(vocab) == len({*vocab}) == 320
  assert vocab[ids[last]] == last
  unused = [i for i, x in enumerate(vocab) if x.startswith("[unused")]
  assert unused[:2] == [ids[last] - 2, ids[last] - 1]
  assert len(unused) == 320 - len(ids)
  edit(path, model=content["model"])  # a text has the same ids each time
  other = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
  expected = other(make_texts(9), add_special_tokens=False)["input_ids"]
  assert tokenizer.encode_lines(make_texts(9)) == expected
  write_tokenizer(tokenizer, tmp_path)
  (tmp_path / "config.json").unlink()
  assert load(tmp_path) == tokenizer


def test_another_vocabulary_in_the_folder_is_not_taken(tmp_path):
  path = write_files(tmp_path)
  tokenizer = load(path)
  write_vocabulary(BERT, tmp_path / "vocab.txt")  # of another tokenizer
  assert find_file(tmp_path) == path
  write_tokenizer(tokenizer, tmp_path)
  assert not (tmp_path / "vocab.txt").exists()
  assert load(tmp_path) == tokenizer
  edit(path, normalizer={"type": "NFC"})
  assert load(path).fingerprint != tokenizer.fingerprint


def replace(pattern, content, times=1):
  """Returns a normalizer that replaces `times` times."""
  step = {"type": "Replace", "pattern": pattern, "content": content}
  return {"type": "Sequence", "normalizers": [step] * times}


def charsmap(data):
  text = base64.b64encode(data).decode()
  return {"type": "Precompiled", "precompiled_charsmap": text}


PANICS = {"Regex": "(a|aa)+$"}
MANY = {"type": "BPE", "vocab": {"a": 0, "[MASK]": 1_000_000}, "merges": []}
# What a tokenizer.json may hold, or its changes, and words of the message.
UNUSABLE = [
  *[(data, "cannot be read") for data in ("{", "[" * 100_000, "3", "\xff")],
  ('{"model": null}', "cannot be read"),
  ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "no entries"),
  ({"pre_tokenizer": {"type": "New"}}, "failed: data did not match"),
  ({"added_tokens": [{}]}, "it has no 'content'"),
  ({"added_tokens": []}, "no mask token. Name a mask_token in a tokenizer_con"),
  ({"model": MANY}, "6 entries, but ids up to 1,000,000"),
  ({"config": {"vocab_size": 9**9}}, "ids up to 387,420,488"),
  ({"config": {"mask_token": "[PAD]"}}, "one token for pad and mask, '.PAD.'"),
  ({"config": {"cls_token": "[PAD]"}}, "pad and cls.*Name another pad_token"),
  # What ends, hangs or fills the process of `tokenizers`.
  ({"normalizer": replace(PANICS, "x")}, "failed: Onig: .*retry-limit"),
  ({"normalizer": replace({"String": "q"}, "qq", 40)}, "than 200 MB of memory"),
  ({"normalizer": charsmap(b"\1")}, "failed: Precompiled"),
  ({"normalizer": charsmap(b"\xff" * 64)}, "more than 200 MB of memory"),
]


@pytest.mark.parametrize("changes, message", UNUSABLE)
def test_a_tokenizer_json_that_cannot_be_used_is_refused(
  tmp_path, changes, message
):
  path = write_files(tmp_path)
  if isinstance(changes, str):
    path.write_text(changes, encoding="latin-1")
  else:
    config = changes.get("config", {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    edit(path, **{name: changes[name] for name in changes if name != "config"})
  start = time.process_time()
  with pytest.raises(InputError, match=message):
    load(tmp_path)
  assert time.process_time() - start < 5
