"""Merges chunks into a rows folder: shards, vocabulary and manifest."""

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from truenegs_jax.data.rows import chunks
from truenegs_jax.data.rows.rows_folder import (
  FIELDS,
  MANIFEST,
  SPLITS,
  UNIGRAMS,
  VERSION,
  file_record,
  hash_json,
  shard_name,
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
  tokenizer = spec.tokenizer
  splits = {split: _write_split(folder, split, chunk_set) for split in SPLITS}
  if not any(split.shards for split in splits.values()):
    shutil.rmtree(spec.folder, ignore_errors=True)
    raise DataError(
      f"data.sources: {chunk_set.corpus} gives 0 rows. It contains only"
      " blank or control characters. Add text."
    )
  write_vocabulary(tokenizer.vocab, folder / "vocab.txt")
  np.save(folder / UNIGRAMS, _unigrams(splits["train"], tokenizer))
  manifest = _manifest(folder, spec, splits)
  manifest["held_out_by"] = spec.held_out_unit
  num_tokens = sum(map(int, _arrays(chunk_set, chunks.NUM_TOKENS)))
  manifest["lost_share"] = _lost_share(num_tokens, splits, tokenizer)
  manifest["parts"] = [
    {"documents": documents, "text_bytes": size, "passes": passes}
    for documents, size, passes in zip(
      meter.part_documents, meter.part_bytes, meter.part_passes, strict=True
    )
  ]
  manifest["oddities"] = dict(sorted(meter.oddities.items()))
  _write_manifest(folder, manifest)
  return manifest


class _Split(NamedTuple):
  """A split that is written."""

  shards: list[int]  # the number of rows of each
  counts_V: np.ndarray  # int64: of each entry, without padding


def _write_split(
  folder: pathlib.Path, split: str, chunk_set: chunks.ChunkSet
) -> _Split:
  tokenizer, length = chunk_set.spec.tokenizer, chunk_set.spec.options.length
  counts_V, num_rows = np.zeros(len(tokenizer.vocab), np.int64), 0
  for tokens_RxL in _arrays(chunk_set, f"{split}.tokens"):
    counts_V += np.bincount(tokens_RxL.ravel(), minlength=len(counts_V))
    num_rows += len(tokens_RxL)
  if not num_rows:
    return _Split([], counts_V)
  counts_V[tokenizer.pad] = 0  # text never encodes to it
  shard_rows = max(1, SHARD_TOKENS // length)
  starts = range(0, num_rows, shard_rows)
  shards = [min(shard_rows, num_rows - start) for start in starts]
  for field in FIELDS:
    arrays = _arrays(chunk_set, f"{split}.{field}")
    rest_RxL = next(arrays)
    for number, missing in enumerate(shards):
      with open(folder / shard_name(split, number, field), "wb") as file:
        header = {
          "descr": np.lib.format.dtype_to_descr(rest_RxL.dtype),
          "fortran_order": False,
          "shape": (missing, length),
        }
        np.lib.format.write_array_header_1_0(file, header)
        while missing:
          if not len(rest_RxL):
            rest_RxL = next(arrays)
          rows_RxL, rest_RxL = rest_RxL[:missing], rest_RxL[missing:]
          file.write(rows_RxL.data)
          missing -= len(rows_RxL)
  return _Split(shards, counts_V)


def _arrays(chunk_set: chunks.ChunkSet, name: str) -> Iterator[np.ndarray]:
  """Yields one array of every chunk."""
  for number in range(chunk_set.num_chunks):
    path = chunks.chunk_path(chunk_set.spec.folder, number)
    yield chunks.load_array(path, name)


def _lost_share(
  num_tokens: int, splits: dict[str, _Split], tokenizer: Tokenizer
) -> float:
  """Returns the share of the text's tokens that are in no row."""
  counts_V = splits["train"].counts_V + splits["held_out"].counts_V
  # Text never encodes to these two ids, so layouts added all of them.
  kept = counts_V.sum() - counts_V[tokenizer.cls] - counts_V[tokenizer.sep]
  return round(1 - int(kept) / num_tokens, 6)


def _unigrams(split: _Split, tokenizer: Tokenizer) -> np.ndarray:
  """Returns counts of all tokens that can be masked, [UNK] among them."""
  counts_V = split.counts_V.copy()
  counts_V[[i for i in tokenizer.special_ids if i != tokenizer.unk]] = 0
  return counts_V


def _manifest(
  folder: pathlib.Path, spec: chunks.ChunkSpec, splits: dict[str, _Split]
) -> dict[str, Any]:
  tokenizer, options = spec.tokenizer, spec.options
  files = {p.name: file_record(p) for p in sorted(folder.iterdir())}
  records = {}
  for name, split in splits.items():
    num_rows, num_tokens = sum(split.shards), int(split.counts_V.sum())
    padding_share = 0.0
    if num_rows:
      padding_share = round(1 - num_tokens / (num_rows * options.length), 6)
    records[name] = {
      "rows": num_rows,
      "tokens": num_tokens,  # without padding, with [CLS] and [SEP]
      "padding_share": padding_share,
      "shards": split.shards,
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
    "splits": records,
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
  path = folder / MANIFEST
  path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
  sync(path)
  sync(folder)
