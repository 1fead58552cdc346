"""The lines of a text as sequences of their own: `[CLS] line [SEP]`."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from truenegs_jax.data.corpus.corpus import Corpus, Meter
from truenegs_jax.data.corpus.sources_spec import open_corpus
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError, InputError, TrueNegsError

KEY = "corrections.text"


@dataclasses.dataclass(frozen=True)
class Lines:
  """What is read of a text.

  Attributes:
    sequences: int32, the tokens of each line, [CLS] and [SEP] included.
    length: tokens of a sequence at most.
    num_cut: how many lines had more; what is over was left out.
    num_headings: how many lines were left out as headings.
    fingerprint: 16 hex digits over all tokens.
  """

  sequences: tuple[np.ndarray, ...]
  length: int
  num_cut: int
  num_headings: int
  fingerprint: str


def read_lines(
  text: str,
  tokenizer: Tokenizer,
  *,
  length: int,
  limit: int = 0,
  headings: bool = True,
  **corpus: Any,
) -> Lines:
  """Reads a text that `open_corpus` knows; a line of a record is a line, too.

  Args:
    text: parts as of `data.sources`.
    length: tokens of a sequence at most.
    limit: lines at most; 0: all.
    headings: whether those of WikiText ("= Title =") are lines like others.
    **corpus: as of `open_corpus`.

  Raises:
    InputError, DataError: as `open_corpus`; no line holds a token.
  """
  if not text.strip():
    raise InputError(
      f"{KEY} is empty; give files, folders, globs or hf:NAME, such as"
      f" --config.{KEY}=wiki.test.raw.xz"
    )
  with renamed("data.sources", KEY):
    kept, num_headings = _take(
      open_corpus(text, **corpus), limit, headings=headings
    )
  encoded = [ids for ids in tokenizer.encode_lines(kept) if ids]
  if not encoded:
    raise DataError(f"{KEY}={text}: no line of it holds a token; give text.")
  sequences = tuple(
    np.array([tokenizer.cls, *ids[: length - 2], tokenizer.sep], np.int32)
    for ids in encoded
  )
  digest = hashlib.sha256(b"\n".join(s.tobytes() for s in sequences))
  return Lines(
    sequences=sequences,
    length=length,
    num_cut=sum(len(ids) > length - 2 for ids in encoded),
    num_headings=num_headings,
    fingerprint=digest.hexdigest()[:16],
  )


@contextlib.contextmanager
def renamed(old: str, new: str) -> Iterator[None]:
  """Errors that name a key of another task name the one that was given."""
  try:
    yield
  except TrueNegsError as e:
    raise type(e)(str(e).replace(old, new)) from e


def is_heading(line: str) -> bool:
  """Whether a line is a title as WikiText writes it: `= = Title = =`."""
  words = line.split()
  signs = [word == "=" for word in words]
  if all(signs):
    return False
  before, after = signs.index(False), signs[::-1].index(False)
  return before == after > 0 and not any(signs[before : len(signs) - after])


def _take(
  corpus: Corpus, limit: int, *, headings: bool
) -> tuple[list[str], int]:
  kept: list[str] = []
  num_headings = 0
  for line in _lines(corpus):
    if not headings and is_heading(line):
      num_headings += 1
      continue
    kept.append(line)
    if len(kept) == limit:
      break
  return kept, num_headings


def _lines(corpus: Corpus) -> Iterator[str]:
  for document in corpus.read(Meter()):
    yield from document.text.split("\n")
