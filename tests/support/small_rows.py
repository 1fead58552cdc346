"""Small rows folders, written and read."""

import dataclasses

import numpy as np

from support.texts import LETTERS, Texts
from truenegs_jax.data.rows import build_rows
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


def write(folder, texts, *, tokenizer=TOKENIZER, **changes):
  options = dataclasses.replace(OPTIONS, **changes)
  return build_rows.write_rows(folder, Texts(texts), tokenizer, options)


def contents(folder, split):
  """All rows of a split as arrays."""
  found = open_rows(folder, split)
  return found.take(np.arange(len(found)))


def letters(batch) -> str:
  ids = batch["tokens"][batch["tokens"] >= 5]
  return "".join(TOKENIZER.vocab[i] for i in ids)
