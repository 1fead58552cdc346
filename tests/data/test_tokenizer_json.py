"""A tokenizer.json of any kind gives the ids of transformers, or is refused."""

import json
import pickle

import numpy as np
import pytest
from tests.support.tokenizer_files import write_vocabulary

from support.texts import ODD_LINES, random_lines
from support.tokenizer_files import (
  BERT,
  make_texts,
  make_tokenizer,
  write_files,
)
from truenegs_jax.data.encoder import Encoder
from truenegs_jax.data.prepare import prepare
from truenegs_jax.data.rows import load_vocabulary, open_rows
from truenegs_jax.data.tokenizer import (
  load_tokenizer,
  read_tokens,
  write_tokenizer,
)
from truenegs_jax.runtime.errors import InputError

KINDS = {"bpe": "Ġ", "unigram": "▁", "wordpiece": "##"}


def load(path, **options):
  return load_tokenizer(str(path), lowercase=True, **options)


def edit(path, **changes):
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_templates_equal_those_of_transformers(tmp_path, kind):
  transformers = pytest.importorskip("transformers")
  tokenizer = load(write_files(tmp_path / "own", kind).parent)
  assert tokenizer.mark == KINDS[kind]
  assert tokenizer.special_ids == (0, 1, 2, 3, 4)
  assert not tokenizer.lowercase
  write_tokenizer(tokenizer, tmp_path)
  other = transformers.AutoTokenizer.from_pretrained(tmp_path)
  lines = [*make_texts(), *ODD_LINES, *random_lines(200)]
  lines = [x for x in lines if x.encode("utf-8", "ignore").decode() == x]
  # Where special tokens are words, transformers finds them in a text.
  lines = [x for x in lines if not any(name in x for name in BERT)]
  ids = other(lines, add_special_tokens=False, split_special_tokens=True)
  assert tokenizer.encode_lines(lines) == ids["input_ids"]
  a, b = tokenizer.encode_lines(["the swan", "flies"])
  assert other("the swan", "flies")["input_ids"] == [2, *a, 3, *b, 3]
  masked = other(f"the {other.mask_token}")["input_ids"]
  assert masked == [2, *tokenizer.encode("the"), 4, 3]
  tokens_T, lengths_N = Encoder(tokenizer).encode(lines)
  assert lengths_N.tolist() == list(map(len, ids["input_ids"]))
  assert tokens_T.tolist() == sum(ids["input_ids"], [])
  assert read_tokens(other)[0] == tokenizer.vocab


@pytest.mark.parametrize("kind", KINDS)
def test_text_gets_no_special_ids_also_after_a_copy(tmp_path, kind):
  tokenizer = load(write_files(tmp_path, kind))
  tokenizer.encode("swan")  # makes the backend
  copies = pickle.loads(pickle.dumps(tokenizer)), load(tmp_path)
  write_tokenizer(tokenizer, tmp_path)
  for copy in (*copies, load(tmp_path)):
    assert copy == tokenizer
    assert copy.fingerprint == tokenizer.fingerprint
    lines = ["a [MASK]", "<s> </s> <mask>[SEP]", "[unused row 7]", "\ud800a"]
    ids = {i for line_ids in copy.encode_lines(lines) for i in line_ids}
    assert not ids & set(tokenizer.special_ids) - {tokenizer.unk}


def test_roles_are_those_of_the_config_then_of_the_template(tmp_path):
  path = write_files(tmp_path)
  config = {"cls_token": {"content": "<new>"}, "pad_token": "[UNK]"}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  tokenizer = load(path)
  assert tokenizer.special_ids == (1, len(tokenizer.vocab) - 1, 3, 4)
  assert tokenizer.vocab[tokenizer.cls] == "<new>"
  (tmp_path / "tokenizer_config.json").unlink()
  ends = {"cls": ["[SEP]", 3], "sep": ["[CLS]", 2]}
  template = {"type": "RobertaProcessing", **ends}
  edit(
    path,
    post_processor=template | {"trim_offsets": True, "add_prefix_space": True},
  )
  tokenizer = load(path)
  assert (tokenizer.cls, tokenizer.sep) == (3, 2)
  edit(path, added_tokens=[], post_processor=None)
  with pytest.raises(InputError, match="has no mask token"):
    load(path)
  path.with_name("tokenizer_config.json").write_text('{"mask_token": "[MASK]"}')
  with pytest.raises(InputError, match="has no pad token. Name a pad_token"):
    load(path)


def test_rows_without_tokens_are_unused(tmp_path):
  path = write_files(tmp_path)
  content = json.loads(path.read_text())
  ids = content["model"]["vocab"]
  last = max(ids, key=ids.__getitem__)
  ids[last] += 2  # leaves two holes
  edit(path, model=content["model"])
  (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 320}))
  tokenizer = load(tmp_path)
  assert len(tokenizer.vocab) == len(set(tokenizer.vocab)) == 320
  assert tokenizer.vocab[ids[last]] == last
  unused = [i for i, x in enumerate(tokenizer.vocab) if x.startswith("[unused")]
  assert unused[:2] == [ids[last] - 2, ids[last] - 1]
  assert len(unused) == 320 - len(ids)
  before = load(write_files(tmp_path / "before"))
  assert tokenizer.encode_lines(make_texts(5)) == [
    [i + 2 * (i == ids[last] - 2) for i in line]
    for line in before.encode_lines(make_texts(5))
  ]


CLASHES = {
  ("[PAD]", "[MASK]"): "one token for pad and mask, '.PAD.'. Name another pad",
  ("[SEP]", "[MASK]"): "one token for mask and sep, '.SEP.'",
  ("[PAD]", "[CLS]"): "one token for pad and cls",
}


@pytest.mark.parametrize(("names", "message"), CLASHES.items())
def test_one_token_for_two_roles_is_refused(tmp_path, names, message):
  path = write_files(tmp_path)
  config = {f"{names[1][1:-1].lower()}_token": names[0]}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  with pytest.raises(InputError, match=message):
    load(path)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "no entries"),
    (
      {"model": {"type": "New", "vocab": {"a": 0}}},
      "cannot be read .data did not match",
    ),
    ({"pre_tokenizer": {"type": "New"}}, "cannot be read .data did not match"),
    ({"added_tokens": [{}]}, "cannot be read .it has no .content"),
  ],
)
def test_what_tokenizers_refuses_is_refused(tmp_path, changes, message):
  with pytest.raises(InputError, match=message):
    load(write_files(tmp_path, **changes))


def test_a_missing_mask_is_added_on_request(tmp_path):
  path = write_files(tmp_path)
  tokens = json.loads(path.read_text())["added_tokens"]
  edit(path, added_tokens=tokens[:4])
  with pytest.raises(InputError, match="--config.data.mask_token='<mask>'"):
    load(path)
  with pytest.raises(InputError, match="mask_token='swan' could be a word"):
    load(path, mask_token="swan")
  tokenizer = load(path, mask_token="<mask>")
  assert tokenizer.vocab[tokenizer.mask] == tokenizer.vocab[-1] == "<mask>"
  write_tokenizer(tokenizer, tmp_path)
  assert load(tmp_path) == load(tmp_path, mask_token="<mask>") == tokenizer
  edit(path, decoder={"type": "Fuse"})
  assert load(path).fingerprint == tokenizer.fingerprint
  edit(path, normalizer={"type": "NFC"})
  assert load(path).fingerprint != tokenizer.fingerprint


def test_the_vocabulary_of_a_folder_is_the_one_of_its_tokenizer(tmp_path):
  write_vocabulary(BERT, tmp_path / "vocab.txt")
  assert load(tmp_path).definition == ""
  write_files(tmp_path)
  assert load(tmp_path).mark == "Ġ"


def test_rows_hold_the_ids_of_whole_documents(tmp_path, monkeypatch):
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path))
  texts = ["\n".join(make_texts(200)[i : i + 5]) for i in range(0, 200, 5)]
  (tmp_path / "corpus.txt").write_text("\n\n".join(texts))
  vocab = str(write_files(tmp_path / "own").parent)
  config = '{"unk_token": "[CLS]"}'  # one token for both, like GPT-2's
  (tmp_path / "own" / "tokenizer_config.json").write_text(config)
  options = {"length": 500, "vocab": vocab, "layout": "packed"}
  folder, tokenizer = prepare(str(tmp_path / "corpus.txt"), **options)
  assert load_vocabulary(folder) == tokenizer == load(vocab)
  rows = open_rows(folder, "train")
  assert not rows.unigram_V[[*tokenizer.special_ids]].any()
  tokens_BxL = rows.take(np.arange(len(rows)))["tokens"]
  ids = [i for i in tokens_BxL.ravel().tolist() if i > tokenizer.mask]
  expected = sum((make_tokenizer("bpe").encode(x).ids for x in texts), [])
  assert ids == expected[: len(ids)]
  with pytest.raises(InputError, match="data.tokenizer='tf_text' encodes with"):
    prepare(str(tmp_path / "corpus.txt"), tokenizer="tf_text", **options)
