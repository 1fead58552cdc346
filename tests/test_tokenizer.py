"""The tokenizer equals BERT's, refuses bad vocabularies, trains the same."""

import json
import lzma
import os
import pickle
import subprocess
import sys

import huggingface_hub.constants
import numpy as np
import pytest

from truenegs_jax.data.tokenizer import (
  SPECIALS,
  load_tokenizer,
  make_tokenizer,
  train_vocabulary,
  write_vocabulary,
)
from truenegs_jax.errors import InputError

LETTERS = [c for c in "abcdefghijklmnopqrstuvwxyz0123456789.,!?[]#'-"]
VOCAB = (*SPECIALS, *LETTERS, *("##" + c for c in LETTERS), "swan", "##ing")
ODD = [
  "",
  " \t ",
  "\u200b\u200e",
  "a\x00b",
  "\ufeffswan",
  "SWAN Swan swän",
  "swan\u0301ing",
  "天鹅 swan",
  "ﬁ İ ß Σς",
  "مرحبا שלום",
  "x" * 101,
  "x" * 100,
  "[MASK] [SEP] [CLS] [PAD] [UNK]",
  "##ing ## #",
  "🦢\u200d🦢",
  "a\u2028b\u0085c\x0bd",
]


def random_texts(number: int) -> list[str]:
  rng = np.random.default_rng(0)
  spans = [(0, 0x80), (0x80, 0x500), (0x2000, 0x2100), (0, 0x110000)]
  texts = []
  for i in range(number):
    codes = rng.integers(*spans[i % len(spans)], size=40)
    texts.append("".join(map(chr, codes)))
  return texts


def bert_ids(path, lines, *, lowercase):
  """The reference: transformers, with specials typed in text kept as text."""
  transformers = pytest.importorskip("transformers")
  bert = transformers.BertTokenizer(str(path), do_lower_case=lowercase)
  tokenize = bert.backend_tokenizer
  tokenize.encode_special_tokens = True
  return [tokenize.encode(line, add_special_tokens=False).ids for line in lines]


def is_valid(text: str) -> bool:
  return not any(0xD800 <= ord(c) < 0xE000 for c in text)


@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_are_those_of_transformers_on_odd_text(tmp_path, lowercase):
  write_vocabulary(VOCAB, tmp_path / "vocab.txt")
  tokenizer = load_tokenizer(str(tmp_path / "vocab.txt"), lowercase=lowercase)
  lines = ODD + [t for t in random_texts(400) if is_valid(t)]
  expected = bert_ids(tmp_path / "vocab.txt", lines, lowercase=lowercase)
  assert tokenizer.encode_lines(lines) == expected


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
  found = tokenizer.encode_lines([*ODD, *random_texts(200), "\ud800[MASK]"])
  ids = {i for line in found for i in line}
  assert ids & set(tokenizer.special_ids) <= {tokenizer.unk}
  assert tokenizer.encode_lines(["[MASK]"])[0][0] == VOCAB.index("[")


def test_lone_surrogates_are_dropped():
  tokenizer = make_tokenizer(VOCAB, lowercase=True)
  assert tokenizer.encode_lines(["sw\ud800an"]) == tokenizer.encode_lines(
    ["swan"]
  )


def test_decode_joins_pieces():
  tokenizer = make_tokenizer(VOCAB, lowercase=True)
  [ids] = tokenizer.encode_lines(["Swaning swan."])
  shown = tokenizer.decode([tokenizer.cls, *ids])
  assert shown == "[CLS] swaning swan ."


def test_a_tokenizer_survives_pickling():
  tokenizer = make_tokenizer(VOCAB, lowercase=True)
  tokenizer.encode_lines(["warm"])
  copy = pickle.loads(pickle.dumps(tokenizer))
  assert copy == tokenizer
  assert copy.encode_lines(["swaning"]) == tokenizer.encode_lines(["swaning"])


def test_the_fingerprint_follows_entries_order_and_case():
  swapped = (*VOCAB[:-2], VOCAB[-1], VOCAB[-2])
  prints = {
    make_tokenizer(vocab, lowercase=lowercase).fingerprint
    for vocab in (VOCAB, VOCAB[:-1], swapped)
    for lowercase in (True, False)
  }
  assert len(prints) == 6
  again = make_tokenizer(VOCAB, lowercase=True).fingerprint
  assert again in prints and len(again) == 16


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_line_ends_and_byte_order_marks_do_not_matter(tmp_path, ending):
  data = "\ufeff" + ending.join(VOCAB) + ending
  (tmp_path / "vocab.txt").write_bytes(data.encode())
  tokenizer = load_tokenizer(str(tmp_path), lowercase=True)
  assert tokenizer == make_tokenizer(VOCAB, lowercase=True)


def test_special_entries_may_have_any_id(tmp_path):
  vocab = (*VOCAB[5:], *reversed(SPECIALS))
  tokenizer = make_tokenizer(vocab, lowercase=True)
  assert [vocab[i] for i in tokenizer.special_ids] == list(SPECIALS)


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


def write_json(path, **changes):
  ids = {entry: i for i, entry in enumerate(VOCAB)}
  content = {
    "normalizer": {"lowercase": True},
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
  "changes", [{"type": "BPE"}, {"vocab": {"a": 0, "b": 7}}, {"vocab": [[1]]}]
)
def test_another_kind_of_tokenizer_json_is_refused(tmp_path, changes):
  write_json(tmp_path / "tokenizer.json", **changes)
  with pytest.raises(InputError, match="WordPiece"):
    load_tokenizer(str(tmp_path / "tokenizer.json"), lowercase=True)


def test_damaged_json_is_refused(tmp_path):
  for data in (b"{", b"[" * 100_000, b"3", b'{"model": null}', b"\xff"):
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(InputError, match="is not a WordPiece"):
      load_tokenizer(str(tmp_path), lowercase=True)


@pytest.mark.parametrize("name", ["", "no/such/vocab.txt", "./x", "a/b/c"])
def test_a_missing_path_is_named(name):
  with pytest.raises(InputError, match="neither a file, a folder nor"):
    load_tokenizer(name, lowercase=True)


def test_an_empty_folder_is_named(tmp_path):
  with pytest.raises(InputError, match="neither vocab.txt nor tokenizer.json"):
    load_tokenizer(str(tmp_path), lowercase=True)


def test_a_hub_name_without_internet_asks_for_a_path(monkeypatch):
  monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
  with pytest.raises(InputError, match="a local one: --config.data.vocab="):
    load_tokenizer("some-owner/no-such-model", lowercase=True)


def corpus() -> list[str]:
  rng = np.random.default_rng(3)
  roots = ["swan", "crane", "grebe", "été", "flüge", "天"]
  ends = ["", "s", "ing", "ed", "like"]
  words = [
    rng.choice(roots) + rng.choice(ends) + rng.choice(["", "", "."])
    for _ in range(4000)
  ]
  return [" ".join(words[i : i + 20]) for i in range(0, 4000, 20)]


def test_a_trained_vocabulary_covers_its_corpus():
  vocab = train_vocabulary(corpus(), size=120, lowercase=True)
  tokenizer = make_tokenizer(vocab, lowercase=True)
  assert tokenizer.special_ids == (0, 1, 2, 3, 4)
  assert 60 < len(vocab) <= 120
  ids = tokenizer.encode_lines(corpus())
  assert not any(tokenizer.unk in line for line in ids)
  assert "swan" in vocab and "ete" in vocab
  cased = train_vocabulary(corpus(), size=120, lowercase=False)
  assert "é" in cased and "é" not in vocab


def test_training_gives_the_same_vocabulary_in_every_process(tmp_path):
  code = (
    "import sys, pathlib;"
    "from truenegs_jax.data.tokenizer import *;"
    "texts = pathlib.Path(sys.argv[1]).read_text('utf-8').split('\\n');"
    "vocab = train_vocabulary(iter(texts), size=400, lowercase=True);"
    "sys.stdout.buffer.write('\\n'.join(vocab).encode())"
  )
  # Many letters and ties: what the trainer of `tokenizers` alone gets wrong.
  rng = np.random.default_rng(0)
  words = ["".join(rng.choice(LETTERS[:26], 6)) for _ in range(300)] * 2
  (tmp_path / "c.txt").write_text(" ".join(words) + "\n", encoding="utf-8")
  runs = [
    subprocess.run(
      [sys.executable, "-c", code, str(tmp_path / "c.txt")],
      env={**os.environ, "PYTHONHASHSEED": str(seed)},
      capture_output=True,
      check=True,
    )
    for seed in range(4)
  ]
  assert len({run.stdout for run in runs}) == 1
  assert len(runs[0].stdout.split(b"\n")) == 400
  assert not any(run.stderr for run in runs)


def test_a_size_too_small_is_refused_with_the_least_one():
  with pytest.raises(InputError, match=r"vocab_size=20: .* take \d\d; set at"):
    train_vocabulary(corpus(), size=20, lowercase=True)
