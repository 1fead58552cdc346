"""Shards: the rows of 32 chunks of a corpus, built in memory and written once.

A chunk consists of consecutive documents. The corpus and the options alone
decide where it begins and what becomes of its documents, so any process can
build any shard; their rows, concatenated, are the rows of the corpus. The files
of a shard are those of the rows folder; its record is written last.

They are in the store of unfinished rows, a local folder or one in a bucket,
where a file appears with its whole content, or not at all.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import io
import itertools
import json
import os
import pathlib
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from truenegs_jax.data import layouts
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.corpus.corpus import Corpus, Cursor, ReadCounts, Sizes
from truenegs_jax.data.encoder import Encoder
from truenegs_jax.data.rows import FIELDS, SPLITS, RowsOptions
from truenegs_jax.data.tokenizer import Tokenizer, write_tokenizer
from truenegs_jax.runtime import cache
from truenegs_jax.runtime import files as files_lib
from truenegs_jax.runtime.errors import DataError, DiskError
from truenegs_jax.runtime.paths import is_bucket, join_inside

CHUNK_CHARACTERS = 2**21  # about 4,000 rows of 128
CHUNK_DOCUMENTS = 2**14  # bounds the rows of a chunk of very short documents
SHARD_CHUNKS = 32  # 67 MB of text, the work lost if stopped
UPLOADS = 4  # files at a time, some 50 MB each


class Chunk(NamedTuple):
  """Consecutive documents of a corpus."""

  number: int  # 0, 1, 2, ... in the order of the corpus
  # (number in the corpus, split, text); the number addresses random draws.
  documents: list[tuple[int, str, str]]


class ChunkRange(NamedTuple):
  """Consecutive chunks of a corpus, from the first of a shard on."""

  start: int = 0
  stop: int | None = None  # the chunk after the last; None for the end
  cursors: tuple[Cursor, ...] = ()  # where parts are read next; empty: at first


ALL = ChunkRange()


class ChunkRows(NamedTuple):
  """The rows of a chunk."""

  number: int  # of the chunk
  num_tokens: int  # of its text
  splits: dict[str, layouts.Arrays]  # tokens, types and documents, [R, L]


@dataclasses.dataclass(frozen=True)
class ShardSpec:
  """How to build the shards of a corpus."""

  folder: pathlib.Path  # store of unfinished rows
  tokenizer: Tokenizer
  options: RowsOptions
  held_out_unit: str  # result of `choose_held_out_unit`
  backend: str = "fast"  # of the encoder; it does not change the rows

  def record_path(self, shard: int) -> pathlib.Path:
    """Returns the file with sizes, checksums and counts of a shard."""
    return self.folder / f"shard-{shard:05d}.json"

  def is_written(self, shard: int) -> bool:
    """Returns whether a shard is complete."""
    return self.record_path(shard).exists()  # written last

  def cut(
    self,
    corpus: Corpus,
    read_counts: ReadCounts,
    chunks: ChunkRange = ALL,
    *,
    sizes: Sizes | None = None,
  ) -> Iterator[Chunk]:
    """Cuts a range into chunks of about CHUNK_CHARACTERS, as `corpus.read`."""
    chunk = Chunk(chunks.start, [])
    size = 0
    holds_out = self.held_out_unit == "documents"
    for document in corpus.read(read_counts, start=chunks.cursors, sizes=sizes):
      split = "train"
      if holds_out and _is_held_out(document.number, self.options):
        if document.repeat:
          continue  # held out already
        split = "held_out"
      chunk.documents.append(
        (read_counts.num_documents - 1, split, document.text)
      )
      size += document.num_chars
      if size >= CHUNK_CHARACTERS or len(chunk.documents) == CHUNK_DOCUMENTS:
        yield chunk
        chunk = Chunk(chunk.number + 1, [])
        size = 0
        if chunk.number == chunks.stop:
          return
    if chunk.documents:
      yield chunk


def choose_held_out_unit(corpus: Corpus, options: RowsOptions) -> str:
  """Returns what to hold out: "documents", "rows" or "none".

  Documents are held out of every part with 1 / `options.held_out` documents or
  more. If no part has that many, the last rows of every chunk are held out.
  """
  if not options.held_out:
    return "none"
  for document in corpus.read(ReadCounts()):
    if _is_held_out(document.number, options):
      return "documents"
    if document.repeat:
      raise DataError(
        f"data.held_out={options.held_out} is less than one document of any"
        f" part of the mixture {corpus}. Set a larger --config.data.held_out."
      )
  return "rows"


@dataclasses.dataclass(frozen=True)
class ShardSet:
  """All shards of a corpus."""

  spec: ShardSpec
  corpus: Corpus
  read_counts: ReadCounts  # counts of all text
  num_shards: int
  # Characters in samples of the text, by language.
  languages: dict[str, int] = dataclasses.field(default_factory=dict)


class ChunkEncoder:
  """Turns chunks into rows."""

  def __init__(self, spec: ShardSpec) -> None:
    self._spec = spec
    self._encoder = Encoder(spec.tokenizer, spec.backend)

  def __call__(self, chunk: Chunk) -> ChunkRows:
    tokenizer = self._spec.tokenizer
    options = self._spec.options
    line_end = re.compile(tokenizer.line_end)
    ids = tokenizer.cls, tokenizer.sep, tokenizer.pad
    dtype = np.uint16 if len(tokenizer.vocab) <= 2**16 else np.uint32
    row_spec = layouts.RowSpec(options.length, *ids, options.overflow, dtype)
    splits = {}
    num_tokens = 0
    for split in SPLITS:
      documents = [
        (i, line_end.split(text))
        for i, s, text in chunk.documents
        if s == split
      ]
      lines = itertools.chain.from_iterable(lines for _, lines in documents)
      tokens_T, lengths_N = self._encoder.encode([*lines])
      num_tokens += len(tokens_T)
      lengths = iter(lengths_N.tolist())
      splits[split] = layouts.lay_out(
        [(i, [*itertools.islice(lengths, len(x))]) for i, x in documents],
        tokens_T,
        row_spec,
        layout=options.layout,
        seed=options.seed,
      )
    if self._spec.held_out_unit == "rows":
      splits = _hold_out_rows(splits["train"], options, chunk.number)
    return ChunkRows(chunk.number, num_tokens, splits)


def write_shard(spec: ShardSpec, chunks: Sequence[ChunkRows]) -> None:
  """Writes the files of the shard with these chunks, and its record."""
  shard = chunks[0].number // SHARD_CHUNKS
  folder = spec.folder / "rows"
  num_tokens = sum(chunk.num_tokens for chunk in chunks)
  record: dict[str, Any] = {"num_tokens": num_tokens, "files": {}}
  with files_lib.disk_errors(spec.folder):
    folder.mkdir(exist_ok=True)
  for split in SPLITS:
    fields = zip(*(chunk.splits[split] for chunk in chunks), strict=True)
    arrays = dict(zip(FIELDS, fields, strict=True))
    counts_V = np.zeros(len(spec.tokenizer.vocab), np.int64)
    for tokens_RxL in arrays["tokens"]:
      counts_V += np.bincount(tokens_RxL.ravel(), minlength=len(counts_V))
    counts_V[spec.tokenizer.pad] = 0  # text never encodes to it
    num_rows = sum(map(len, arrays["tokens"]))
    record[split] = {"rows": num_rows, "counts": counts_V.tolist()}
    for field in FIELDS if num_rows else ():
      header = np.lib.format.header_data_from_array_1_0(arrays[field][0])
      header["shape"] = (num_rows, spec.options.length)
      head = io.BytesIO()
      np.lib.format.write_array_header_1_0(head, header)
      data = (array_RxL.data for array_RxL in arrays[field])
      name = rows_folder.shard_name(split, shard, field)
      written = write_file(folder / name, head.getvalue(), *data)
      record["files"][name] = written
  write_file(spec.record_path(shard), json.dumps(record).encode())


def _is_held_out(number: int, options: RowsOptions) -> bool:
  """Selects `options.held_out` of the documents of a part, evenly spaced."""
  share = round(options.held_out * 10**6)  # exact for the float 0.1
  return (number + 1) * share // 10**6 > number * share // 10**6


def _hold_out_rows(
  fields: layouts.Arrays, options: RowsOptions, number: int
) -> dict[str, layouts.Arrays]:
  """Moves the last rows of a chunk to the held-out split."""
  count = len(fields[0])
  # At least one row of the first chunk, as it may be the only chunk.
  least = min(1, count - 1) if number == 0 else 0
  kept = count - max(least, round(options.held_out * count))
  train, held_out = zip(*((x[:kept], x[kept:]) for x in fields), strict=True)
  return {"train": train, "held_out": held_out}


def finish(folder: pathlib.Path, shard_set: ShardSet) -> dict[str, Any]:
  """Completes a rows folder; returns its manifest.

  It appears by one rename, or in a bucket by its manifest, which is written
  last. Compares the checksums of all shards, which it fetches from a bucket.
  """
  spec = shard_set.spec
  unfinished = unfinished_folder(folder)
  no_counts_V = np.zeros(len(spec.tokenizer.vocab), np.int64)
  records = []
  counts = dict.fromkeys(SPLITS, no_counts_V)
  with files_lib.disk_errors(folder):
    for shard in range(shard_set.num_shards):
      record = _verify_shard(spec, shard, unfinished / "rows")
      for split in SPLITS:  # a thousand shards would need 2 GB
        counts[split] = counts[split] + np.array(record[split].pop("counts"))
      records.append(record)
    if not any(record[split]["rows"] for record in records for split in SPLITS):
      remove_store(spec.folder)
      remove_store(unfinished)
      raise DataError(
        f"data.sources: {shard_set.corpus} gives 0 rows. It contains only"
        " blank or control characters. Add text."
      )
    manifest = _write_manifest(shard_set, unfinished / "rows", records, counts)
    if is_bucket(folder):
      _upload(unfinished / "rows", folder)
    else:
      os.replace(unfinished / "rows", folder)
      files_lib.sync(folder.parent)
    remove_store(spec.folder)
    remove_store(unfinished)
  return manifest


def _upload(source: pathlib.Path, folder: pathlib.Path) -> None:
  """Writes the files of a rows folder to a bucket, the manifest last."""

  def write(name: str) -> None:
    cast(Any, folder / name).upload(source / name)

  names = {path.name for path in source.iterdir()} - {rows_folder.MANIFEST}
  with concurrent.futures.ThreadPoolExecutor(UPLOADS) as pool:
    # Shards first: by them, the next attempt knows its own.
    [*pool.map(write, sorted(names, key=rows_folder.is_shard_name)[::-1])]
  write(rows_folder.MANIFEST)


def _verify_shard(
  spec: ShardSpec, shard: int, folder: pathlib.Path
) -> dict[str, Any]:
  """Verifies a shard and puts its files in a folder; returns its record."""
  path = spec.record_path(shard)
  fix = f"Remove '{path}' and run the same command again."
  with files_lib.read_json(path, DiskError, fix) as saved:
    record = {key: saved[key] for key in ("num_tokens", "files", *SPLITS)}
    files = record["files"].items()
    if not all(map(rows_folder.is_shard_name, record["files"])):
      raise ValueError("it names files that are none of a shard")
  folder.mkdir(exist_ok=True)
  for name, expected in files:
    copy = join_inside(folder, name)
    stored = join_inside(spec.folder / "rows", name)
    if copy != stored and not _is_intact(copy, expected):
      with files_lib.atomic_file(copy) as file:
        file.write(stored.read_bytes())
    if not _is_intact(copy, expected):
      path.unlink()
      raise DiskError(
        f"{stored}: damaged. Run the same command again to build it again."
      )
  return record


def _is_intact(path: pathlib.Path, record: dict[str, int]) -> bool:
  return path.exists() and files_lib.file_record(path) == record


def _describe_split(
  records: list[dict[str, Any]], counts_V: np.ndarray, length: int
) -> dict[str, Any]:
  shards = [x["rows"] for x in records]
  num_tokens = int(counts_V.sum())
  size = sum(shards) * length
  return {
    "rows": sum(shards),
    "tokens": num_tokens,  # without padding, with [CLS] and [SEP]
    "padding_share": round(1 - num_tokens / size, 6) if size else 0.0,
    "shards": shards if size else [],
  }


def _write_manifest(
  shard_set: ShardSet,
  folder: pathlib.Path,
  records: list[dict[str, Any]],
  counts: dict[str, np.ndarray],
) -> dict[str, Any]:
  """Writes the other files of a rows folder, and the manifest last."""
  spec = shard_set.spec
  tokenizer = shard_set.spec.tokenizer
  length = spec.options.length
  files = _write_vocabulary(tokenizer, counts["train"], folder)
  for record in records:
    files |= record["files"]
  for path in folder.iterdir():
    if path.name not in files:  # temporary, of a process that was killed
      path.unlink()
  manifest: dict[str, Any] = {
    "version": rows_folder.VERSION,
    "tokenizer": {
      "fingerprint": tokenizer.fingerprint,
      "size": len(tokenizer.vocab),
      "lowercase": tokenizer.lowercase,
      "strip_accents": tokenizer.strip_accents,
      "pad": tokenizer.pad,
      "special_ids": list(tokenizer.special_ids),
    },
    "splits": {
      split: _describe_split([x[split] for x in records], counts_V, length)
      for split, counts_V in counts.items()
    },
    "files": dict(sorted(files.items())),
  }
  # Covers the content only, so a copied text gives the same fingerprint.
  manifest["fingerprint"] = rows_folder.hash_json(manifest)
  manifest["options"] = dataclasses.asdict(spec.options)
  manifest["held_out_by"] = spec.held_out_unit
  counts_V = counts["train"] + counts["held_out"]
  # Text never encodes to these two ids, so layouts added all of them.
  kept = counts_V.sum() - counts_V[[*{tokenizer.cls, tokenizer.sep}]].sum()
  num_tokens = sum(record["num_tokens"] for record in records)
  manifest["lost_share"] = round(1 - int(kept) / num_tokens, 6)
  manifest["parts"] = _describe_parts(shard_set)
  manifest["languages"] = shard_set.languages
  manifest["repairs"] = dict(sorted(shard_set.read_counts.repairs.items()))
  # The checksum must match the parsed JSON, in which tuples are lists.
  content = json.loads(json.dumps(manifest))
  content["checksum"] = rows_folder.hash_json(content)
  with files_lib.atomic_file(folder / rows_folder.MANIFEST) as file:
    file.write((json.dumps(content, indent=1) + "\n").encode())
  files_lib.sync(folder)
  return manifest


def _describe_parts(shard_set: ShardSet) -> list[dict[str, Any]]:
  parts = shard_set.corpus.parts
  read_counts = shard_set.read_counts
  values = zip(parts, read_counts.cursors, read_counts.num_records, strict=True)
  return [
    {
      "documents": cursor.num_documents,
      "text_bytes": cursor.num_bytes,
      "passes": cursor.repeat + (cursor.number > 0),
      "records": num_records,
      "files": dict(part.files),
    }
    for part, cursor, num_records in values
  ]


def _write_vocabulary(
  tokenizer: Tokenizer, counts_V: np.ndarray, folder: pathlib.Path
) -> dict[str, dict[str, int]]:
  """Writes vocabulary and unigrams; returns their sizes and checksums."""
  names = [*write_tokenizer(tokenizer, folder), rows_folder.UNIGRAMS]
  # Of all tokens that can be masked, [UNK] among them, unless it is [CLS].
  unigram_V = counts_V.copy()
  unigram_V[[tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask]] = 0
  np.save(folder / names[-1], unigram_V)
  files_lib.sync(folder / names[-1])
  return {name: files_lib.file_record(folder / name) for name in names}


def local_folder(folder: pathlib.Path) -> pathlib.Path:
  """Returns the folder itself, or one in the cache for a folder in a bucket.

  Locks and unfinished rows are beside it.
  """
  if not is_bucket(folder):
    return folder
  return cache.folder().resolve() / "rows" / files_lib.short_sha256(str(folder))


def unfinished_folder(folder: pathlib.Path) -> pathlib.Path:
  """Returns the local store of the rows in `folder`."""
  folder = local_folder(folder)
  return folder.with_name(f".{folder.name}.unfinished")


def write_file(path: pathlib.Path, *buffers: Any) -> dict[str, int]:
  """Writes a file, also while others do; returns its size and CRC-32."""
  with files_lib.atomic_file(path, several_writers=True) as file:
    file.writelines(buffers)
  crc = functools.reduce(lambda crc, x: zlib.crc32(x, crc), buffers, 0)
  return {"bytes": sum(memoryview(x).nbytes for x in buffers), "crc32": crc}


def remove_store(folder: pathlib.Path) -> None:
  """Removes a folder with all its files, as far as possible."""
  with contextlib.suppress(Exception):
    files_lib.remove_folder(folder)
