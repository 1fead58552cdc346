"""A chunk: consecutive documents that are encoded and laid out alone.

Where a chunk begins and ends, and what becomes of each document, depend on
the corpus and the options only. So chunks may be built in any order, by any
process, in several runs; one after the other they are the rows.

A chunk on disk is one `.npz` that appears by a rename: it is whole or absent.
"""

import dataclasses
import fractions
import itertools
import math
import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from truenegs_jax.data.corpus.corpus import Corpus, Meter
from truenegs_jax.data.rows import layouts
from truenegs_jax.data.rows.rows_folder import (
  FIELDS,
  SPLITS,
  RowsOptions,
  token_dtype,
)
from truenegs_jax.data.tokens.fast_encoder import Encoder
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError, DiskError
from truenegs_jax.runtime.files import atomic_file

# What an interrupt loses: some 4,000 rows of 128.
CHUNK_CHARACTERS = 2**21
CHUNK_DOCUMENTS = 2**14  # a document of a word may have a row of its own
NUM_TOKENS = "num_tokens"  # of the text of a chunk
Arrays = dict[str, Any]  # numpy arrays, by "split.field" or NUM_TOKENS


@dataclasses.dataclass(frozen=True)
class Chunk:
  """The documents of a chunk.

  Attributes:
    number: 0, 1, 2, ... in the order of the corpus.
    documents: (number, split, text); the number, of the document in the
      stream, is what its random draws depend on.
  """

  number: int
  documents: list[tuple[int, str, str]]


@dataclasses.dataclass(frozen=True)
class ChunkSpec:
  """How the chunks of a corpus are built; the same for all.

  Attributes:
    folder: where the chunks go.
    backend: of the encoder; the ids are the same.
    by: how text is held out, as of `choose_held_out_unit`.
  """

  folder: pathlib.Path
  tokenizer: Tokenizer
  options: RowsOptions
  backend: str
  by: str


@dataclasses.dataclass(frozen=True)
class ChunkSet:
  """The chunks of one pass over the corpus, and what the pass has met."""

  spec: ChunkSpec
  corpus: Corpus
  meter: Meter
  num_chunks: int  # of all shares

  def is_complete(self) -> bool:
    """Whether the chunks of all shares are there."""
    numbers = range(self.num_chunks)
    return all(chunk_path(self.spec.folder, k).exists() for k in numbers)


def choose_held_out_unit(corpus: Corpus, options: RowsOptions) -> str:
  """Whether "documents", "rows" or none ("none") are held out.

  Of a part with 1 / `options.held_out` documents or more, documents are; where
  no part has that many, the last rows of every chunk.

  Raises:
    DataError: rows would be held out of documents that are read repeatedly.
  """
  if not options.held_out:
    return "none"
  share = _share(options)
  for document in corpus.read(Meter()):
    if _is_held_out(document.number, share):
      return "documents"
    if document.repeat:
      raise DataError(
        f"data.held_out={options.held_out} of the documents is less than one"
        f" of any part of the mixture {corpus.names()}: set it higher."
      )
  return "rows"


def cut_corpus(
  corpus: Corpus, options: RowsOptions, meter: Meter, *, by: str
) -> Iterator[Chunk]:
  """Cuts a corpus into chunks of about CHUNK_CHARACTERS.

  Args:
    meter: counts what this pass meets.
    by: as `choose_held_out_unit` returns it.
  """
  documents: list[tuple[int, str, str]] = []
  size, numbers = 0, itertools.count()
  stream, share = itertools.count(), _share(options)
  for document in corpus.read(meter):
    number, split = next(stream), "train"
    if by == "documents" and _is_held_out(document.number, share):
      if document.repeat:
        continue  # to evaluate on it once is enough
      split = "held_out"
    documents.append((number, split, document.text))
    size += len(document.text)
    if size >= CHUNK_CHARACTERS or len(documents) == CHUNK_DOCUMENTS:
      yield Chunk(next(numbers), documents)
      documents, size = [], 0
  if documents:
    yield Chunk(next(numbers), documents)


class ChunkBuilder:
  """Builds and saves chunks; a call returns the number of rows."""

  def __init__(self, spec: ChunkSpec) -> None:
    self._spec = spec
    self._encoder = Encoder(spec.tokenizer, spec.backend)

  def __call__(self, chunk: Chunk) -> int:
    arrays = build_chunk(self._spec, self._encoder, chunk)
    save_chunk(arrays, chunk_path(self._spec.folder, chunk.number))
    return sum(len(arrays[f"{split}.tokens"]) for split in SPLITS)


def build_chunk(spec: ChunkSpec, encoder: Encoder, chunk: Chunk) -> Arrays:
  """The rows of a chunk: "train.tokens" [R, L] and so on for each field.

  Beside them stands how many tokens the text of the chunk has.
  """
  tokenizer, options = spec.tokenizer, spec.options
  lines = [text.split("\n") for _, _, text in chunk.documents]
  tokens_T, lengths_N = encoder.encode(list(itertools.chain(*lines)))
  ends_D = np.cumsum([len(part) for part in lines])[:-1]
  sizes = np.split(lengths_N, ends_D)  # of the lines of each document
  in_document_D = [int(part.sum()) for part in sizes]
  tokens = np.split(tokens_T, np.cumsum(in_document_D)[:-1])
  shape = layouts.RowSpec(
    options.length,
    tokenizer.cls,
    tokenizer.sep,
    tokenizer.pad,
    options.overflow,
    token_dtype(len(tokenizer.vocab)),
  )
  built: Arrays = {NUM_TOKENS: np.array(len(tokens_T))}
  for split in SPLITS:
    members = [i for i, (_, s, _) in enumerate(chunk.documents) if s == split]
    arrays = layouts.build_rows(
      [(chunk.documents[i][0], sizes[i].tolist()) for i in members],
      np.concatenate([tokens[i] for i in members] or [tokens_T[:0]]),
      shape,
      layout=options.layout,
      seed=options.seed,
    )
    for field, array in zip(FIELDS, arrays, strict=True):
      built[f"{split}.{field}"] = array
  if spec.by == "rows":
    _hold_out_rows(built, options, first=chunk.number == 0)
  return built


def save_chunk(arrays: Arrays, path: pathlib.Path) -> None:
  """Writes a chunk; it appears whole.

  Raises:
    DiskError: cannot be written.
  """
  with atomic_file(path, several_writers=True) as file:
    np.savez(file, **arrays)


def load_chunk(path: pathlib.Path) -> Arrays:
  """Reads a chunk; its checksums are those of the zip format.

  Raises:
    DiskError: damaged since it was written, and now removed.
  """
  try:
    with open(path, "rb") as file:  # np.load leaves one open that it refuses
      content = np.load(file, allow_pickle=False)
      return {name: content[name] for name in content.files}
  except OSError as error:
    raise DiskError(f"{path} cannot be read: {error.strerror}.") from error
  except (ValueError, EOFError, zipfile.BadZipFile) as error:
    path.unlink(missing_ok=True)
    raise DiskError(
      f"{path} was damaged ({error}) and is removed: give the same command"
      " again to make it anew."
    ) from error


def chunk_path(folder: pathlib.Path, number: int) -> pathlib.Path:
  """Where a chunk is kept until all are there."""
  return folder / f"piece-{number:06d}.npz"


def _share(options: RowsOptions) -> fractions.Fraction:
  """The share to hold out: of 0.1 as it is written, not as it is stored."""
  return fractions.Fraction(options.held_out).limit_denominator(10**6)


def _is_held_out(number: int, share: fractions.Fraction) -> bool:
  """Whether a document is, of a part: evenly spread, in the asked share."""
  return math.floor((number + 1) * share) > math.floor(number * share)


def _hold_out_rows(
  arrays: Arrays, options: RowsOptions, *, first: bool
) -> None:
  count = len(arrays["train.tokens"])
  # The first chunk may be the only one: it gives a row if it can.
  least = min(1, count - 1) if first else 0
  kept = count - max(least, round(options.held_out * count))
  for field in FIELDS:
    rows = arrays[f"train.{field}"]
    arrays[f"train.{field}"] = rows[:kept]
    arrays[f"held_out.{field}"] = rows[kept:]
