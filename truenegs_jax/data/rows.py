"""Reads and verifies rows folders: rows of tokens on disk.

A rows folder contains, per split ("train", "held_out") and shard,
`<split>-<shard>.{tokens,types,documents}.npy`; the files of a tokenizer;
`unigram_V.npy`, the counts of each entry in the training split; and
`manifest.json`, which lists the shards of a split, some of them several times
in a mixture, and is written last. A shard is a slice of a unit of the text.

  rows = open_rows(copy_rows("gs://bucket/rows/mine"), "train")
  rows.take(np.arange(8))["tokens"]  # int32 [8, L]
"""

import dataclasses
import errno
import json
import pathlib
import re
import stat
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.data.tokenizer_files import FILES, HUB_FILES, load_tokenizer
from truenegs_jax.runtime import errors, progress
from truenegs_jax.runtime.errors import FAILING, DataError, one_of
from truenegs_jax.runtime.files import (
  atomic_file,
  disk_errors,
  lock_folder,
  read_json,
  short_sha256,
)
from truenegs_jax.runtime.paths import (
  cache_folder,
  is_bucket,
  join_inside,
  open_path,
)

VERSION = 6
SPLITS = ("train", "held_out")
FIELDS = ("tokens", "types", "documents")
REBUILD = "Remove the folder and run the command again that wrote it."
MANIFEST = "manifest.json"  # written last
MAX_VALUES = 2**22  # of a manifest: 13 for each shard of both splits
UNIGRAMS = "unigram_V.npy"
OTHER_FILES = (UNIGRAMS, *HUB_FILES)  # beside shards
SHARD_NAME = re.compile(
  rf"({'|'.join(SPLITS)})-[0-9]{{5,9}}-[0-9]{{4,9}}\.({'|'.join(FIELDS)})\.npy"
)
COPIERS = 4  # threads, each with a file in memory, some 4 MB
Records = Mapping[str, Mapping[str, int]]  # bytes and crc32 by name of file


@dataclasses.dataclass(frozen=True)
class Rows:
  """A split of a rows folder."""

  folder: pathlib.Path
  split: str
  manifest: dict[str, Any]
  # Of each listed shard, as it is on disk: tokens_RxL (uint16 or uint32),
  # types_RxL and documents_RxL (uint8).
  shards: tuple[tuple[np.ndarray, ...], ...]
  # The index of the first row of each shard, and the number of rows.
  starts: np.ndarray
  unigram_V: np.ndarray  # int64, the count of each entry in the training split

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

  def take(self, row_B: np.ndarray) -> dict[str, np.ndarray]:
    """Returns rows by index: tokens, types and documents, int32 [B, L]."""
    shard_B = np.searchsorted(self.starts, row_B, side="right") - 1
    shards = [self.shards[shard] for shard in shard_B]
    places = [*zip(shards, row_B - self.starts[shard_B], strict=True)]
    batch = {}
    for number, field in enumerate(FIELDS):
      batch[field] = np.empty((len(row_B), self.length), np.int32)
      for i, (shard, index) in enumerate(places):
        batch[field][i] = shard[number][index]
    return batch


def read_manifest(folder: str | pathlib.Path) -> dict[str, Any]:
  """Reads a manifest; DataError if it is missing, damaged or too old."""
  path = open_path("data.rows", folder) / MANIFEST
  if not path.exists():
    raise DataError(
      f"'{folder}' is not a rows folder: it has no {path.name}. Run"
      f" `{errors.program()} prepare --config=FILE` to prepare it."
    )
  with read_json(path, DataError, REBUILD, MAX_VALUES) as manifest:
    if manifest.pop("checksum") != hash_json(manifest):
      raise ValueError("changed or damaged")
    if problem := _find_problem(manifest):
      raise ValueError(problem)
  return manifest


def _find_problem(manifest: dict[str, Any]) -> str:
  """Returns what makes a manifest unusable; "" for nothing."""
  if manifest["version"] != VERSION:
    return f"not of version {VERSION}"
  if not re.fullmatch("[0-9a-f]{16}", manifest["fingerprint"]):
    return "its fingerprint is not 16 hex digits"
  names = {*manifest["files"]}
  for name in names:
    if name not in OTHER_FILES and not SHARD_NAME.fullmatch(name):
      return f"{name[:100]!r} is no file of rows"
  if UNIGRAMS not in names or len(names & {*FILES}) != 1:
    return "it has no vocabulary"
  numbers = [manifest["tokenizer"]["size"], manifest["options"]["length"]]
  for split in SPLITS:
    for shard, count in manifest["splits"][split]["shards"]:
      if not {shard_name(split, shard, field) for field in FIELDS} <= names:
        return "it lists a shard that it has not"
      numbers.append(count)
  for record in manifest["files"].values():
    numbers += [record["bytes"], record["crc32"]]
  for part in manifest["parts"]:
    numbers += [part["documents"], part["text_bytes"]]
  is_valid = all(type(x) is int and x >= 0 for x in numbers)
  return "" if is_valid else "a size is no whole number, or below 0"


def open_rows(folder: str | pathlib.Path, split: str) -> Rows:
  """Opens a split here, not in a bucket; checks the sizes of files only."""
  one_of("split", split, SPLITS)
  folder = open_path("data.rows", folder)
  manifest = read_manifest(folder)
  length = manifest["options"]["length"]
  listed = manifest["splits"][split]["shards"]
  opened: dict[str, tuple[np.ndarray, ...]] = {}
  for shard, count in sorted(listed, key=lambda x: -x[1]):
    if shard not in opened:
      names = (shard_name(split, shard, field) for field in FIELDS)
      paths = (join_inside(folder, name) for name in names)
      opened[shard] = tuple(_open_shard(path, length, count) for path in paths)
  shards = tuple(opened[shard] for shard, _ in listed)
  starts = np.cumsum([0, *(count for _, count in listed)])
  check_files(folder, {UNIGRAMS: manifest["files"][UNIGRAMS]})
  unigram_V = np.load(folder / UNIGRAMS, mmap_mode="r", allow_pickle=False)
  if unigram_V.shape != (manifest["tokenizer"]["size"],):
    raise DataError(f"{folder / UNIGRAMS}: cannot be read. {REBUILD}")
  return Rows(folder, split, manifest, shards, starts, np.array(unigram_V))


def _open_shard(path: pathlib.Path, length: int, count: int) -> np.ndarray:
  """Maps a file of `count` rows of `length` or more; DataError if not."""
  try:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    is_whole = array.shape[1:] == (length,) and len(array) >= count
    if not is_whole or array.dtype.kind != "u":
      raise ValueError(f"{array.dtype} {array.shape}")
  except Exception as error:  # numpy parses a damaged header as Python
    if isinstance(error, OSError) and error.errno in (*FAILING, errno.EMFILE):
      raise
    raise DataError(f"{path}: cannot be read ({error}). {REBUILD}") from error
  return array.view(np.ndarray)  # which is indexed faster


def copy_rows(folder: str | pathlib.Path) -> pathlib.Path:
  """Copies rows in a bucket to the cache; returns a folder of this machine.

  A later start finds the copy. Of several processes of a machine, one copies
  and the others wait for it. After a kill, the files that are whole are kept.
  A local folder is returned as it is.

  Raises DataError for damaged or missing files, DiskError for a full disk.
  """
  from concurrent.futures import ThreadPoolExecutor

  source = open_path("data.rows", folder)
  if not is_bucket(source):
    return source
  manifest = read_manifest(source)
  records = manifest["files"]
  key = hash_json(manifest)
  copy = cache_folder().resolve() / "rows-copies" / key

  def copy_file(name: str) -> None:
    if _file_size(join_inside(copy, name)) == records[name]["bytes"]:
      return  # it was copied as a whole
    path = join_inside(source, name)
    data = b""
    if _file_size(path) == records[name]["bytes"]:
      data = path.read_bytes()
    if data_record(data) != records[name]:
      raise DataError(f"{path}: damaged or missing. {REBUILD}")
    with atomic_file(copy / name) as file:
      file.write(data)

  with lock_folder(copy), disk_errors(copy):
    copy.mkdir(exist_ok=True)
    if not (copy / MANIFEST).exists():
      text = f"Copying rows from '{source}'"
      work = progress.counting(progress.log_console(), text, len(records))
      with work as advance, ThreadPoolExecutor(COPIERS) as pool:
        for _ in pool.map(copy_file, records):
          advance()
      with atomic_file(copy / MANIFEST) as file:
        file.write(json.dumps({**manifest, "checksum": key}).encode())
  return copy


def verify_rows(folder: str | pathlib.Path) -> None:
  """Compares checksums of all files; DataError names those that differ."""
  path = open_path("data.rows", folder)
  check_files(path, read_manifest(folder)["files"])


def load_vocabulary(folder: str | pathlib.Path) -> Tokenizer:
  """Returns the tokenizer of the rows."""
  manifest = read_manifest(folder)
  saved = manifest["tokenizer"]
  [name] = {*FILES} & {*manifest["files"]}
  path = join_inside(open_path("data.rows", folder), name)
  check_files(path.parent, {name: manifest["files"][name]})
  options = {name: saved[name] for name in ("lowercase", "strip_accents")}
  return load_tokenizer(str(path), **options)


def shard_name(split: str, shard: str, field: str) -> str:
  """Returns the file name of one field of a shard."""
  return f"{split}-{shard}.{field}.npy"


def hash_json(value: object) -> str:
  """Returns 16 hex digits of the SHA-256 of canonical JSON."""
  return short_sha256(json.dumps(value, sort_keys=True, separators=(",", ":")))


def data_record(data: bytes) -> dict[str, int]:
  """Returns the record of a file with this content."""
  return {"bytes": len(data), "crc32": zlib.crc32(data)}


def _file_record(path: pathlib.Path) -> dict[str, int]:
  """Returns the record of a file."""
  if is_bucket(path):
    return data_record(path.read_bytes())
  crc = 0
  with open(path, "rb") as file:
    while block := file.read(1 << 22):
      crc = zlib.crc32(block, crc)
  return {"bytes": path.stat().st_size, "crc32": crc}


def check_files(folder: pathlib.Path, records: Records) -> None:
  """Raises DataError if files differ from their records in the manifest."""
  damaged = []
  for name, record in records.items():
    path = join_inside(folder, name)
    try:
      # The size first, so that no more is read than the manifest says.
      is_whole = _file_size(path) == record["bytes"]
      if not is_whole or _file_record(path) != record:
        damaged.append(name)
    except OSError as error:
      damaged.append(f"{name} ({error.strerror or 'missing'})")
  if damaged:
    raise DataError(
      f"{folder}: damaged or missing files: {', '.join(damaged)}. {REBUILD}"
    )


def _file_size(path: pathlib.Path) -> int:
  """Returns the bytes of a file; -1 if there is none, or it has no end."""
  try:
    status: Any = path.stat()
  except FileNotFoundError:
    return -1
  if is_bucket(path):
    return status.length
  return status.st_size if stat.S_ISREG(status.st_mode) else -1


def padding_warning(manifest: dict[str, Any]) -> str:
  """Returns a warning above 10 % padding at length 128, 25 % at 512; or ""."""
  length = manifest["options"]["length"]
  share = manifest["splits"]["train"]["padding_share"]
  is_packed = manifest["options"]["layout"] == "packed"
  if is_packed or share <= 0.05 + length / 2560:
    return ""
  return (
    f"warning: {share:.1%} of the rows are padding, because documents are"
    f" shorter than length={length}. Set --config.data.layout=packed or a"
    " smaller --config.length, or join documents: document=join chars=NUMBER"
    " in the parts of --config.data.sources, with a larger number if it is set."
  )
