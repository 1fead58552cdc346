"""Builds rows: text -> ids -> a layout's rows -> shards on disk.

The writing half of `rows`, which says what a rows folder holds.

  write_rows("rows", documents("wordnet", reader=reader), tokenizer, options)
"""

import collections
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from truenegs_jax.data import layouts
from truenegs_jax.data.rows import (
  SPLITS,
  VERSION,
  RowsOptions,
  file_record,
  hash_json,
)
from truenegs_jax.data.shards import SplitWriter
from truenegs_jax.data.tokenizer import Tokenizer, write_vocabulary
from truenegs_jax.errors import DataError, DiskError

BATCH_CHARACTERS = 2**20  # of text for one call of the tokenizer
PROGRESS_ROWS = 1000


@dataclasses.dataclass(frozen=True)
class Progress:
  """How far a preparation has come."""

  documents: int
  text_bytes: int
  rows: int


def write_rows(
  folder: str | pathlib.Path,
  documents: Iterable[str],
  tokenizer: Tokenizer,
  options: RowsOptions,
  *,
  progress: Callable[[Progress], None] = lambda _: None,
) -> dict[str, Any]:
  """Builds rows and puts them at `folder` in one rename, whole or not at all.

  Every n-th document is held out, n = 1 / `options.held_out`; where there are
  fewer than n, the last rows are, and the manifest says so. One writer at a
  time: it first removes what a killed one left.

  Args:
    documents: re-iterable; read once, plus the first n of them (twice where
      there are fewer than n).

  Returns:
    The manifest.

  Raises:
    DataError: no text, or something else is at `folder`.
    DiskError: cannot be written.
  """
  folder = pathlib.Path(folder)
  temporary = folder.with_name(f".{folder.name}.unfinished")
  try:
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
      raise DataError(
        f"data.rows: {folder} exists and is not empty: remove it or choose"
        " another folder."
      )
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    manifest = _write(temporary, documents, tokenizer, options, progress)
    os.replace(temporary, folder)
    _sync(folder.parent)
  except OSError as error:
    raise DiskError(
      f"data.rows: {folder} cannot be written: {error.strerror}. Free some"
      " space, or name another folder with --config.data.rows or"
      " TRUENEGS_CACHE."
    ) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
  return manifest


def encode_documents(
  documents: Iterable[str], tokenizer: Tokenizer
) -> Iterator[tuple[layouts.Document, int]]:
  """Ids of the lines of each document, and its size in bytes of UTF-8.

  Lines and documents without any token (control characters) are left out.
  """
  for batch in _batches(documents):
    lines = [document.split("\n") for document in batch]
    ids = iter(tokenizer.encode_lines(list(itertools.chain(*lines))))
    for document, parts in zip(batch, lines, strict=True):
      encoded = [line for line in itertools.islice(ids, len(parts)) if line]
      if encoded:
        yield encoded, len(document.encode("utf-8", "replace"))


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
  batch: list[str] = []
  size = 0
  for document in documents:
    batch.append(document)
    size += len(document)
    if size >= BATCH_CHARACTERS:
      yield batch
      batch, size = [], 0
  if batch:
    yield batch


def _write(
  folder: pathlib.Path,
  documents: Iterable[str],
  tokenizer: Tokenizer,
  options: RowsOptions,
  progress: Callable[[Progress], None],
) -> dict[str, Any]:
  """Fills an empty folder; returns the manifest, written last."""
  done: collections.Counter[str] = collections.Counter()
  by, rows = _labelled_rows(documents, tokenizer, options, done)
  writers = {
    split: SplitWriter(folder, split, tokenizer, options.length)
    for split in SPLITS
  }
  with writers["train"], writers["held_out"]:
    for split, row in rows:
      writers[split].add(row)
      done["rows"] += 1
      if done["rows"] % PROGRESS_ROWS == 0:
        progress(_progress(done))
  progress(_progress(done))
  if not done["rows"]:
    raise DataError(
      "data.sources: the text holds no token (blank or control characters"
      " only): 0 rows. Add text."
    )
  write_vocabulary(tokenizer.vocab, folder / "vocab.txt")
  np.save(folder / "unigram_V.npy", _unigrams(writers["train"], tokenizer))
  manifest = _manifest(folder, tokenizer, options, writers)
  manifest["held_out_by"] = by
  manifest["documents"] = {s: done[s] for s in SPLITS}
  manifest["text_bytes"] = done["bytes"]
  _write_manifest(folder, manifest)
  return manifest


def _labelled_rows(
  documents: Iterable[str],
  tokenizer: Tokenizer,
  options: RowsOptions,
  done: collections.Counter[str],
) -> tuple[str, Iterator[tuple[str, layouts.Row]]]:
  """By what rows are held out, and the rows, each with its split."""
  if not options.held_out:
    return "none", _by_document(documents, tokenizer, options, done)
  every = round(1 / options.held_out)
  first = itertools.islice(encode_documents(documents, tokenizer), every)
  if sum(1 for _ in first) == every:
    return "documents", _by_document(documents, tokenizer, options, done)
  # Fewer documents than one can be spared of: the end of the rows is.
  whole = dataclasses.replace(options, held_out=0.0)
  count = sum(
    1 for _ in _by_document(documents, tokenizer, whole, collections.Counter())
  )
  num_held_out = min(count - 1, max(1, round(options.held_out * count)))
  rows = _by_document(documents, tokenizer, whole, done)
  return "rows", (
    ("held_out" if number >= count - num_held_out else "train", row)
    for number, (_, row) in enumerate(rows)
  )


def _by_document(
  documents: Iterable[str],
  tokenizer: Tokenizer,
  options: RowsOptions,
  done: collections.Counter[str],
) -> Iterator[tuple[str, layouts.Row]]:
  """Rows with their split; of every n documents the last is held out."""
  build = layouts.LAYOUTS[options.layout]
  shape = layouts.Shape(
    options.length, tokenizer.cls, tokenizer.sep, options.overflow
  )
  every = round(1 / options.held_out) if options.held_out else 0

  def split_of(number: int) -> str:
    return "held_out" if every and (number + 1) % every == 0 else "train"

  def numbered() -> Iterator[tuple[int, layouts.Document]]:
    encoded = encode_documents(documents, tokenizer)
    for number, (document, size) in enumerate(encoded):
      done[split_of(number)] += 1
      done["bytes"] += size
      yield number, document

  # Runs of one split, so that a layout may join neighbouring documents.
  for split, run in itertools.groupby(numbered(), lambda n: split_of(n[0])):
    for row in build(run, shape, seed=options.seed):
      yield split, row


def _progress(done: collections.Counter[str]) -> Progress:
  num_documents = sum(done[split] for split in SPLITS)
  return Progress(num_documents, done["bytes"], done["rows"])


def _unigrams(writer: SplitWriter, tokenizer: Tokenizer) -> np.ndarray:
  """Counts of what may be masked and predicted; [UNK] is among it."""
  counts_V = writer.counts_V.copy()
  never = [i for i in tokenizer.special_ids if i != tokenizer.unk]
  counts_V[never] = 0
  return counts_V


def _manifest(
  folder: pathlib.Path,
  tokenizer: Tokenizer,
  options: RowsOptions,
  writers: dict[str, SplitWriter],
) -> dict[str, Any]:
  files = {p.name: file_record(p) for p in sorted(folder.iterdir())}
  splits = {}
  for split, writer in writers.items():
    num_rows, num_tokens = sum(writer.shards), int(writer.counts_V.sum())
    places = max(1, num_rows * options.length)
    splits[split] = {
      "rows": num_rows,
      "tokens": num_tokens,  # real ones, [CLS] and [SEP] among them
      "padding_share": round(1 - num_tokens / places, 6) if num_rows else 0.0,
      "shards": writer.shards,
    }
  manifest: dict[str, Any] = {
    "version": VERSION,
    "tokenizer": {
      "fingerprint": tokenizer.fingerprint,
      "size": len(tokenizer.vocab),
      "lowercase": tokenizer.lowercase,
      "pad": tokenizer.pad,
      "special_ids": list(tokenizer.special_ids),
    },
    "splits": splits,
    "files": files,
  }
  # Of the content alone: the same text, copied elsewhere, has the same.
  manifest["fingerprint"] = hash_json(manifest)
  manifest["options"] = dataclasses.asdict(options)
  return manifest


def _write_manifest(folder: pathlib.Path, manifest: dict[str, Any]) -> None:
  # Through JSON first: the checksum must be that of what a reader reads.
  content = json.loads(json.dumps(manifest))
  content["checksum"] = hash_json(content)
  for path in folder.iterdir():
    _sync(path)
  path = folder / "manifest.json"
  path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
  _sync(path)
  _sync(folder)


def _sync(path: pathlib.Path) -> None:
  """Makes a file, or the names in a folder, survive a loss of power."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
