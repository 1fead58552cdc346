"""Rows of tokens on disk: written once, memory-mapped, checked.

A rows folder holds, per split ("train", "held_out") and shard,
`<split>-00000.{tokens,types,documents}.npy`; `vocab.txt`; `unigram_V.npy`,
how often each entry occurs in the training split; and `manifest.json`, which
says what all this is and is written last.

  rows = open_rows("rows", "train")
  rows.take(np.arange(8))["tokens"]  # int32 [8, L]

This module is the format and its reading; `build` writes it.
"""

import dataclasses
import json
import pathlib
import textwrap
import zlib
from typing import Any

import numpy as np

from truenegs_jax.data.rows import layouts
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.files import short_sha256

VERSION = 3
SPLITS = ("train", "held_out")
FIELDS = ("tokens", "types", "documents")


@dataclasses.dataclass(frozen=True)
class RowsOptions:
  """Everything that decides the content of a rows folder.

  Attributes:
    sources: `Corpus.identity()`: names, sizes and times of files, weights.
    vocabulary: fingerprint of a given tokenizer, or "train:SIZE".
    strip_accents: of the tokenizer, like `lowercase`.
    held_out: share of the documents that is kept from training, 0 to 0.5.
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
      raise InputError(f"data.held_out={self.held_out}: allowed is 0 to 0.5.")
    if self.seed < 0:
      raise InputError(f"data.seed={self.seed}: must be 0 or more.")


@dataclasses.dataclass(frozen=True)
class Rows:
  """A split of a rows folder, memory-mapped.

  `shards` holds per shard `(tokens_RxL, types_RxL, documents_RxL)`: uint16
  or uint32, uint8, uint8; shard i begins with row `starts[i]`.
  """

  folder: pathlib.Path
  split: str
  manifest: dict[str, Any]
  shards: tuple[tuple[np.ndarray, ...], ...]
  starts: np.ndarray

  def __len__(self) -> int:
    return int(self.starts[-1])

  @property
  def length(self) -> int:
    """L: the positions of a row."""
    return self.manifest["options"]["length"]

  @property
  def pad(self) -> int:
    """The id of padding."""
    return self.manifest["tokenizer"]["pad"]

  @property
  def fingerprint(self) -> str:
    """Of the content of the folder; equal rows have equal fingerprints."""
    return self.manifest["fingerprint"]

  def take(self, row_B: np.ndarray) -> dict[str, np.ndarray]:
    """The rows of these numbers: tokens, types, documents, int32 [B, L].

    Raises:
      DataError: a token id is not below V (JAX would clamp it silently).
    """
    shard_B = np.searchsorted(self.starts, row_B, side="right") - 1
    taken = {f: np.empty((len(row_B), self.length), np.int32) for f in FIELDS}
    for shard in np.unique(shard_B):
      here_B = shard_B == shard
      local = row_B[here_B] - self.starts[shard]
      for field, array in zip(FIELDS, self.shards[shard], strict=True):
        taken[field][here_B] = array[local]
    num_entries = self.manifest["tokenizer"]["size"]
    if len(row_B) and (largest := taken["tokens"].max()) >= num_entries:
      row = row_B[taken["tokens"].max(axis=1).argmax()]
      raise DataError(
        f"{self.folder}: row {row} of {self.split!r} holds token id {largest},"
        f" the vocabulary has {num_entries}: prepare the rows anew."
      )
    return taken


def rows_fingerprint(options: RowsOptions) -> str:
  """16 hex digits over everything that determines the rows."""
  return hash_json({"version": VERSION, **dataclasses.asdict(options)})


def read_manifest(folder: str | pathlib.Path) -> dict[str, Any]:
  """The manifest of a rows folder; DataError where it is none, or damaged."""
  path = pathlib.Path(folder) / "manifest.json"
  try:
    manifest = json.loads(path.read_bytes())
    checksum = manifest.pop("checksum")
  except OSError as error:
    raise DataError(
      f"{folder} is no rows folder ({path.name}: {error.strerror}): prepare it"
      " with python -m truenegs_jax.prepare."
    ) from error
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise DataError(f"{path} is damaged: prepare the rows anew.") from error
  if checksum != hash_json(manifest):
    raise DataError(f"{path} was changed or is damaged: prepare the rows anew.")
  if manifest["version"] != VERSION:
    raise DataError(
      f"{path}: format {manifest['version']}, this version reads {VERSION}:"
      " prepare the rows anew."
    )
  return manifest


def open_rows(folder: str | pathlib.Path, split: str) -> Rows:
  """Maps a split ("train" or "held_out") into memory.

  Sizes are checked here, checksums by `verify_rows`.

  Raises:
    DataError: not a rows folder; a shard is missing, cut or of other shape.
  """
  if split not in SPLITS:
    raise InputError(f"split={split!r}: choose one of {', '.join(SPLITS)}.")
  folder = pathlib.Path(folder)
  manifest = read_manifest(folder)
  counts = manifest["splits"][split]["shards"]
  shards = []
  for number, count in enumerate(counts):
    names = [shard_name(split, number, field) for field in FIELDS]
    shape = (count, manifest["options"]["length"])
    shards.append(tuple(_map(folder, n, shape, manifest) for n in names))
  starts = np.cumsum([0, *counts])
  return Rows(folder, split, manifest, tuple(shards), starts)


def verify_rows(folder: str | pathlib.Path) -> None:
  """Reads every file of a rows folder; DataError names the damaged ones."""
  folder = pathlib.Path(folder)
  damaged = []
  for name, record in read_manifest(folder)["files"].items():
    try:
      if file_record(folder / name) != record:
        damaged.append(name)
    except OSError as error:
      damaged.append(f"{name} ({error.strerror})")
  if damaged:
    raise DataError(
      f"{folder}: content differs from what was written:"
      f" {', '.join(damaged)}. Remove the folder and prepare the rows anew."
    )


def check_options(folder: str | pathlib.Path, options: RowsOptions) -> None:
  """Raises DataError where a rows folder was made with other options."""
  found = read_manifest(folder)["options"]
  wanted = json.loads(json.dumps(dataclasses.asdict(options)))
  short = lambda value: textwrap.shorten(str(value), 300, placeholder="...")
  differences = [
    f"  {key}: {short(found.get(key))} there, {short(wanted[key])} asked for"
    for key in wanted
    if found.get(key) != wanted[key]
  ]
  if differences:
    raise DataError(
      f"data.rows: {folder} holds other rows:\n"
      + "\n".join(differences)
      + "\nRemove the folder, name another one, or leave data.rows empty."
    )


def check_batch_size(rows: Rows, batch_size: int) -> None:
  """Raises DataError where a split does not hold one batch."""
  if len(rows) < batch_size:
    raise DataError(
      f"{rows.folder}: {len(rows)} rows in {rows.split!r}, fewer than"
      f" batch_size={batch_size}: add text, or set batch_size to at most"
      f" {len(rows)}."
    )


def token_dtype(num_entries: int) -> np.dtype:
  """The dtype that ids of a vocabulary are stored as: uint16 where they fit."""
  return np.dtype(np.uint16 if num_entries <= 2**16 else np.uint32)


def shard_name(split: str, number: int, field: str) -> str:
  """The file of one field of one shard."""
  return f"{split}-{number:05d}.{field}.npy"


def file_record(path: pathlib.Path) -> dict[str, int]:
  """The size and CRC-32 of a file, as the manifest has them."""
  crc = 0
  with open(path, "rb") as file:
    while block := file.read(1 << 22):
      crc = zlib.crc32(block, crc)
  return {"bytes": path.stat().st_size, "crc32": crc}


def hash_json(value: Any) -> str:
  """16 hex digits of a SHA-256 over canonical JSON."""
  text = json.dumps(value, sort_keys=True, separators=(",", ":"))
  return short_sha256(text)


def _map(
  folder: pathlib.Path,
  name: str,
  shape: tuple[int, int],
  manifest: dict[str, Any],
) -> np.ndarray:
  path = folder / name
  expected = manifest["files"][name]["bytes"]
  try:
    size = path.stat().st_size
    if size != expected:
      raise DataError(
        f"{path}: {size:,} bytes, written were {expected:,}: prepare the rows"
        " anew."
      )
    array = np.load(path, mmap_mode="r", allow_pickle=False)
  except (OSError, ValueError) as error:
    raise DataError(
      f"{path}: cannot be read ({error}): prepare the rows anew."
    ) from error
  if array.shape != shape or array.dtype.kind != "u":
    raise DataError(
      f"{path}: {array.dtype} {array.shape} instead of {shape} unsigned"
      " integers: prepare the rows anew."
    )
  # A plain view: np.memmap makes every small read several times slower.
  return np.asarray(array)
