"""Writes and reads small rows folders."""

import dataclasses
import pathlib

import numpy as np

from support.texts import LETTERS, make_corpus, make_texts, to_jsonl
from truenegs_jax.config.sections import Data
from truenegs_jax.data import prepare_rows, shards, steps
from truenegs_jax.data.rows import RowsOptions, open_rows
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.train import prepare_data

TOKENIZER = make_tokenizer((*SPECIALS, *LETTERS), lowercase=True)
OPTIONS = RowsOptions(
  sources=[{}],  # of a corpus of `make_corpus`
  vocabulary="given",
  lowercase=True,
  strip_accents=True,
  length=16,
  held_out=0.1,
)


def build_shards(
  folder,
  corpus,
  tokenizer=TOKENIZER,
  options=OPTIONS,
  progress=lambda *_: None,
  **fields,
):
  """Builds shards by a plan with these fields."""
  plan = steps.Plan(pathlib.Path(folder), options, **fields)
  return steps.build_shards(plan, corpus, tokenizer, progress)


def write_rows(
  folder, corpus, tokenizer=TOKENIZER, options=OPTIONS, **build_options
):
  """Builds and verifies all shards; returns the manifest."""
  folder = pathlib.Path(folder)
  options = dataclasses.replace(options, sources=corpus.identity())
  shard_set = build_shards(folder, corpus, tokenizer, options, **build_options)
  return shards.finish(folder, shard_set)


def write_texts(folder, texts, *, tokenizer=TOKENIZER, **changes):
  """Writes the rows of texts with changed options; returns the manifest."""
  options = dataclasses.replace(OPTIONS, **changes)
  return write_rows(folder, make_corpus(texts), tokenizer, options)


def write_sources(folder) -> str:
  """Writes six files of text; returns `data.sources` of two parts."""
  (folder / "texts").mkdir()
  for number in range(5):
    texts = make_texts(40, seed=number)
    (folder / f"texts/{number}.jsonl").write_bytes(to_jsonl(texts))
  (folder / "one.txt").write_text("\n\n".join(make_texts(50, seed=9)))
  return f"{folder}/texts document=join chars=300, {folder}/one.txt"


def prepare(sources, folder, engine=None, bucket="") -> None:
  """Prepares rows by `execute_plan`."""
  data = Data(
    sources=sources,
    language="",
    vocab_size=40,
    held_out=0.1,
    rows=str(folder),
    workers=1,
  )
  plan = prepare_data.plan_rows(data, 16)
  plan = dataclasses.replace(plan, engine=engine, bucket=bucket)
  prepare_rows.execute_plan(plan)


def prepare_files(sources, folder, *machines) -> dict[str, bytes]:
  """Prepares rows by `execute_plan`; returns the content of all files."""
  prepare(sources, folder, *machines)
  return read_files(folder)


def read_split(folder, split):
  """Returns all rows of a split as arrays."""
  rows = open_rows(folder, split)
  return rows.take(np.arange(len(rows)))


def read_files(folder) -> dict[str, bytes]:
  """Returns the content of all files."""
  return {path.name: path.read_bytes() for path in folder.iterdir()}


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
