"""Reads and verifies rows folders: rows of tokens on disk, memory-mapped.

A rows folder contains, per split ("train", "held_out") and shard,
`<split>-00000.{tokens,types,documents}.npy`; `vocab.txt`; `unigram_V.npy`, the
counts of each entry in the training split; and `manifest.json`, which describes
all of this and is written last. `write_shards` writes it.

  rows = open_rows("rows", "train", Verification("rows"))
  rows.take(np.arange(8))["tokens"]  # int32 [8, L]

A folder can have hundreds of GB, so its checksums are compared while training
reads it: see `Verification`.
"""

import dataclasses
import functools
import json
import os
import pathlib
import textwrap
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from truenegs_jax.data.rows import layouts
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import DataError, InputError, one_of
from truenegs_jax.runtime.files import short_sha256

VERSION = 3
SPLITS = ("train", "held_out")
FIELDS = ("tokens", "types", "documents")
REBUILD = "Remove the folder and prepare the rows again."
MANIFEST = "manifest.json"  # written last
UNIGRAMS = "unigram_V.npy"
VERIFYING_SHARE = 0.02  # of the processor time of the machine


@dataclasses.dataclass(frozen=True)
class RowsOptions:
  """Everything that decides the content of a rows folder.

  Attributes:
    sources: `Corpus.identity()`: names, sizes and times of files, weights.
    vocabulary: the fingerprint of the tokenizer, or "train:SIZE".
    held_out: the share of the documents to hold out, 0 to 0.5.
  """

  sources: list[dict[str, Any]]
  vocabulary: str
  lowercase: bool
  strip_accents: bool
  length: int
  layout: str = "electra"
  overflow: str = "carry"
  held_out: float = 0.01
  seed: int = 0

  def __post_init__(self) -> None:
    layouts.check_layout(
      self.layout, length=self.length, overflow=self.overflow
    )
    if not 0 <= self.held_out <= 0.5:
      raise InputError(
        f"data.held_out={self.held_out} is not allowed. Set a"
        " --config.data.held_out from 0 to 0.5."
      )
    if self.seed < 0:
      raise InputError(
        f"data.seed={self.seed} is negative. Set --config.data.seed to 0 or"
        " more."
      )


class Verification:
  """Compares the checksums of a rows folder in a thread, while it is read.

  The thread takes VERIFYING_SHARE of the processor time: about a minute for
  10 GB on 2 cores, if the disk reads as fast.
  """

  def __init__(self, folder: str | pathlib.Path, *, start: float = 0.0):
    """Starts the thread.

    Args:
      start: the share of the files after which it starts; the first come last.
        Processes that share a disk find damage sooner with different starts.
    """
    self._folder, self._start = pathlib.Path(folder), start
    self._error: Exception | None = None
    self._is_urgent = threading.Event()
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  @property
  def is_complete(self) -> bool:
    """Whether all files are verified and intact."""
    return not (self._thread.is_alive() or self._error)

  def check(self) -> None:
    """Raises DataError if damage was found so far."""
    if self._error:
      raise self._error

  def finish(self) -> None:
    """Verifies the remaining files at full speed; DataError as in `check`."""
    self._is_urgent.set()
    self._thread.join()
    self.check()

  def _run(self) -> None:
    try:
      names = list(read_manifest(self._folder)["files"])
      first = int(self._start * len(names))
      names = names[first:] + names[:first]
      for damaged in _find_damage(self._folder, names, self._pause):
        raise _damage_error(self._folder, [damaged])
    except Exception as error:  # raised by `check`
      self._error = error

  def _pause(self, secs: float) -> None:
    """Sleeps after some processor time, unless `finish` waits."""
    share = min(1.0, VERIFYING_SHARE * (os.cpu_count() or 1))
    self._is_urgent.wait(secs * (1 / share - 1))


@dataclasses.dataclass(frozen=True)
class Rows:
  """A split of a rows folder, memory-mapped.

  Attributes:
    shards: tokens_RxL (uint16 or uint32), types_RxL and documents_RxL (uint8)
      of each shard.
    starts: the index of the first row of each shard, and the number of rows.
    unigram_V: int64, the count of each entry in the training split.
    verification: of the folder; None if it is not verified.
  """

  folder: pathlib.Path
  split: str
  manifest: dict[str, Any]
  shards: tuple[tuple[np.ndarray, ...], ...]
  starts: np.ndarray
  unigram_V: np.ndarray
  verification: Verification | None = None

  def __len__(self) -> int:
    return int(self.starts[-1])

  @property
  def length(self) -> int:
    """The number of positions of a row, L."""
    return self.manifest["options"]["length"]

  @property
  def pad(self) -> int:
    """The id of [PAD]."""
    return self.manifest["tokenizer"]["pad"]

  @property
  def fingerprint(self) -> str:
    """A hash of the content of the folder, independent of paths and times."""
    return self.manifest["fingerprint"]

  @property
  def is_verified(self) -> bool:
    """Whether all files are verified and intact."""
    return self.verification is not None and self.verification.is_complete

  def finish_verification(self) -> None:
    """Waits until all files are verified; DataError if one is damaged."""
    if self.verification:
      self.verification.finish()

  def take(self, row_B: np.ndarray) -> dict[str, np.ndarray]:
    """Returns rows by index: tokens, types and documents, int32 [B, L].

    Raises:
      DataError: a file is damaged; or an id, a type or the number of a document
        is out of range (JAX would clamp it).
    """
    if self.verification:
      self.verification.check()
    shard_B = np.searchsorted(self.starts, row_B, side="right") - 1
    batch = {f: np.empty((len(row_B), self.length), np.int32) for f in FIELDS}
    for shard in np.unique(shard_B):
      in_shard_B = shard_B == shard
      index = row_B[in_shard_B] - self.starts[shard]
      for field, array in zip(FIELDS, self.shards[shard], strict=True):
        values_BxL = array[index]
        if values_BxL.max() > self._largest[field]:
          row = row_B[in_shard_B][values_BxL.max(axis=1).argmax()]
          raise DataError(
            f"{self.folder / shard_name(self.split, shard, field)}:"
            f" {values_BxL.max()} in row {row} of {self.split!r} is too large:"
            f" it can be at most {self._largest[field]}. {REBUILD}"
          )
        batch[field][in_shard_B] = values_BxL
    return batch

  @functools.cached_property
  def _largest(self) -> dict[str, int]:
    """The largest possible value of each field."""
    options, tokenizer = self.manifest["options"], self.manifest["tokenizer"]
    # The shortest document is [CLS], a token and [SEP].
    documents = 1 if options["layout"] == "electra" else self.length // 3
    return {"tokens": tokenizer["size"] - 1, "types": 1, "documents": documents}


def rows_fingerprint(options: RowsOptions) -> str:
  """Returns 16 hex digits of a hash of everything that decides the rows."""
  return hash_json({"version": VERSION, **dataclasses.asdict(options)})


def read_manifest(folder: str | pathlib.Path) -> dict[str, Any]:
  """Reads a manifest; DataError if it is missing, damaged or too old."""
  path = pathlib.Path(folder) / MANIFEST
  if not path.exists():
    raise DataError(
      f"'{folder}' is not a rows folder: it has no {path.name}. Run"
      " `python -m truenegs_jax.prepare --config=FILE` to prepare it."
    )
  with json_text.read_file(path, DataError, REBUILD) as manifest:
    if manifest.pop("checksum") != hash_json(manifest):
      raise ValueError("changed or damaged")
  if manifest["version"] != VERSION:
    raise DataError(
      f"{path}: version {manifest['version']} of the format is not supported,"
      f" only version {VERSION}. {REBUILD}"
    )
  return manifest


def open_rows(
  folder: str | pathlib.Path,
  split: str,
  verification: Verification | None = None,
) -> Rows:
  """Maps a split ("train" or "held_out") into memory.

  Checks the sizes of files; `verification` checks their content.

  Raises:
    DataError: there is no rows folder, or a shard is missing, cut or damaged.
  """
  one_of("split", split, SPLITS)
  folder = pathlib.Path(folder)
  manifest = read_manifest(folder)
  counts = manifest["splits"][split]["shards"]
  shards = []
  for number, count in enumerate(counts):
    names = [shard_name(split, number, field) for field in FIELDS]
    shape = (count, manifest["options"]["length"])
    if count:
      fields = (_map_field(folder, n, shape, manifest) for n in names)
      shards.append(tuple(fields))
    else:  # has no files
      shards.append((np.empty(shape, np.uint16),) * len(FIELDS))
  if damaged := list(_find_damage(folder, [UNIGRAMS])):
    raise _damage_error(folder, damaged)
  unigram_V, starts = np.load(folder / UNIGRAMS), np.cumsum([0, *counts])
  return Rows(
    folder, split, manifest, tuple(shards), starts, unigram_V, verification
  )


def verify_rows(folder: str | pathlib.Path) -> None:
  """Compares checksums of all files; DataError names those that differ."""
  folder = pathlib.Path(folder)
  if damaged := list(_find_damage(folder, read_manifest(folder)["files"])):
    raise _damage_error(folder, damaged)


def check_vocabulary(folder: str | pathlib.Path, tokenizer: Tokenizer) -> None:
  """Raises InputError if `vocab.txt` is not that of the rows."""
  expected = read_manifest(folder)["tokenizer"]["fingerprint"]
  if tokenizer.fingerprint != expected:
    raise InputError(
      f"'{folder}/vocab.txt' has the fingerprint {tokenizer.fingerprint}, but"
      f" the rows were prepared with {expected}. {REBUILD}"
    )


def check_options(folder: str | pathlib.Path, options: RowsOptions) -> None:
  """Raises DataError if a rows folder was prepared with other options."""
  saved = read_manifest(folder)["options"]
  expected = json.loads(json.dumps(dataclasses.asdict(options)))
  differences = ""
  for key, value in expected.items():
    if (old := saved.get(key)) != value:
      pair = f"{_shorten(old)} in the folder, {_shorten(value)} now"
      differences += f"\n  {key}: {pair}"
  if differences:
    raise DataError(
      f"data.rows='{folder}' was prepared with other options:"
      f"{differences}\nRemove the folder, or set --config.data.rows to"
      " another one."
    )


def check_batch_size(rows: Rows, batch_size: int) -> None:
  """Raises DataError if a split has less than one batch."""
  if len(rows) < batch_size:
    raise DataError(
      f"batch_size={batch_size} is more than the {len(rows):,} rows of"
      f" {rows.split!r} in '{rows.folder}'. Add text, or set"
      f" --config.batch_size to at most {len(rows)}."
    )


def padding_warning(manifest: dict[str, Any]) -> str:
  """Returns a warning if rows have much padding, else "".

  The limit is 10 % of rows of 128, 25 % of rows of 512, and linear in between.
  """
  options, splits = manifest["options"], manifest["splits"]
  length, share = options["length"], splits["train"]["padding_share"]
  if share <= 0.05 + length / 2560:
    return ""
  num_tokens = sum(split["tokens"] for split in splits.values())
  mean = num_tokens / sum(part["documents"] for part in manifest["parts"])
  layout = "data.layout=packed, or --config."
  return (
    f"warning: {share:.1%} of the rows are padding, because documents are short"
    f" (mean: {mean:,.0f} tokens; length={length}). Set document=join chars=N"
    " in the parts of --config.data.sources (document=file if a file is one"
    f" text), or --config.{layout * (options['layout'] != 'packed')}length to a"
    " smaller number."
  )


def token_dtype(num_entries: int) -> np.dtype:
  """Returns the dtype of stored token ids: uint16 if they fit, else uint32."""
  return np.dtype(np.uint16 if num_entries <= 2**16 else np.uint32)


def shard_name(split: str, number: int, field: str) -> str:
  """Returns the file name of one field of a shard."""
  return f"{split}-{number:05d}.{field}.npy"


def file_record(
  path: pathlib.Path, pause: Callable[[float], object] | None = None
) -> dict[str, int]:
  """Returns the size and CRC-32 of a file, for the manifest.

  `pause` is called after each block with its processor time in seconds.
  """
  crc = 0
  with open(path, "rb") as file:
    start = time.thread_time()
    while block := file.read(1 << 22):
      crc = zlib.crc32(block, crc)
      if pause:
        pause(time.thread_time() - start)
        start = time.thread_time()
  return {"bytes": path.stat().st_size, "crc32": crc}


def hash_json(value: object) -> str:
  """Returns 16 hex digits of the SHA-256 of canonical JSON."""
  return short_sha256(json.dumps(value, sort_keys=True, separators=(",", ":")))


def _find_damage(
  folder: pathlib.Path,
  names: Iterable[str],
  pause: Callable[[float], object] | None = None,
) -> Iterator[str]:
  """Yields the names of files that differ from the manifest's checksums."""
  records = read_manifest(folder)["files"]
  for name in names:
    try:
      if file_record(folder / name, pause) != records[name]:
        yield name
    except OSError as error:
      yield f"{name} ({error.strerror})"


def _damage_error(folder: pathlib.Path, names: list[str]) -> DataError:
  return DataError(
    f"{folder}: damaged or missing files: {', '.join(names)}. {REBUILD}"
  )


def _shorten(value: object) -> str:
  return textwrap.shorten(str(value), 300, placeholder="...")


def _map_field(
  folder: pathlib.Path,
  name: str,
  shape: tuple[int, int],
  manifest: dict[str, Any],
) -> np.ndarray:
  path = folder / name
  expected_size = manifest["files"][name]["bytes"]
  try:
    if (size := path.stat().st_size) != expected_size:
      raise DataError(
        f"{path}: {size:,} bytes instead of {expected_size:,}. {REBUILD}"
      )
    array = np.load(path, mmap_mode="r", allow_pickle=False)
  except (OSError, ValueError) as error:
    raise DataError(f"{path}: cannot be read ({error}). {REBUILD}") from error
  if array.shape != shape or array.dtype.kind != "u":
    raise DataError(
      f"{path}: {array.dtype} {array.shape} instead of unsigned integers"
      f" {shape}. {REBUILD}"
    )
  # Small reads from a plain view are several times faster than from np.memmap.
  return np.asarray(array)
