"""Small rows folders, written and read."""

import dataclasses
import pathlib

import numpy as np

from support.texts import LETTERS, Texts
from truenegs_jax.data.rows import build_rows, merge_chunks
from truenegs_jax.data.rows.rows_folder import (
  RowsOptions,
  open_rows,
)
from truenegs_jax.data.tokens.tokenizer import SPECIALS, make_tokenizer

TOKENIZER = make_tokenizer((*SPECIALS, *LETTERS), lowercase=True)


OPTIONS = RowsOptions(
  sources=[],
  vocabulary="given",
  lowercase=True,
  strip_accents=True,
  length=16,
  held_out=0.1,
)


def write_rows(folder, corpus, tokenizer, options, **how):
  """Builds rows at `folder` in one go; returns the manifest."""
  folder = pathlib.Path(folder)
  built = build_rows.build_share(folder, corpus, tokenizer, options, **how)
  return merge_chunks.merge(folder, built)


def write(folder, texts, *, tokenizer=TOKENIZER, **changes):
  options = dataclasses.replace(OPTIONS, **changes)
  return write_rows(folder, Texts(texts), tokenizer, options)


def contents(folder, split):
  """All rows of a split as arrays."""
  found = open_rows(folder, split)
  return found.take(np.arange(len(found)))


def letters(batch) -> str:
  ids = batch["tokens"][batch["tokens"] >= 5]
  return "".join(TOKENIZER.vocab[i] for i in ids)
