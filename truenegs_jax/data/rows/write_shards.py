"""Writes the shards of a rows folder from its chunks, and the manifest last.

A shard holds the rows of SHARD_CHUNKS chunks, whichever process builds them, so
shards can be written in any order, in parallel. The chunks of a shard are
removed once it is written: the disk holds the rows of one shard twice, not all.
"""

import dataclasses
import io
import json
import os
import pathlib
from typing import Any

import numpy as np

from truenegs_jax.data.corpus.corpus import Corpus, Meter
from truenegs_jax.data.rows import store
from truenegs_jax.data.rows.chunks import (
  NUM_TOKENS,
  ChunkSpec,
  chunk_path,
)
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
from truenegs_jax.data.tokens.tokenizer import write_vocabulary
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import DataError, DiskError
from truenegs_jax.runtime.files import atomic_file, disk_errors, sync

SHARD_CHUNKS = 32  # about 130,000 rows of 128


@dataclasses.dataclass(frozen=True)
class ChunkSet:
  """All chunks of a corpus; other jobs may still build some of them."""

  spec: ChunkSpec
  corpus: Corpus
  meter: Meter  # counts of all text
  num_chunks: int  # of all jobs

  @property
  def num_shards(self) -> int:
    """The number of shards, the last of which may have fewer chunks."""
    return -(-self.num_chunks // SHARD_CHUNKS)

  def is_complete(self) -> bool:
    """Returns whether the shards of all jobs are written."""
    return all(is_written(self.spec, k) for k in range(self.num_shards))


def shard_chunks(shard: int, num_chunks: int) -> range:
  """Returns the numbers of the chunks of a shard, less than `num_chunks`."""
  first = shard * SHARD_CHUNKS
  return range(first, min(first + SHARD_CHUNKS, num_chunks))


def is_built(spec: ChunkSpec, chunk: int) -> bool:
  """Returns whether the rows of a chunk are stored, alone or in a shard."""
  return chunk_path(spec.folder, chunk).exists() or is_written(
    spec, chunk // SHARD_CHUNKS
  )


def is_written(spec: ChunkSpec, shard: int) -> bool:
  """Returns whether a shard is complete."""
  return _record_path(spec, shard).exists()  # written last


def write_shard(spec: ChunkSpec, chunks: range) -> None:
  """Writes a shard, unless it is written, and removes its chunks.

  Args:
    chunks: all of the shard.
  """
  shard = chunks.start // SHARD_CHUNKS
  paths = [chunk_path(spec.folder, number) for number in chunks]
  try:
    if not is_written(spec, shard):
      _write_files(spec, shard, paths)
  except DiskError:
    # An engine may run a shard twice; the first process removes its chunks.
    if not is_written(spec, shard):
      raise
  for path in paths:
    path.unlink(missing_ok=True)


def finish(folder: pathlib.Path, chunk_set: ChunkSet) -> dict[str, Any]:
  """Writes vocabulary and manifest; returns the manifest.

  The folder appears by one rename.

  Raises:
    DataError: there is no row.
    DiskError: a file cannot be written or is damaged.
  """
  spec, unfinished = chunk_set.spec, store.unfinished_folder(folder)
  with disk_errors(folder):
    records = []
    fix = f"Remove '{spec.folder}' and run the same command again."
    for shard in range(chunk_set.num_shards):
      path = _record_path(spec, shard)
      with json_text.read_file(path, DiskError, fix) as record:
        records.append({key: record[key] for key in (NUM_TOKENS, *SPLITS)})
    splits = {split: _sum_split(spec, split, records) for split in SPLITS}
    if not any(split["rows"] for split, _ in splits.values()):
      store.remove_store(spec.folder)
      store.remove_store(unfinished)
      raise DataError(
        f"data.sources: {chunk_set.corpus} gives 0 rows. It contains only"
        " blank or control characters. Add text."
      )
    files: dict[str, dict[str, int]] = {}
    for record in records:
      for split in SPLITS:
        files |= record[split]["files"]
    if spec.folder != unfinished:
      _fetch_files(spec, files, unfinished / "rows")
    manifest = _write_manifest(
      chunk_set, unfinished / "rows", files, records, splits
    )
    os.replace(unfinished / "rows", folder)
    sync(folder.parent)
    store.remove_store(spec.folder)
    store.remove_store(unfinished)
  return manifest


def _fetch_files(
  spec: ChunkSpec, files: dict[str, dict[str, int]], folder: pathlib.Path
) -> None:
  """Copies the files of all shards from a bucket, unless they are copied."""
  folder.mkdir(exist_ok=True)
  for name, record in files.items():
    path = folder / name
    if not path.exists() or file_record(path) != record:
      with atomic_file(path) as file:
        file.write(store.read_file(spec.folder / "rows" / name))
      if file_record(path) != record:
        raise DiskError(
          f"{spec.folder}/rows/{name}: damaged. Run the same command again, or"
          " remove the folder in the bucket."
        )


def _record_path(spec: ChunkSpec, shard: int) -> pathlib.Path:
  return spec.folder / f"shard-{shard:05d}.json"


def _write_files(
  spec: ChunkSpec, shard: int, paths: list[pathlib.Path]
) -> None:
  """Writes the files of a shard from its chunks, and its record last."""
  chunks = [store.read_arrays(path) for path in paths]
  num_tokens = sum(int(arrays[NUM_TOKENS]) for arrays in chunks)
  record: dict[str, Any] = {NUM_TOKENS: num_tokens}
  with disk_errors(spec.folder):
    (spec.folder / "rows").mkdir(exist_ok=True)
  for split in SPLITS:
    record[split] = _write_split(spec, split, shard, chunks)
  store.write_file(_record_path(spec, shard), json.dumps(record).encode())


def _write_split(
  spec: ChunkSpec, split: str, shard: int, chunks: list[store.Arrays]
) -> dict[str, Any]:
  """Writes the files of a split; returns their record.

  Returns:
    rows; files, their sizes and checksums; counts, the number of each entry of
    the vocabulary without padding.
  """
  counts_V = np.zeros(len(spec.tokenizer.vocab), np.int64)
  for arrays in chunks:
    tokens_T = arrays[f"{split}.tokens"].ravel()
    counts_V += np.bincount(tokens_T, minlength=len(counts_V))
  counts_V[spec.tokenizer.pad] = 0  # text never encodes to it
  rows = sum(len(arrays[f"{split}.tokens"]) for arrays in chunks)
  files = {}
  for field in FIELDS if rows else ():
    fields = [arrays[f"{split}.{field}"] for arrays in chunks]
    header = {
      "descr": np.lib.format.dtype_to_descr(fields[0].dtype),
      "fortran_order": False,
      "shape": (rows, spec.options.length),
    }
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, header)
    data = (array_RxL.data for array_RxL in fields)
    name = shard_name(split, shard, field)
    path = spec.folder / "rows" / name
    files[name] = store.write_file(path, head.getvalue(), *data)
  return {"rows": rows, "files": files, "counts": counts_V.tolist()}


def _sum_split(
  spec: ChunkSpec, split: str, records: list[dict[str, Any]]
) -> tuple[dict[str, Any], np.ndarray]:
  """Returns a split's entry in the manifest, and the counts of its tokens."""
  counts_V = np.zeros(len(spec.tokenizer.vocab), np.int64)
  for record in records:
    counts_V += np.array(record[split]["counts"])
  shards = [record[split]["rows"] for record in records]
  num_rows, num_tokens = sum(shards), int(counts_V.sum())
  padding_share = 0.0
  if num_rows:
    size = num_rows * spec.options.length
    padding_share = round(1 - num_tokens / size, 6)
  return {
    "rows": num_rows,
    "tokens": num_tokens,  # without padding, with [CLS] and [SEP]
    "padding_share": padding_share,
    "shards": shards if num_rows else [],
  }, counts_V


def _write_manifest(
  chunk_set: ChunkSet,
  folder: pathlib.Path,
  files: dict[str, dict[str, int]],
  records: list[dict[str, Any]],
  splits: dict[str, tuple[dict[str, Any], np.ndarray]],
) -> dict[str, Any]:
  """Writes the other files of a rows folder, and the manifest last.

  Args:
    files: sizes and checksums of the files of all shards.
    records: of the shards.
    splits: entry in the manifest and counts of tokens of each split.
  """
  spec, meter = chunk_set.spec, chunk_set.meter
  tokenizer = spec.tokenizer
  write_vocabulary(tokenizer.vocab, folder / "vocab.txt")
  # Of all tokens that can be masked, [UNK] among them.
  unigram_V = splits["train"][1].copy()
  unigram_V[[i for i in tokenizer.special_ids if i != tokenizer.unk]] = 0
  np.save(folder / UNIGRAMS, unigram_V)
  files |= {x: file_record(folder / x) for x in ("vocab.txt", UNIGRAMS)}
  for path in folder.iterdir():
    if path.name not in files:  # temporary, of a process that was killed
      path.unlink()
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
    "splits": {split: entry for split, (entry, _) in splits.items()},
    "files": dict(sorted(files.items())),
  }
  # Covers the content only, so a copied text gives the same fingerprint.
  manifest["fingerprint"] = hash_json(manifest)
  manifest["options"] = dataclasses.asdict(spec.options)
  manifest["held_out_by"] = spec.held_out_unit
  counts_V = splits["train"][1] + splits["held_out"][1]
  # Text never encodes to these two ids, so layouts added all of them.
  kept = counts_V.sum() - counts_V[tokenizer.cls] - counts_V[tokenizer.sep]
  num_tokens = sum(record[NUM_TOKENS] for record in records)
  manifest["lost_share"] = round(1 - int(kept) / num_tokens, 6)
  parts = zip(
    meter.part_documents, meter.part_bytes, meter.part_passes, strict=True
  )
  names = "documents", "text_bytes", "passes"
  manifest["parts"] = [dict(zip(names, part, strict=True)) for part in parts]
  manifest["repairs"] = dict(sorted(meter.repairs.items()))
  # The checksum must match the parsed JSON, in which tuples are lists.
  content = json.loads(json.dumps(manifest))
  content["checksum"] = hash_json(content)
  sync(folder / "vocab.txt")
  sync(folder / UNIGRAMS)
  with atomic_file(folder / MANIFEST) as file:
    file.write((json.dumps(content, indent=1) + "\n").encode())
  sync(folder)
  return manifest
