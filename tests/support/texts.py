"""Generates texts, corpora and files of every format."""

import bz2
import csv
import gzip
import io
import json
import lzma
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow
from pyarrow import parquet

# Suffix -> compresses the content of a file.
COMPRESSORS = {
  "": lambda data: data,
  ".bz2": bz2.compress,
  ".gz": gzip.compress,
  ".xz": lzma.compress,
  ".zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}


def write_lines(path: pathlib.Path, records: Iterable) -> pathlib.Path:
  """Writes a record of JSON a line; returns the path."""
  path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
  return path


def to_jsonl(texts: Iterable[str | None]) -> bytes:
  records = [json.dumps({"id": i, "text": t}) for i, t in enumerate(texts)]
  return "\n".join(records).encode()


def to_csv(texts: Iterable[str]) -> bytes:
  file = io.StringIO(newline="")
  writer = csv.writer(file)
  writer.writerow(["id", "text"])
  writer.writerows(enumerate(texts))
  return file.getvalue().encode()


def to_parquet(texts: Sequence[str | None], **options) -> bytes:
  file = io.BytesIO()
  table = pyarrow.table({"id": range(len(texts)), "text": texts})
  parquet.write_table(table, file, **({"row_group_size": 2} | options))
  return file.getvalue()


# Suffix -> forms the content of a file of texts.
FORMATTERS = {
  ".txt": lambda texts: "\n\n".join(texts).encode(),
  ".jsonl": to_jsonl,
  ".csv": to_csv,
  ".parquet": to_parquet,
}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


# Lines that normalizers and tokenizers may treat differently.
ODD_LINES = [
  "",
  " \t ",
  "\u200b\u200e",
  "a\x00b \x00 b\x00",
  "\ufeffswan",
  "SWAN Swan swän, (Swan) swans' swan-swan...",
  "swan\u0301ing e\u0301 \u0301 \u0327\u0301e",
  "天鹅 swan 天天swan天",
  "ﬁ İ ß Σς ΟΔΟΣ ¹²½ Ⅷ … №",
  "مرحبا שלום",
  "x" * 100,
  "x" * 101,
  "x" * 200 + " " + "x" * 20_000,
  "天" * 300,
  "e" + "\u0300" * 150 + "f",
  "é" * 99 + " " + "한" * 34,
  "[MASK] [SEP] a[MASK]b [CLS] [PAD] [UNK]",
  "##ing ## # a##s",
  "🦢\u200d🦢 👨\u200d👩\u200d👧 👩🏽\u200d💻 ✊🏿",
  "a b a\u00a0b x,y",
  "a\nb\r\nc\x0bd\x0ce\x1cf\x1fg\x85h\u2028i\u2029j",
  "".join(chr(c) for c in range(0xFDD0, 0xFDF0)) + " swan",
  "a\ud800b \udfff sw\udbffan",
  "a\u3000\u1680\u2003\u202f\u205fb",
  "\ue000x \uffff x\ufffd \U0010ffff",
]


def random_lines(number: int) -> list[str]:
  """Returns lines of 40 characters: ASCII, Latin, marks or any code point."""
  rng = np.random.default_rng(0)
  spans = [(0, 0x80), (0, 0x500), (0x2000, 0x2100), (0, 0x110000), (97, 103)]
  lines = []
  for i in range(number):
    codes = rng.integers(*spans[i % len(spans)], size=40)
    codes[rng.random(40) < 0.2] = 32
    lines.append("".join(map(chr, codes)))
  return lines


def make_texts(count: int, seed: int = 0) -> list[str]:
  """Returns documents of 1 to 11 lines of 1 to 29 one-letter words."""
  rng = np.random.default_rng(seed)
  letters = np.array(list(LETTERS))
  return [
    "\n".join(
      " ".join(rng.choice(letters, size))
      for size in rng.integers(1, 30, rng.integers(1, 12))
    )
    for _ in range(count)
  ]
