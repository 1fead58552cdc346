"""Writes and reads small rows folders."""

import dataclasses
import pathlib

import numpy as np

from support.texts import LETTERS, make_texts, to_jsonl
from support.tokenizer_files import write_vocabulary
from truenegs_jax.config.sections import Data
from truenegs_jax.data import build, sources
from truenegs_jax.data import prepare as prepare_lib
from truenegs_jax.data.rows import open_rows, read_manifest
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer

TOKENIZER = make_tokenizer((*SPECIALS, *LETTERS), lowercase=True)
# Of prepare; set these for units and slices of some small documents.
SMALL = [(build, "MIN_SLICE", 6000), (sources, "UNIT_BYTES", 4000)]


def write_texts(folder, texts, *, tokenizer=TOKENIZER, **data):
  """Writes the rows of texts, and a folder beside it; returns the manifest."""
  folder = pathlib.Path(folder)
  own = folder.with_name(f"{folder.name}-text")
  if not own.exists():  # another time would be that of another text
    own.mkdir()
    (own / "texts.jsonl").write_bytes(to_jsonl(texts))
    write_vocabulary(tokenizer.vocab, own / "vocab.txt")
  data = {"vocab": str(own / "vocab.txt"), **data}
  return write_rows(folder, f"{own}/texts.jsonl", **data)


def write_rows(folder, spec, *, runner="", length=16, **data):
  """Writes the rows of `data.sources`; returns the manifest."""
  defaults = {"vocab_size": 40, "held_out": 0.1, "workers": 1, "language": ""}
  data = {"sources": spec, "rows": str(folder), **defaults, **data}
  plan = prepare_lib.make_plan(Data(**data), length)
  prepare_lib.execute_plan(dataclasses.replace(plan, runner=runner))
  return read_manifest(folder)


def write_sources(folder) -> str:
  """Writes six files of text; returns `data.sources` of two parts."""
  (folder / "texts").mkdir()
  for number in range(5):
    texts = make_texts(40, seed=number)
    (folder / f"texts/{number}.jsonl").write_bytes(to_jsonl(texts))
  (folder / "one.txt").write_text("\n\n".join(make_texts(50, seed=9)))
  return f"{folder}/texts document=join chars=300, {folder}/one.txt"


def read_split(folder, split):
  """Returns all rows of a split as arrays."""
  rows = open_rows(folder, split)
  return rows.take(np.arange(len(rows)))


def read_letters(folder, split) -> str:
  """Returns the text of a split without spaces."""
  tokens_RxL = read_split(folder, split)["tokens"]
  return "".join(TOKENIZER.vocab[i] for i in tokens_RxL[tokens_RxL >= 5])


def check_structure(arrays, *, cls: int, sep: int, pad: int) -> None:
  """Checks what holds for the rows of every layout.

  Args:
    arrays: "tokens", "types" and "documents", each [R, L].
  """
  tokens_RxL, documents_RxL = arrays["tokens"], arrays["documents"]
  types_RxL = arrays["types"]
  is_pad_RxL = documents_RxL == 0
  assert (tokens_RxL >= 0).all()
  assert np.array_equal(is_pad_RxL, tokens_RxL == pad)
  assert (np.diff(is_pad_RxL.astype(int), axis=1) >= 0).all()
  used_R = (~is_pad_RxL).sum(axis=1)
  assert (used_R >= 3).all()
  assert (types_RxL <= 1).all() and (types_RxL[is_pad_RxL] == 0).all()
  # Documents are numbered 1, 2, ...; each begins with its only [CLS] and ends
  # with [SEP].
  numbers_RxL = np.pad(documents_RxL.astype(int), ((0, 0), (1, 1)))
  steps_RxL = np.diff(numbers_RxL)
  begins_RxL = (steps_RxL[:, :-1] != 0) & ~is_pad_RxL
  ends_RxL = (steps_RxL[:, 1:] != 0) & ~is_pad_RxL
  assert (steps_RxL[:, :-1][begins_RxL] == 1).all()
  assert np.array_equal(tokens_RxL == cls, begins_RxL)
  assert (tokens_RxL[ends_RxL] == sep).all()
