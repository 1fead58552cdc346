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
import functools
import json
import os
import pathlib
import re
import stat
import threading
import weakref
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from truenegs_jax.data.tokenizer import (
  FILES,
  HUB_FILES,
  Tokenizer,
  load_tokenizer,
)
from truenegs_jax.runtime import errors, progress
from truenegs_jax.runtime.errors import FAILING, DataError, InputError, one_of
from truenegs_jax.runtime.files import (
  atomic_file,
  disk_errors,
  file_record,
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


class Verification:
  """Compares the checksums of a rows folder in a thread, while it is read.

  Each batch has rows of all shards.
  """

  def __init__(self, folder: str | pathlib.Path) -> None:
    self._folder = pathlib.Path(folder)
    self.error: Exception | None = None  # for damage that was found so far
    self._records: Records = {}
    self._states: dict[str, tuple[int, ...]] = {}  # of verified files
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  @property
  def is_complete(self) -> bool:
    """Whether all files are verified, intact and unchanged since then."""
    is_done = not (self._thread.is_alive() or self.error)
    return is_done and not self._find_changed()

  def check(self) -> None:
    """Raises DataError if damage was found so far."""
    if self.error:
      raise self.error

  def finish(self) -> None:
    """Verifies the other and changed files; raises DataError for damage."""
    self._thread.join()
    if changed := self._find_changed():
      self._run(changed)
    self.check()

  def _find_changed(self) -> list[str]:
    """Finds files that were written to after their verification began."""
    states = {name: _file_state(self._folder / name) for name in self._states}
    # A removed file is still open.
    return [x for x in states if states[x] not in ((), self._states[x])]

  def _run(self, names: Iterable[str] = ()) -> None:
    try:
      if not names:
        self._records = read_manifest(self._folder)["files"]
      for name in names or self._records:
        self._states[name] = _file_state(self._folder / name)
        check_files(self._folder, {name: self._records[name]})
    except Exception as error:  # raised by `check`
      self.error = error


class RowFile:
  """An open file of rows.

  It is not mapped into memory, because the system ends a process whose mapped
  files are lost. A read of a lost file raises an OSError.
  """

  def __init__(self, path: pathlib.Path, length: int, count: int) -> None:
    """Opens a file of `count` rows of `length` or more; DataError if not."""
    self.path = path
    try:
      with open(path, "rb") as file:
        np.lib.format.read_magic(file)
        shape, _, self._dtype = np.lib.format.read_array_header_1_0(file)
        self._start = file.tell()
        self._row_bytes = length * self._dtype.itemsize
        size = os.fstat(file.fileno()).st_size
        is_whole = size == self._start + shape[0] * self._row_bytes
        is_row = shape[1:] == (length,) and self._dtype.kind == "u"
        if not (is_whole and is_row and shape[0] >= count):
          raise ValueError(f"{size:,} bytes of {self._dtype} {shape}")
        self._descriptor = os.dup(file.fileno())
    except Exception as error:  # numpy parses a damaged header as Python
      if isinstance(error, OSError) and error.errno in (*FAILING, errno.EMFILE):
        raise
      raise DataError(f"{path}: cannot be read ({error}). {REBUILD}") from error
    weakref.finalize(self, os.close, self._descriptor)

  def read(self, index: int) -> np.ndarray:
    """Reads a row; DataError if the file was cut off since it was opened."""
    start = self._start + index * self._row_bytes
    try:
      data = os.pread(self._descriptor, self._row_bytes, start)
    except OSError as error:
      error.filename = str(self.path)
      raise
    if len(data) < self._row_bytes:
      raise DataError(f"{self.path}: was cut off. {REBUILD}")
    return np.frombuffer(data, self._dtype)


@dataclasses.dataclass(frozen=True)
class Rows:
  """A split of a rows folder."""

  folder: pathlib.Path
  split: str
  manifest: dict[str, Any]
  # Of each listed shard: tokens_RxL (uint16 or uint32), types_RxL and
  # documents_RxL (uint8).
  shards: tuple[tuple[RowFile, ...], ...]
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
    """Returns rows by index: tokens, types and documents, int32 [B, L].

    Raises DataError if a value is out of range.
    """
    shard_B = np.searchsorted(self.starts, row_B, side="right") - 1
    files = [self.shards[shard] for shard in shard_B]
    indices = (row_B - self.starts[shard_B]).tolist()
    batch = {}
    for number, field in enumerate(FIELDS):
      values_BxL = np.empty((len(row_B), self.length), np.uint64)
      for i, (shard, index) in enumerate(zip(files, indices, strict=True)):
        values_BxL[i] = shard[number].read(index)
      if values_BxL.max(initial=0) > self._largest[field]:
        i = values_BxL.max(axis=1).argmax()
        raise DataError(
          f"{files[i][number].path}: {values_BxL.max()} in row {row_B[i]} of"
          f" {self.split!r} is too large: it can be at most"
          f" {self._largest[field]}. {REBUILD}"
        )
      batch[field] = values_BxL.astype(np.int32)
    return batch

  @functools.cached_property
  def _largest(self) -> dict[str, int]:
    """The largest possible value of each field."""
    options = self.manifest["options"]
    tokenizer = self.manifest["tokenizer"]
    # The shortest document is [CLS], a token and [SEP].
    documents = 1 if options["layout"] == "electra" else self.length // 3
    return {"tokens": tokenizer["size"] - 1, "types": 1, "documents": documents}


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
    if manifest["version"] != VERSION:
      raise ValueError(f"not of version {VERSION}")
    if not re.fullmatch("[0-9a-f]{16}", manifest["fingerprint"]):
      raise ValueError("its fingerprint is not 16 hex digits")
    names = {*manifest["files"]}
    for name in names:
      if name not in OTHER_FILES and not SHARD_NAME.fullmatch(name):
        raise ValueError(f"{name[:100]!r} is no file of rows")
    if UNIGRAMS not in names or len(names & {*FILES}) != 1:
      raise ValueError("it has no vocabulary")
    listed = [
      (shard_name(split, shard, field), count)
      for split in SPLITS
      for shard, count in manifest["splits"][split]["shards"]
      for field in FIELDS
    ]
    if not {name for name, _ in listed} <= names:
      raise ValueError("it lists a shard that it has not")
    tokenizer = manifest["tokenizer"]
    numbers = [tokenizer["size"], tokenizer["pad"]]
    numbers += [manifest["options"]["length"], *(count for _, count in listed)]
    for record in manifest["files"].values():
      numbers += [record["bytes"], record["crc32"]]
    for part in manifest["parts"]:
      numbers += [part["documents"], part["text_bytes"]]
    numbers += manifest["languages"].values()
    kinds: dict[type, list[Any]] = {
      int: numbers,
      bool: [tokenizer["lowercase"], tokenizer["strip_accents"]],
      float: [manifest["splits"][split]["padding_share"] for split in SPLITS],
      str: [source["source"] for source in manifest["options"]["sources"]],
    }
    for kind, values in kinds.items():
      if any(type(value) is not kind for value in values):
        raise ValueError(f"a value is no {kind.__name__}")
    if min(numbers) < 0:
      raise ValueError("a size is below 0")
  return manifest


def open_rows(folder: str | pathlib.Path, split: str) -> Rows:
  """Opens a split here, not in a bucket; checks the sizes of files only."""
  one_of("split", split, SPLITS)
  folder = open_path("data.rows", folder)
  manifest = read_manifest(folder)
  length = manifest["options"]["length"]
  listed = manifest["splits"][split]["shards"]
  opened: dict[str, tuple[RowFile, ...]] = {}
  for shard, count in sorted(listed, key=lambda x: -x[1]):
    if shard not in opened:
      names = (shard_name(split, shard, field) for field in FIELDS)
      paths = (join_inside(folder, name) for name in names)
      opened[shard] = tuple(RowFile(path, length, count) for path in paths)
  shards = tuple(opened[shard] for shard, _ in listed)
  starts = np.cumsum([0, *(count for _, count in listed)])
  check_files(folder, {UNIGRAMS: manifest["files"][UNIGRAMS]})
  unigram_V = np.load(folder / UNIGRAMS, mmap_mode="r", allow_pickle=False)
  if unigram_V.shape != (manifest["tokenizer"]["size"],):
    raise DataError(f"{folder / UNIGRAMS}: cannot be read. {REBUILD}")
  return Rows(folder, split, manifest, shards, starts, np.array(unigram_V))


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
  options = {name: saved[name] for name in ("lowercase", "strip_accents")}
  tokenizer = load_tokenizer(str(path), **options)
  if tokenizer.fingerprint != saved["fingerprint"]:
    raise InputError(
      f"'{path}' has the fingerprint {tokenizer.fingerprint}, but the rows were"
      f" prepared with {saved['fingerprint']}. {REBUILD}"
    )
  return tokenizer


def shard_name(split: str, shard: str, field: str) -> str:
  """Returns the file name of one field of a shard."""
  return f"{split}-{shard}.{field}.npy"


def hash_json(value: object) -> str:
  """Returns 16 hex digits of the SHA-256 of canonical JSON."""
  return short_sha256(json.dumps(value, sort_keys=True, separators=(",", ":")))


def data_record(data: bytes) -> dict[str, int]:
  """Returns the record of a file with this content."""
  return {"bytes": len(data), "crc32": zlib.crc32(data)}


def check_files(folder: pathlib.Path, records: Records) -> None:
  """Raises DataError if files differ from their records in the manifest."""
  damaged = []
  for name, record in records.items():
    path = join_inside(folder, name)
    try:
      # The size first, so that no more is read than the manifest says.
      is_whole = _file_size(path) == record["bytes"]
      if not is_whole or file_record(path) != record:
        damaged.append(name)
    except OSError as error:
      damaged.append(f"{name} ({error.strerror or 'missing'})")
  if damaged:
    raise DataError(
      f"{folder}: damaged or missing files: {', '.join(damaged)}. {REBUILD}"
    )


def _file_state(path: pathlib.Path) -> tuple[int, ...]:
  """Returns numbers that change when a file is written to; () for none."""
  try:
    s = path.stat()
  except OSError:
    return ()
  # Copies may restore the time of the last change, but not `st_ctime_ns`.
  return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


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
  if share <= 0.05 + length / 2560:
    return ""
  return (
    f"warning: {share:.1%} of the rows are padding, because documents are"
    f" shorter than length={length}. Set --config.data.layout=packed or a"
    " smaller --config.length, or join documents: document=join chars=NUMBER"
    " in the parts of --config.data.sources, with a larger number if it is set."
  )
