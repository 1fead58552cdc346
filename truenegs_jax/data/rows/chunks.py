"""Chunks: consecutive documents of a corpus, turned into rows separately.

The corpus and the options alone decide where a chunk begins and what becomes of
its documents. So chunks can be built in any order, by any process and over
several runs; their rows, concatenated, are the rows of the corpus. The sizes of
all documents tell where each chunk begins.

A chunk is stored as one `.npz`, written under another name and then renamed, so
that no reader sees an incomplete one.
"""

import dataclasses
import fractions
import itertools
import math
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from truenegs_jax.data.corpus.corpus import Corpus, Meter, Position, Sizes
from truenegs_jax.data.rows import layouts, store
from truenegs_jax.data.rows.rows_folder import (
  FIELDS,
  SPLITS,
  RowsOptions,
)
from truenegs_jax.data.tokens.encoder import Encoder
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError

CHUNK_CHARACTERS = 2**21  # about 4,000 rows of 128: the work lost if stopped
CHUNK_DOCUMENTS = 2**14  # bounds the rows of a chunk of very short documents
NUM_TOKENS = "num_tokens"  # key of the number of tokens of the text
Arrays = store.Arrays  # keys: "SPLIT.FIELD" and NUM_TOKENS


@dataclasses.dataclass(frozen=True)
class Chunk:
  """Consecutive documents of a corpus."""

  number: int  # 0, 1, 2, ... in the order of the corpus
  # (number in the corpus, split, text); the number addresses random draws.
  documents: list[tuple[int, str, str]]


@dataclasses.dataclass(frozen=True)
class ChunkSpec:
  """How to build the chunks of a corpus."""

  folder: pathlib.Path  # where chunks are stored
  tokenizer: Tokenizer
  options: RowsOptions
  held_out_unit: str  # result of `choose_held_out_unit`
  backend: str  # of the encoder; it does not change the rows


class ChunkStart(NamedTuple):
  """The number of a chunk and the place of its first document."""

  number: int
  position: Position


def choose_held_out_unit(corpus: Corpus, options: RowsOptions) -> str:
  """Returns what to hold out: "documents", "rows" or "none".

  Documents are held out of every part with 1 / `options.held_out` documents or
  more. If no part has that many, the last rows of every chunk are held out.
  """
  if not options.held_out:
    return "none"
  fraction = _held_out_fraction(options)
  for document in corpus.read(Meter()):
    if _is_held_out(document.number, fraction):
      return "documents"
    if document.repeat:
      raise DataError(
        f"data.held_out={options.held_out} is less than one document of any"
        f" part of the mixture {corpus}. Set a larger --config.data.held_out."
      )
  return "rows"


def cut_corpus(
  corpus: Corpus,
  options: RowsOptions,
  meter: Meter,
  *,
  held_out_unit: str,
  start: ChunkStart | None = None,
  sizes: Sizes | None = None,
) -> Iterator[Chunk]:
  """Cuts a corpus into chunks of about CHUNK_CHARACTERS.

  Args:
    meter: counts the text as it is read.
    held_out_unit: result of `choose_held_out_unit`.
    start: the first chunk; None for the first of the corpus.
    sizes: of all documents. If given, no text is read.
  """
  number, position = start or (0, None)
  chunk, size = Chunk(number, []), 0
  fraction = _held_out_fraction(options)
  for document in corpus.read(meter, start=position, sizes=sizes):
    split = "train"
    if held_out_unit == "documents" and _is_held_out(document.number, fraction):
      if document.repeat:
        continue  # held out already
      split = "held_out"
    chunk.documents.append((meter.number - 1, split, document.text))
    size += document.num_chars
    if size >= CHUNK_CHARACTERS or len(chunk.documents) == CHUNK_DOCUMENTS:
      yield chunk
      chunk, size = Chunk(chunk.number + 1, []), 0
  if chunk.documents:
    yield chunk


class ChunkBuilder:
  """Builds and stores chunks; a call returns the number of rows."""

  def __init__(self, spec: ChunkSpec) -> None:
    self._spec = spec
    self._encoder = Encoder(spec.tokenizer, spec.backend)

  def __call__(self, chunk: Chunk) -> int:
    arrays = build_chunk(self._spec, self._encoder, chunk)
    path = chunk_path(self._spec.folder, chunk.number)
    store.write_arrays(path, arrays)
    return sum(len(arrays[f"{split}.tokens"]) for split in SPLITS)


def build_chunk(spec: ChunkSpec, encoder: Encoder, chunk: Chunk) -> Arrays:
  """Encodes a chunk; returns NUM_TOKENS and "train.tokens" etc., [R, L]."""
  tokenizer, options = spec.tokenizer, spec.options
  lines = [text.split("\n") for _, _, text in chunk.documents]
  tokens_T, lengths_N = encoder.encode(list(itertools.chain(*lines)))
  line_ends_D = np.cumsum([len(document) for document in lines])[:-1]
  line_lengths = np.split(lengths_N, line_ends_D)  # by document
  lengths_D = [int(lengths.sum()) for lengths in line_lengths]
  tokens = np.split(tokens_T, np.cumsum(lengths_D)[:-1])
  ids = tokenizer.cls, tokenizer.sep, tokenizer.pad
  dtype = np.uint16 if len(tokenizer.vocab) <= 2**16 else np.uint32
  row_spec = layouts.RowSpec(options.length, *ids, options.overflow, dtype)
  arrays: Arrays = {NUM_TOKENS: np.array(len(tokens_T))}
  for split in SPLITS:
    members = [i for i, (_, s, _) in enumerate(chunk.documents) if s == split]
    fields = layouts.lay_out(
      [(chunk.documents[i][0], line_lengths[i].tolist()) for i in members],
      np.concatenate([tokens[i] for i in members] or [tokens_T[:0]]),
      row_spec,
      layout=options.layout,
      seed=options.seed,
    )
    for name, array_RxL in zip(FIELDS, fields, strict=True):
      arrays[f"{split}.{name}"] = array_RxL
  if spec.held_out_unit == "rows":
    _hold_out_rows(arrays, options, is_first=chunk.number == 0)
  return arrays


def chunk_path(folder: pathlib.Path, number: int) -> pathlib.Path:
  """Returns the file of a chunk."""
  return folder / f"chunk-{number:06d}.npz"


def _held_out_fraction(options: RowsOptions) -> fractions.Fraction:
  """Returns `options.held_out` in decimal: 1/10 for the float 0.1."""
  return fractions.Fraction(options.held_out).limit_denominator(10**6)


def _is_held_out(number: int, fraction: fractions.Fraction) -> bool:
  """Selects the given fraction of the documents of a part, evenly spaced."""
  return math.floor((number + 1) * fraction) > math.floor(number * fraction)


def _hold_out_rows(
  arrays: Arrays, options: RowsOptions, *, is_first: bool
) -> None:
  """Moves the last rows of a chunk to the held-out split."""
  count = len(arrays["train.tokens"])
  # At least one row of the first chunk, as it may be the only chunk.
  least = min(1, count - 1) if is_first else 0
  kept = count - max(least, round(options.held_out * count))
  for field in FIELDS:
    rows = arrays[f"train.{field}"]
    arrays[f"train.{field}"] = rows[:kept]
    arrays[f"held_out.{field}"] = rows[kept:]
