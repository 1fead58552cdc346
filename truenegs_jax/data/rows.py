"""Reads and verifies rows folders: rows of tokens on disk.

A rows folder contains, per split ("train", "held_out") and shard,
`<split>-00000.{tokens,types,documents}.npy`; `vocab.txt`, or `tokenizer.json`
and its config; `unigram_V.npy`, the counts of each entry in the training split;
and `manifest.json`, which describes all of this and is written last.

  rows = open_rows("rows", "train")
  rows.take(np.arange(8))["tokens"]  # int32 [8, L]
"""

import dataclasses
import errno
import functools
import io
import json
import os
import pathlib
import re
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.config.keys import flatten
from truenegs_jax.data.tokenizer import (
  FILES,
  HUB_FILES,
  Tokenizer,
  load_tokenizer,
)
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import FAILING, DataError, InputError, one_of
from truenegs_jax.runtime.files import file_record, read_json, short_sha256
from truenegs_jax.runtime.paths import is_bucket, join_inside, open_path

VERSION = 5
SPLITS = ("train", "held_out")
FIELDS = ("tokens", "types", "documents")
REBUILD = "Remove the folder and run the command again that wrote it."
MANIFEST = "manifest.json"  # written last
UNIGRAMS = "unigram_V.npy"
OTHER_FILES = (UNIGRAMS, *HUB_FILES)  # beside shards
VERIFYING_SHARE = 0.02  # of the processor time of the machine
BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")  # of this machine
MOUNTS = pathlib.Path("/proc/self/mountinfo")
# Types of file systems whose files are the same on all machines.
NETWORK_TYPES = "nfs4?|lustre|gpfs|beegfs|ceph|wekafs|cifs|smb3"


@dataclasses.dataclass(frozen=True)
class RowsOptions:
  """Everything that decides the content of a rows folder."""

  # `Corpus.identity()`: names, sizes and times of files, weights.
  sources: list[dict[str, Any]]
  vocabulary: str  # the fingerprint of the tokenizer, or "train:SIZE"
  lowercase: bool
  strip_accents: bool
  length: int
  layout: str = "electra"
  overflow: str = "carry"
  held_out: float = 0.01  # the share of the documents to hold out, 0 to 0.5
  seed: int = 0


class Verification:
  """Compares the checksums of a rows folder in a thread, while it is read.

  A folder can have hundreds of GB; 10 GB take about a minute on 2 cores. Each
  batch has rows of all shards, so no order of the files would be better.

  Args:
    divide: Gets a text that is the same in all processes that read the same
      files. Returns (i, n) to verify the i-th of n shares of them.
  """

  def __init__(
    self,
    folder: str | pathlib.Path,
    divide: Callable[[str], tuple[int, int]] = lambda _: (0, 1),
  ) -> None:
    self._folder = pathlib.Path(folder)
    self._divide = divide
    self.error: Exception | None = None  # for damage that was found so far
    self._states: dict[str, tuple[int, ...]] = {}  # of verified files
    self._is_urgent = threading.Event()
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  @property
  def is_complete(self) -> bool:
    """Whether the share is verified, intact and unchanged since then."""
    is_done = not (self._thread.is_alive() or self.error)
    return is_done and not self._find_changed()

  def check(self) -> None:
    """Raises DataError if damage was found so far."""
    if self.error:
      raise self.error

  def finish(self) -> None:
    """Verifies other and changed files at full speed; DataError for damage."""
    self._is_urgent.set()
    self._thread.join()
    if changed := self._find_changed():
      self._run(changed)
    self.check()

  def _find_changed(self) -> list[str]:
    """Finds files that were written to after their verification began."""
    states = {name: file_state(self._folder / name) for name in self._states}
    # A removed file is still open.
    return [x for x in states if states[x] not in ((), self._states[x])]

  def _pause(self, secs: float) -> None:
    share = min(1.0, VERIFYING_SHARE * (os.cpu_count() or 1))
    self._is_urgent.wait(secs * (1 / share - 1))

  def _run(self, names: Iterable[str] = ()) -> None:
    try:
      for name in names or self._choose_files():
        self._states[name] = file_state(self._folder / name)
        check_files(self._folder, {name: self._records[name]}, self._pause)
    except Exception as error:  # raised by `check`
      self.error = error

  def _choose_files(self) -> Sequence[str]:
    records = self._records = read_manifest(self._folder)["files"]
    index, count = self._divide(identify_files(self._folder, records))
    # Dealt out by size, so that all shares have as many bytes.
    names = sorted(records, key=lambda x: -records[x]["bytes"])
    return sorted(names[index::count])


class RowFile:
  """An open file of rows.

  It is not mapped into memory, because the system ends a process whose mapped
  files are lost. A read of a lost file raises an OSError.
  """

  def __init__(self, path: pathlib.Path, shape: tuple[int, int]) -> None:
    self.path = path
    try:
      with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        *layout, self._dtype = np.lib.format.read_array_header_1_0(file)
        self._start = file.tell()
        self._row_bytes = shape[1] * self._dtype.itemsize
        size = os.fstat(file.fileno()).st_size
        end = self._start + shape[0] * self._row_bytes
        expected = [(1, 0), shape, False, "u", end]
        if [version, *layout, self._dtype.kind, size] != expected:
          raise ValueError(f"{size:,} bytes of {layout[0]} {self._dtype}")
        self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
    except Exception as error:  # numpy compiles a damaged header as Python
      if isinstance(error, OSError) and error.errno in (*FAILING, errno.EMFILE):
        raise
      raise DataError(f"{path}: cannot be read ({error}). {REBUILD}") from error

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
  # Of each shard: tokens_RxL (uint16 or uint32), types_RxL and documents_RxL
  # (uint8); empty if it has no rows.
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

  def take(
    self, row_B: np.ndarray, fields: Sequence[str] = FIELDS
  ) -> dict[str, np.ndarray]:
    """Returns rows by index: tokens, types and documents, int32 [B, L].

    Raises DataError if a value is out of range.
    """
    shard_B = np.searchsorted(self.starts, row_B, side="right") - 1
    files = [self.shards[shard] for shard in shard_B]
    indices = (row_B - self.starts[shard_B]).tolist()
    batch = {}
    for field in fields:
      number = FIELDS.index(field)
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


def rows_fingerprint(options: RowsOptions) -> str:
  """Returns 16 hex digits of a hash of everything that decides the rows."""
  return hash_json({"version": VERSION, **dataclasses.asdict(options)})


def read_manifest(folder: str | pathlib.Path) -> dict[str, Any]:
  """Reads a manifest; DataError if it is missing, damaged or too old."""
  path = open_path("data.rows", folder) / MANIFEST
  if not path.exists():
    raise DataError(
      f"'{folder}' is not a rows folder: it has no {path.name}. Run"
      f" `{errors.program()} prepare --config=FILE` to prepare it."
    )
  with read_json(path, DataError, REBUILD) as manifest:
    if manifest.pop("checksum") != hash_json(manifest):
      raise ValueError("changed or damaged")
    if manifest["version"] != VERSION:
      raise ValueError(f"not of version {VERSION}")
    if not re.fullmatch("[0-9a-f]{16}", manifest["fingerprint"]):
      raise ValueError("its fingerprint is not 16 hex digits")
    for name, record in manifest["files"].items():
      if name not in OTHER_FILES and not is_shard_name(name):
        raise ValueError(f"{name[:100]!r} is no file of rows")
      if [type(record[key]) for key in ("bytes", "crc32")] != [int, int]:
        raise TypeError(name)
  return manifest


def open_rows(folder: str | pathlib.Path, split: str) -> Rows:
  """Opens a split; checks the sizes of files, not their content.

  Of rows in a bucket, it opens the copy that `copies.copy_rows` makes.
  """
  one_of("split", split, SPLITS)
  folder = open_path("data.rows", folder)
  if is_bucket(folder):
    raise InputError(f"'{folder}' is opened after copies.copy_rows.")
  manifest = read_manifest(folder)
  counts = manifest["splits"][split]["shards"]
  shards = []
  for number, count in enumerate(counts):
    shape = (count, manifest["options"]["length"])
    names = (shard_name(split, number, x) for x in FIELDS if count)
    shards.append(tuple(RowFile(join_inside(folder, x), shape) for x in names))
  check_files(folder, {UNIGRAMS: manifest["files"][UNIGRAMS]})
  unigram_V = np.load(io.BytesIO((folder / UNIGRAMS).read_bytes()))
  starts = np.cumsum([0, *counts])
  return Rows(folder, split, manifest, tuple(shards), starts, unigram_V)


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


def check_options(folder: str | pathlib.Path, options: RowsOptions) -> None:
  """Raises DataError if a rows folder was prepared with other options."""
  saved = _flatten_options(read_manifest(folder)["options"])
  expected = _flatten_options(dataclasses.asdict(options))
  differences = ""
  for key in saved | expected:
    if (old := saved.get(key)) != (value := expected.get(key)):
      differences += f"\n  {key}: {str(old):.300} in the folder"
      differences += f", {str(value):.300} now"
  if differences:
    raise DataError(
      f"data.rows='{folder}' was prepared with other options:"
      f"{differences}\nRemove the folder, or set --config.data.rows to"
      " another one."
    )


def _flatten_options(options: dict[str, Any]) -> dict[str, Any]:
  parts = {str(i): part for i, part in enumerate(options["sources"])}
  return flatten(json.loads(json.dumps(options | {"sources": parts})))


def describe_text(manifest: dict[str, Any]) -> list[str]:
  """Describes each part of the text, without names of files and folders."""
  lines = []
  sources = manifest["options"]["sources"]
  for source, part in zip(sources, manifest["parts"], strict=True):
    line = source["source"]
    if "dataset" in source:
      line = "hf:{dataset}, {config} of revision {revision}".format(**source)
    sizes = [x[1] for x in source.get("files", ())] or [*part["files"].values()]
    if sizes:
      count = "1 file" if len(sizes) == 1 else f"{len(sizes):,} files"
      line += f", {count} of {sum(sizes) / 1e6:,.1f} MB"
    if part["records"] not in (None, part["documents"]):
      line += f", {part['records']:,} records"
    size = part["text_bytes"] / 1e6
    lines.append(f"{line}: {part['documents']:,} documents, {size:,.1f} MB")
  return lines


def check_batch_size(rows: Rows, batch_size: int) -> None:
  """Raises DataError if a split has less than one batch."""
  if len(rows) < batch_size:
    raise DataError(
      f"batch_size={batch_size} is more than the {len(rows):,} rows of"
      f" {rows.split!r} in '{rows.folder}'. Add text, or set"
      f" --config.batch_size to at most {len(rows)}."
    )


def padding_warning(manifest: dict[str, Any]) -> str:
  """Returns a warning above 10 % padding at length 128, 25 % at 512; or ""."""
  options = manifest["options"]
  splits = manifest["splits"]
  length = options["length"]
  share = splits["train"]["padding_share"]
  if share <= 0.05 + length / 2560:
    return ""
  num_tokens = sum(split["tokens"] for split in splits.values())
  mean = num_tokens / sum(part["documents"] for part in manifest["parts"])
  joined = [x["join"] for x in options["sources"] if "join" in x]
  join = "document=join chars=N"
  if joined:
    join = f"chars= to more than {max(joined)}"
  fixes = [f"{join} in the parts of --config.data.sources"]
  if options["layout"] != "packed":
    fixes.append("--config.data.layout=packed")
  fixes.append("--config.length to a smaller number")
  return (
    f"warning: {share:.1%} of the rows are padding, because documents are short"
    f" (mean: {mean:,.0f} tokens; length={length}). Set {', or '.join(fixes)}."
  )


def shard_name(split: str, number: int, field: str) -> str:
  """Returns the file name of one field of a shard."""
  return f"{split}-{number:05d}.{field}.npy"


def is_shard_name(name: str) -> bool:
  """Returns whether `shard_name` gives this name to a file."""
  splits = "|".join(SPLITS)
  fields = "|".join(FIELDS)
  pattern = rf"({splits})-[0-9]{{5,9}}\.({fields})\.npy"
  return re.fullmatch(pattern, name) is not None


def hash_json(value: object) -> str:
  """Returns 16 hex digits of the SHA-256 of canonical JSON."""
  return short_sha256(json.dumps(value, sort_keys=True, separators=(",", ":")))


def check_files(
  folder: pathlib.Path,
  records: Mapping[str, dict[str, int]],
  pause: Callable[[float], object] | None = None,
) -> None:
  """Raises DataError if files differ from their records in the manifest."""
  damaged = []
  for name, record in records.items():
    try:
      if file_record(join_inside(folder, name), pause) != record:
        damaged.append(name)
    except OSError as error:
      damaged.append(f"{name} ({error.strerror or 'missing'})")
  if damaged:
    raise DataError(
      f"{folder}: damaged or missing files: {', '.join(damaged)}. {REBUILD}"
    )


def file_state(path: pathlib.Path) -> tuple[int, ...]:
  """Returns numbers that change when a file is written to; () for none."""
  try:
    status = path.stat()
  except OSError:
    return ()
  # Copies may restore the time of the last change, but not `st_ctime_ns`.
  return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def identify_files(folder: pathlib.Path, names: Iterable[str]) -> str:
  """Returns a hash that is equal in processes that read the same files.

  Machines share the files of a network file system if inode numbers and times
  are equal. Other files count as copies, one on each machine: where disks were
  cloned, copies have equal inode numbers and times, too.
  """
  try:
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    pattern = rf"(?m)^\S+ \S+ {number} .* - ({NETWORK_TYPES}) "
    machine = [BOOT_ID.read_text(), number]
    if re.search(pattern, MOUNTS.read_text()):
      machine = []
  except OSError:  # not on Linux
    machine = [secrets.token_hex()]
  return hash_json([machine, [file_state(folder / name) for name in names]])
