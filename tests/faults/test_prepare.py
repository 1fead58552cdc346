"""Fuzzes the preparation: any text gives rows or a short error.

TRUENEGS_FUZZ_FIRST is the number of the first generated text, 0 by default.
"""

import collections
import itertools
import os
import pathlib

import numpy as np
import pytest
from tests.support.tokenizer_files import write_vocabulary

from support.small_rows import check_structure
from support.texts import COMPRESSORS, FORMATTERS, corrupt
from truenegs_jax.data.prepare import prepare
from truenegs_jax.data.rows import open_rows, read_manifest, verify_rows
from truenegs_jax.data.sources import open_corpus
from truenegs_jax.data.tokenizer import SPECIALS
from truenegs_jax.runtime.errors import TrueNegsError

FIRST = int(os.environ.get("TRUENEGS_FUZZ_FIRST", 0))
# Characters that readers, normalizers and tokenizers treat specially.
ODD = (
  "\t \x0b\x0c\x1c\x1d\x1e\x1f\xa0\u2028\u2029\u200b\u200d\u00ad\ufeff"
  "\ufffd"
  "\x01\x7f\r\u0301\u0327\u0130\u01c5\ufb01\ufdfa\uac00\u1100\u1161\u05d0"
  "\u0627\u202e\u4e00\u5929\u9e45\U0002b820\U0002f800\uf900\u3042\uff21\u3000"
  "\U0001f600\U0001f468\u200d\U0001f469\ufe0f\U000e0001\U0010ffff\ue000"
  "\"',;.!?-[]#\\/$&%"
)
LETTERS = "abcdefgABCéïÅжЖßñ"


def make_word(rng) -> str:
  kind = rng.integers(12)
  if kind == 0:
    return str(rng.choice(["[CLS]", "[MASK]", "##a", "[UNK]", "a##b", "[SEP]"]))
  if kind == 1:
    return str(rng.choice(list(LETTERS))) * int(rng.integers(95, 260))
  if kind < 4:
    codes = rng.choice(list(ODD), rng.integers(1, 6))
  else:
    codes = rng.choice(list(LETTERS), rng.integers(1, 7))
  return "".join(codes)


def make_text(rng) -> str:
  """Generates lines and blank lines with every kind of line end."""
  ends = ["\n", "\n", "\n\n", "\r\n", "\r", "\n \t\n", "\r\n\r\n", "\n\n\n"]
  text = ""
  for _ in range(rng.integers(0, 25)):
    words = [make_word(rng) for _ in range(rng.integers(0, 14))]
    text += " ".join(words) + rng.choice(ends)
  return text


def add_noise(data: bytes, rng) -> bytes:
  """Damages data, changes its encoding, or replaces it by random bytes."""
  kind = rng.integers(9)
  if kind == 0:
    return rng.bytes(int(rng.integers(0, 300)))
  if kind == 1:
    return data.decode(errors="replace").encode("utf-16")
  if kind == 2:
    return data + b"\xed\xa0\x80 a \xc0\xaf \xf5"
  if kind == 3:
    return b"\xef\xbb\xbf" + data
  return corrupt(data, rng)


def add_odd_values(texts, suffix: str, rng) -> list:
  """Replaces some texts by null, or adds lone surrogates."""
  if suffix == ".parquet":
    return [None if rng.random() < 0.1 else text for text in texts]
  surrogate = "\ud800" if suffix == ".jsonl" and rng.random() < 0.1 else ""
  return [text + surrogate for text in texts]


def write_part(folder: pathlib.Path, rng) -> str:
  """Writes one or more files of a part; returns it for `data.sources`."""
  folder.mkdir()
  compression = str(rng.choice(list(COMPRESSORS)))
  shares = [0.4, 0.2, 0.1, 0.05, 0.1, 0.15]
  suffix = str(rng.choice([*FORMATTERS, ".odd"], p=shares))
  for number in range(rng.integers(1, 4)):
    texts = [make_text(rng) for _ in range(rng.integers(0, 9))]
    format_texts = FORMATTERS.get(suffix, FORMATTERS[".txt"])
    data = format_texts(add_odd_values(texts, suffix, rng))
    if rng.random() < 0.05:
      data = add_noise(data, rng)
    data = COMPRESSORS[compression](data)
    if rng.random() < 0.05:
      data = add_noise(data, rng)
    (folder / f"{number}{suffix}{compression}").write_bytes(data)
  rule = ["", " document=record", " document=file", " document=block"]
  return f"{folder}/*{rng.choice(rule)}"


def write_case(folder: pathlib.Path, rng) -> tuple[str, dict]:
  """Returns a spec, and the other options of `prepare`."""
  folder.mkdir()
  num_parts = int(rng.integers(1, 4))
  parts = [write_part(folder / f"p{i}", rng) for i in range(num_parts)]
  if rng.random() < 0.4:
    parts = [f"{part} weight={rng.integers(1, 9) / 2}" for part in parts]
  vocab, size = "train", int(rng.choice([20, 300, 900]))
  if rng.random() < 0.6:
    vocab = str(folder / "vocab.txt")
    pieces = [*LETTERS.lower(), "[", "]", "cls", "天", ".", "ab", "##ab"]
    pieces += [f"##{letter}" for letter in LETTERS]
    kept = [p for p in dict.fromkeys(pieces) if rng.random() < 0.8]
    write_vocabulary([*kept[:3], *SPECIALS, *kept[3:]], folder / "vocab.txt")
  options = {
    "vocab": vocab,
    "vocab_size": size,
    "length": int(rng.choice([8, 9, 16, 33, 128])),
    "layout": str(rng.choice(["electra", "packed"])),
    "overflow": str(rng.choice(["carry", "discard"])),
    "held_out": float(rng.choice([0.0, 0.02, 0.3, 0.5])),
    "lowercase": bool(rng.random() < 0.7),
    "accents": ["auto", "strip", "keep"][rng.integers(3)],
  }
  return ", ".join(parts), options


def check_rows(folder, tokenizer, corpus, options) -> None:
  """Checks the structure and the tokens of all rows."""
  verify_rows(folder)
  row_ids, num_rows = [], 0
  for split in ("train", "held_out"):
    rows = open_rows(folder, split)
    num_rows += len(rows)
    arrays = rows.take(np.arange(len(rows)))
    tokens_RxL = arrays["tokens"]
    assert (tokens_RxL < len(tokenizer.vocab)).all()
    added = {name: getattr(tokenizer, name) for name in ("cls", "sep", "pad")}
    check_structure(arrays, **added)
    row_ids.extend(tokens_RxL[~np.isin(tokens_RxL, list(added.values()))])
  assert num_rows > 0
  documents = list(corpus)
  corpus_ids = encode(documents, tokenizer)
  parts = read_manifest(folder)["parts"]
  assert sum(part["documents"] for part in parts) == len(documents)
  passes = [part["passes"] for part in parts]
  if options["overflow"] == "discard":
    assert len(row_ids) <= sum(passes) * len(corpus_ids)
  elif {*passes} == {1}:
    assert np.array_equal(np.sort(row_ids), np.sort(corpus_ids))
    assert options["held_out"] or row_ids == corpus_ids
  else:  # rows of a part with the last documents may be in no epoch
    assert {*row_ids} <= {*corpus_ids}
    if min(passes) >= 1:
      counts = collections.Counter(row_ids)
      assert collections.Counter(corpus_ids) <= counts


def encode(texts, tokenizer) -> list[int]:
  """Returns the ids of documents, concatenated."""
  lines = itertools.chain.from_iterable(text.split("\n") for text in texts)
  return [i for ids in tokenizer.encode_lines(list(lines)) for i in ids]


def prepare_case(folder: pathlib.Path, number: int) -> bool:
  """Returns whether there are rows, and checks them or the error."""
  rng = np.random.default_rng([13, number])
  spec, options = write_case(folder, rng)
  rows = folder / "rows"
  try:
    _, tokenizer = prepare(spec, rows=str(rows), **options)
  except TrueNegsError as error:
    assert not (rows / "manifest.json").exists()
    assert len(str(error)) < 1500
    return False
  check_rows(rows, tokenizer, open_corpus(spec), options)
  return True


@pytest.mark.parametrize(
  "numbers",
  [
    range(FIRST, FIRST + 60),
    pytest.param(range(FIRST + 60, FIRST + 300), marks=pytest.mark.faults),
  ],
  ids=["few", "many"],
)
def test_any_text_gives_complete_rows_or_an_error(
  tmp_path, monkeypatch, numbers, count_tries
):
  count_tries(len(numbers))
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  results = []
  for number in numbers:
    try:
      results.append(prepare_case(tmp_path / f"case{number}", number))
    except Exception as error:
      raise AssertionError(f"case {number}: {error!r}") from error
  # Both results must be frequent. One bad file refuses a case.
  assert 0.2 < np.mean(results) < 0.8
