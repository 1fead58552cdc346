"""Splits text into words, so that costly steps see each distinct word once.

lines = split_lines(["a Swan", "swans, a"], lowercase=True)
lines.to_pylist()  # [["a", "swan"], ["swans", ",", "", "a"]]
lines.values.dictionary_encode().dictionary  # a, swan, swans, ",", ""
"""

import re
import string
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  import pyarrow

BATCH_CHARACTERS = 2_000_000  # many, so that most words are repeated
_CHINESE = re.compile("[\u4e00-\u9fff]")  # the most common characters
_SPACES = bytes.maketrans(b"\t\r", b"  ")


def batch_texts(texts: Iterable[str]) -> Iterator[list[str]]:
  """Groups texts into lists of at least BATCH_CHARACTERS, except the last."""
  batch: list[str] = []
  size = 0
  for text in texts:
    batch.append(text)
    size += len(text)
    if size >= BATCH_CHARACTERS:
      yield batch
      batch, size = [], 0
  if batch:
    yield batch


def split_lines(
  lines: Sequence[str], *, lowercase: bool
) -> "pyarrow.ListArray":
  """Splits one or more lines as BERT splits ASCII and common Chinese.

  BERT may split these words further, but never joins two of them. Spaces, tabs,
  line ends and punctuation separate words, some of which are empty. Lone
  surrogates have no UTF-8 and are dropped.
  """
  import pyarrow  # takes a quarter of a second
  import pyarrow.compute

  text = "\n".join([line.replace("\n", " ") for line in lines])
  text = _CHINESE.sub(r" \g<0> ", text)
  data = text.encode("utf-8", "ignore").translate(_SPACES)
  if lowercase:
    data = data.lower()
  for mark in string.punctuation:
    data = data.replace(mark.encode(), f" {mark} ".encode())
  text_1 = pyarrow.array([data], pyarrow.large_string())
  lines_N = pyarrow.compute.split_pattern(text_1, "\n").values
  return pyarrow.compute.split_pattern(lines_N, " ")
