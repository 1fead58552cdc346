"""Verifies the shards of a preparation and writes the manifest last."""

import dataclasses
import json
import os
import pathlib
from typing import Any

import numpy as np

from truenegs_jax.data.rows import store
from truenegs_jax.data.rows.rows_folder import (
  MANIFEST,
  SPLITS,
  UNIGRAMS,
  VERSION,
  file_record,
  hash_json,
)
from truenegs_jax.data.rows.shards import NUM_TOKENS, ShardSpec
from truenegs_jax.data.rows.steps import ShardSet
from truenegs_jax.data.tokens.tokenizer import Tokenizer, write_vocabulary
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import DataError, DiskError
from truenegs_jax.runtime.files import atomic_file, disk_errors, sync


def finish(folder: pathlib.Path, shard_set: ShardSet) -> dict[str, Any]:
  """Completes a rows folder, which appears by one rename.

  Returns:
    The manifest.
  """
  spec, unfinished = shard_set.spec, store.unfinished_folder(folder)
  with disk_errors(folder):
    records = [
      _verify_shard(spec, shard, unfinished / "rows")
      for shard in range(shard_set.num_shards)
    ]
    splits = {split: _sum_split(spec, split, records) for split in SPLITS}
    if not any(split["rows"] for split, _ in splits.values()):
      store.remove_store(spec.folder)
      store.remove_store(unfinished)
      raise DataError(
        f"data.sources: {shard_set.corpus} gives 0 rows. It contains only"
        " blank or control characters. Add text."
      )
    manifest = _write_manifest(shard_set, unfinished / "rows", records, splits)
    os.replace(unfinished / "rows", folder)
    sync(folder.parent)
    store.remove_store(spec.folder)
    store.remove_store(unfinished)
  return manifest


def _verify_shard(
  spec: ShardSpec, shard: int, folder: pathlib.Path
) -> dict[str, Any]:
  """Compares the checksums of a shard, which it fetches from a bucket.

  Returns:
    Its record.
  """
  path = spec.record_path(shard)
  fix = f"Remove '{path}' and run the same command again."
  with json_text.read_file(path, DiskError, fix) as saved:
    record = {key: saved[key] for key in (NUM_TOKENS, *SPLITS)}
    files = {
      k: x for split in SPLITS for k, x in record[split]["files"].items()
    }
  folder.mkdir(exist_ok=True)
  for name, expected in files.items():
    copy, stored = folder / name, spec.folder / "rows" / name
    if copy != stored and not _is_intact(copy, expected):
      with atomic_file(copy) as file:
        file.write(store.read_file(stored))
    if not _is_intact(copy, expected):
      path.unlink()
      raise DiskError(
        f"{stored}: damaged. Run the same command again to build it again."
      )
  return record


def _is_intact(path: pathlib.Path, record: dict[str, int]) -> bool:
  return path.exists() and file_record(path) == record


def _sum_split(
  spec: ShardSpec, split: str, records: list[dict[str, Any]]
) -> tuple[dict[str, Any], np.ndarray]:
  """Returns a split's entry in the manifest, and the counts of its tokens."""
  counts_V = np.zeros(len(spec.tokenizer.vocab), np.int64)
  for record in records:
    counts_V += np.array(record[split]["counts"])
  shards = [record[split]["rows"] for record in records]
  num_rows, num_tokens = sum(shards), int(counts_V.sum())
  size = num_rows * spec.options.length
  return {
    "rows": num_rows,
    "tokens": num_tokens,  # without padding, with [CLS] and [SEP]
    "padding_share": round(1 - num_tokens / size, 6) if size else 0.0,
    "shards": shards if num_rows else [],
  }, counts_V


def _write_manifest(
  shard_set: ShardSet,
  folder: pathlib.Path,
  records: list[dict[str, Any]],
  splits: dict[str, tuple[dict[str, Any], np.ndarray]],
) -> dict[str, Any]:
  """Writes the other files of a rows folder, and the manifest last.

  Args:
    records: of the shards.
    splits: entry in the manifest and counts of tokens of each split.
  """
  spec, meter = shard_set.spec, shard_set.meter
  tokenizer = spec.tokenizer
  files = {}
  for record in records:
    for split in SPLITS:
      files |= record[split]["files"]
  files |= _write_vocabulary(tokenizer, splits["train"][1], folder)
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
  with atomic_file(folder / MANIFEST) as file:
    file.write((json.dumps(content, indent=1) + "\n").encode())
  sync(folder)
  return manifest


def _write_vocabulary(
  tokenizer: Tokenizer, counts_V: np.ndarray, folder: pathlib.Path
) -> dict[str, dict[str, int]]:
  """Writes vocabulary and unigrams; returns their sizes and checksums."""
  write_vocabulary(tokenizer.vocab, folder / "vocab.txt")
  # Of all tokens that can be masked, [UNK] among them.
  unigram_V = counts_V.copy()
  unigram_V[[i for i in tokenizer.special_ids if i != tokenizer.unk]] = 0
  np.save(folder / UNIGRAMS, unigram_V)
  sync(folder / UNIGRAMS)
  return {x: file_record(folder / x) for x in ("vocab.txt", UNIGRAMS)}
