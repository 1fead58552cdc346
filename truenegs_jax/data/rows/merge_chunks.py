"""Merges chunks into a rows folder: shards, vocabulary and manifest."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np

from truenegs_jax.data.rows import chunks
from truenegs_jax.data.rows.rows_folder import (
  FIELDS,
  SPLITS,
  VERSION,
  file_record,
  hash_json,
  shard_name,
  token_dtype,
)
from truenegs_jax.data.tokens.tokenizer import Tokenizer, write_vocabulary
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import disk_errors, sync

SHARD_TOKENS = 2**27  # 1M rows of 128: few files to map for any corpus


def merge(folder: pathlib.Path, chunk_set: chunks.ChunkSet) -> dict[str, Any]:
  """Merges the chunks into `folder`, and returns its manifest.

  The folder appears by one rename. Chunks are removed afterwards, so the disk
  holds the rows twice for a while. If stopped, merging starts again from the
  first chunk.

  Raises:
    DataError: there is no row.
    DiskError: a chunk is damaged, or a file cannot be written.
  """
  with disk_errors(folder):
    merged = chunk_set.spec.folder / "rows"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir()
    manifest = _write_rows(merged, chunk_set)
    os.replace(merged, folder)
    sync(folder.parent)
    shutil.rmtree(chunk_set.spec.folder, ignore_errors=True)
  return manifest


def _write_rows(
  folder: pathlib.Path, chunk_set: chunks.ChunkSet
) -> dict[str, Any]:
  """Fills an empty folder; the manifest comes last."""
  spec, meter = chunk_set.spec, chunk_set.meter
  tokenizer, length = spec.tokenizer, spec.options.length
  num_tokens = 0
  writers = {
    split: _SplitWriter(folder, split, len(tokenizer.vocab), length)
    for split in SPLITS
  }
  with contextlib.ExitStack() as stack:
    for writer in writers.values():
      stack.enter_context(writer)
    for number in range(chunk_set.num_chunks):
      arrays = chunks.load_chunk(chunks.chunk_path(spec.folder, number))
      num_tokens += int(arrays[chunks.NUM_TOKENS])
      for split, writer in writers.items():
        writer.add(*(arrays[f"{split}.{field}"] for field in FIELDS))
  if not any(writer.shards for writer in writers.values()):
    shutil.rmtree(spec.folder, ignore_errors=True)
    raise DataError(
      f"data.sources: {chunk_set.corpus} gives 0 rows. It contains only"
      " blank or control characters. Add text."
    )
  write_vocabulary(tokenizer.vocab, folder / "vocab.txt")
  np.save(folder / "unigram_V.npy", _unigrams(writers["train"], tokenizer))
  manifest = _manifest(folder, spec, writers)
  manifest["held_out_by"] = spec.held_out_unit
  manifest["lost_share"] = _lost_share(num_tokens, writers, tokenizer)
  manifest["parts"] = [
    {"documents": documents, "text_bytes": size, "passes": passes}
    for documents, size, passes in zip(
      meter.part_documents, meter.part_bytes, meter.part_passes, strict=True
    )
  ]
  manifest["oddities"] = dict(sorted(meter.oddities.items()))
  _write_manifest(folder, manifest)
  return manifest


class _SplitWriter:
  """Appends rows to the shards of one split.

  A context manager; the shards are complete after it exits without an error.

  Attributes:
    shards: the number of rows of each shard.
    counts_V: how often each entry occurs outside of padding, int64.
  """

  def __init__(
    self, folder: pathlib.Path, split: str, num_entries: int, length: int
  ) -> None:
    self._folder, self._split = folder, split
    self._length, self._shard_rows = length, max(1, SHARD_TOKENS // length)
    self._dtypes = (token_dtype(num_entries), *[np.dtype(np.uint8)] * 2)
    self._files: list[Any] = []
    self.shards: list[int] = []
    self.counts_V = np.zeros(num_entries, np.int64)

  def add(self, *fields_RxL: np.ndarray) -> None:
    """Appends rows: tokens, types and documents, each [R, L]."""
    tokens_RxL, _, documents_RxL = fields_RxL
    self.counts_V += np.bincount(
      tokens_RxL[documents_RxL > 0], minlength=len(self.counts_V)
    )
    start = 0
    while start < len(tokens_RxL):
      if not self._files:
        self._begin_shard()
      stop = start + self._shard_rows - self.shards[-1]
      for i, file in enumerate(self._files):
        array = fields_RxL[i][start:stop]
        file.write(np.ascontiguousarray(array, self._dtypes[i]))
      self.shards[-1] += len(array)
      start = stop
      if self.shards[-1] == self._shard_rows:
        self._end_shard()

  def __enter__(self) -> "_SplitWriter":
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    try:
      if kind is None:
        self._end_shard()
    finally:
      for file in self._files:
        with contextlib.suppress(OSError):  # an earlier error is raised
          file.close()

  def _begin_shard(self) -> None:
    names = [shard_name(self._split, len(self.shards), f) for f in FIELDS]
    self._files = [open(self._folder / name, "wb") for name in names]
    self.shards.append(0)
    self._write_headers()

  def _end_shard(self) -> None:
    # numpy pads headers, so the final number of rows fits.
    self._write_headers()
    for file in self._files:
      file.close()
    self._files = []

  def _write_headers(self) -> None:
    for file, dtype in zip(self._files, self._dtypes, strict=False):
      file.seek(0)
      header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (self.shards[-1], self._length),
      }
      np.lib.format.write_array_header_1_0(file, header)


def _lost_share(
  num_tokens: int, writers: dict[str, _SplitWriter], tokenizer: Tokenizer
) -> float:
  """Returns the share of the text's tokens that are in no row."""
  counts_V = writers["train"].counts_V + writers["held_out"].counts_V
  # Text never encodes to these two ids, so layouts added all of them.
  kept = counts_V.sum() - counts_V[tokenizer.cls] - counts_V[tokenizer.sep]
  return round(1 - int(kept) / num_tokens, 6)


def _unigrams(writer: _SplitWriter, tokenizer: Tokenizer) -> np.ndarray:
  """Returns counts of all tokens that can be masked, [UNK] among them."""
  counts_V = writer.counts_V.copy()
  counts_V[[i for i in tokenizer.special_ids if i != tokenizer.unk]] = 0
  return counts_V


def _manifest(
  folder: pathlib.Path, spec: chunks.ChunkSpec, writers: dict[str, _SplitWriter]
) -> dict[str, Any]:
  tokenizer, options = spec.tokenizer, spec.options
  files = {p.name: file_record(p) for p in sorted(folder.iterdir())}
  splits = {}
  for split, writer in writers.items():
    num_rows, num_tokens = sum(writer.shards), int(writer.counts_V.sum())
    padding_share = 0.0
    if num_rows:
      padding_share = round(1 - num_tokens / (num_rows * options.length), 6)
    splits[split] = {
      "rows": num_rows,
      "tokens": num_tokens,  # without padding, with [CLS] and [SEP]
      "padding_share": padding_share,
      "shards": writer.shards,
    }
  manifest: dict[str, Any] = {
    "version": VERSION,
    "tokenizer": {
      "fingerprint": tokenizer.fingerprint,
      "size": len(tokenizer.vocab),
      "lowercase": tokenizer.lowercase,
      "strip_accents": tokenizer.strip_accents,
      "pad": tokenizer.pad,
      "special_ids": list(tokenizer.special_ids),
    },
    "splits": splits,
    "files": files,
  }
  # Covers the content only, so a copied text gives the same fingerprint.
  manifest["fingerprint"] = hash_json(manifest)
  manifest["options"] = dataclasses.asdict(options)
  return manifest


def _write_manifest(folder: pathlib.Path, manifest: dict[str, Any]) -> None:
  # The checksum must match the parsed JSON, in which tuples are lists.
  content = json.loads(json.dumps(manifest))
  content["checksum"] = hash_json(content)
  for path in folder.iterdir():
    sync(path)
  path = folder / "manifest.json"
  path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
  sync(path)
  sync(folder)
