"""Copies the shards of a rows folder in a bucket to this machine.

They are copied once, in threads, to `rows-copies/FINGERPRINT` of the cache,
where a later start finds them. Rows of a shard that is not there yet are read
by range. Their checksums are kept and compared with the shard when it is there,
and in any case before the next save.

  copies = Copies(open_path("data.rows", "gs://bucket/rows/mine"))
  rows = open_rows("gs://bucket/rows/mine", "train", copies)
"""

import array
import contextlib
import dataclasses
import pathlib
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from truenegs_jax.config.sections import Data
from truenegs_jax.data.rows import rows_folder
from truenegs_jax.data.rows.rows_folder import REBUILD, RowFile, Verification
from truenegs_jax.runtime import cache
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.files import atomic_file
from truenegs_jax.runtime.paths import is_bucket, open_path

COPIERS = 4  # threads, each with a file in memory, some 50 MB
GAP_BYTES = 2**15  # between two rows that are read at once
ABANDONED_SECS = 3600.0  # after which a temporary file has no process
FIX = "Remove this folder, which is a copy, and run the same command again."


@dataclasses.dataclass(frozen=True, eq=False)
class RemoteFile:
  """A file of rows in a bucket."""

  path: Any  # a BucketPath
  shape: tuple[int, int]
  dtype: np.dtype
  start: int  # of the first row, in bytes
  row_bytes: int


Requests = Sequence[tuple[RemoteFile, int]]


def open_verification(
  folder: str | pathlib.Path,
  divide: Callable[[str], tuple[int, int]] = lambda _: (0, 1),
  **room: Any,
) -> Verification:
  """Begins to verify a rows folder, and to copy one in a bucket.

  `room` is `cache_gb` and `block_shards` of `Copies`.
  """
  path = open_path("data.rows", folder)
  if is_bucket(path):
    return Copies(path, divide, **room)
  return Verification(path, divide)


class Copies(Verification):
  """Copies of the shards of a rows folder, each verified when it arrives.

  Several processes of a machine share the folder: each copies its share. All
  copies may take `cache_gb` of the disk. With `block_shards`, for rows in
  blocks, those of two blocks are kept.
  """

  def __init__(
    self,
    folder: Any,
    divide: Callable[[str], tuple[int, int]] = lambda _: (0, 1),
    cache_gb: float = Data.cache_gb,
    block_shards: int = 0,
  ) -> None:
    self._source = folder
    manifest = rows_folder.read_manifest(folder)
    is_small = manifest["tokenizer"]["size"] <= 2**16
    self._token_dtype = np.dtype(np.uint16 if is_small else np.uint32)
    names = filter(rows_folder.is_shard_name, manifest["files"])
    self._records = {name: manifest["files"][name] for name in names}
    name = manifest["fingerprint"] + "-blocks" * bool(block_shards)
    folder = cache.folder().resolve() / "rows-copies" / name
    folder.mkdir(parents=True, exist_ok=True)
    self._files: dict[str, RemoteFile] = {}
    self._opened: dict[str, RowFile] = {}  # copies
    # Of each file: index << 32 | CRC-32 of the rows that were read by range.
    self._pending: dict[str, array.array[int]] = {}
    self._lock = threading.Lock()  # of `_pending`
    self._share: tuple[int, int] | None = None
    # Held-out rows are evaluated soon. Types and documents save most requests
    # per byte.
    self._kept = sorted(
      (x for x in self._records if not block_shards or "held_out" in x),
      key=lambda x: ("held_out" not in x, "tokens" in x, x),
    )
    num_shards = len(manifest["splits"]["train"]["shards"])
    self._check_room(folder, cache_gb, block_shards, num_shards)
    super().__init__(folder, divide)

  def open_file(self, path: Any, shape: tuple[int, int]) -> RemoteFile:
    """Returns a file of rows by its path in the bucket."""
    dtype = self._token_dtype if ".tokens." in path.name else np.dtype(np.uint8)
    size = shape[1] * dtype.itemsize
    start = self._records[path.name]["bytes"] - shape[0] * size
    file = RemoteFile(path, shape, dtype, start, size)
    return self._files.setdefault(path.name, file)

  def read(self, requests: Requests) -> Iterable[np.ndarray]:
    """Reads rows, from copies or by range."""
    copies = {file: self._open_copy(file) for file in {x[0] for x in requests}}
    missing = {x for x in requests if not copies[x[0]]}
    fetched = self._fetch(missing) if missing else {}
    for file, index in requests:
      if copy := copies[file]:
        yield copy.read(index)
      else:
        yield np.frombuffer(fetched[file, index], file.dtype)

  def settle(self) -> None:
    """Waits until rows that were read by range are compared with their files.

    Raises DataError if one differs, or the error that prevents the comparison.
    """
    if self._pending and not self.error:
      self._thread.join()
    if self._pending or isinstance(self.error, DataError):
      self.check()
    for name in list(self._pending):  # of another process, or removed
      self._compare(name)

  def keep(self, names: Sequence[str]) -> None:
    """Copies these files of shards, and removes others.

    Held-out rows, and files with which rows must be compared, are kept, too.
    """
    held_out = [x for x in self._records if "held_out" in x]
    # The first block of the next epoch may have shards of this one.
    if (names := [*dict.fromkeys([*names, *held_out])]) == self._kept:
      return
    self._kept, before = names, self._thread

    def follow() -> None:
      before.join()
      self._run()

    self._thread = threading.Thread(target=follow, daemon=True)
    self._thread.start()

  @property
  def is_complete(self) -> bool:
    """Whether the share is copied and intact, with all rows read so far."""
    return not self._pending and super().is_complete

  def _run(self, names: Iterable[str] = ()) -> None:
    try:
      names = iter(names or self._choose_files())  # which threads share
    except Exception as error:  # raised by `check`
      self.error = error
      return
    run = super()._run
    threads = [
      threading.Thread(target=run, args=[names], daemon=True)
      for _ in range(COPIERS)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()

  def _choose_files(self) -> Sequence[str]:
    self._remove_others()
    if self._share is None:
      number = self._folder.stat().st_ino
      identity = rows_folder.identify_files(self._folder, ())
      text = rows_folder.hash_json([identity, number])
      self._share = self._divide(text)
    index, count = self._share
    names = self._kept[index::count]
    return sorted(names, key=lambda x: (self._folder / x).exists())

  def _verify(self, name: str, fix: str = FIX) -> None:
    """Copies a file, or verifies its copy of an earlier start."""
    if name in self._kept and not self.error:
      if self._states[name]:
        super()._verify(name, fix)
      else:
        self._copy(name)
        self._states[name] = rows_folder.file_state(self._folder / name)
      self._compare(name)

  def _copy(self, name: str) -> None:
    path, data = self._source / name, b""
    with contextlib.suppress(FileNotFoundError):
      data = path.read_bytes()
    if {"bytes": len(data), "crc32": zlib.crc32(data)} != self._records[name]:
      raise DataError(f"{path}: damaged or missing. {REBUILD}")
    with atomic_file(self._folder / name, several_writers=True) as file:
      file.write(data)

  def _compare(self, name: str) -> None:
    if not (entries := self._pending.get(name)):
      return
    count = len(entries)  # more may be added
    copy = self._open_copy(self._files[name])
    while copy is None:
      self._copy(name)
      copy = self._open_copy(self._files[name])
    for index, crc in (divmod(entry, 2**32) for entry in entries[:count]):
      if zlib.crc32(copy.read(index).tobytes()) != crc:
        raise DataError(
          f"{self._source / name}: row {index} was read with other bytes than"
          " the file has. Steps that were not saved may have learned from it,"
          " and are lost. Run the same command again."
        )
    with self._lock:  # only now, so that `settle` waits for it
      if left := self._pending.pop(name, array.array("Q"))[count:]:
        self._pending[name] = left

  def _open_copy(self, file: RemoteFile) -> RowFile | None:
    name = file.path.name
    if name not in self._opened and (self._folder / name).exists():
      try:
        self._opened[name] = RowFile(self._folder / name, file.shape)
      except DataError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
          raise
        return None  # another process has just removed it
    return self._opened.get(name)

  def _fetch(
    self, requests: Iterable[tuple[RemoteFile, int]]
  ) -> dict[tuple[RemoteFile, int], bytes]:
    """Reads rows by range, neighbours at once; keeps their checksums."""
    from truenegs_jax.runtime import buckets  # imports file systems

    spans: list[list[tuple[RemoteFile, int]]] = []
    for file, index in sorted(requests, key=lambda x: (x[0].path.name, x[1])):
      last, at = spans[-1][-1] if spans else (None, 0)
      if last is file and (index - at) * file.row_bytes <= GAP_BYTES:
        spans[-1].append((file, index))
      else:
        spans.append([(file, index)])
    starts = [x[0][0].start + x[0][1] * x[0][0].row_bytes for x in spans]
    stops = [x[0][0].start + (x[-1][1] + 1) * x[0][0].row_bytes for x in spans]
    paths = [x[0][0].path for x in spans]
    try:
      blocks = buckets.read_ranges([*zip(paths, starts, stops, strict=True)])
    except FileNotFoundError as error:
      raise DataError(f"{error}: missing. {REBUILD}") from error
    rows = {}
    for span, start, block in zip(spans, starts, blocks, strict=True):
      for file, index in span:
        at = file.start + index * file.row_bytes - start
        row = rows[file, index] = block[at : at + file.row_bytes]
        if len(row) < file.row_bytes:
          raise DataError(f"{file.path}: was cut off. {REBUILD}")
        with self._lock:
          entries = self._pending.setdefault(file.path.name, array.array("Q"))
          entries.append(index << 32 | zlib.crc32(row))
    return rows

  def _remove_others(self) -> None:
    """Removes copies that are not kept, and what killed processes left."""
    kept = {*self._kept, *self._pending}
    for path in self._folder.iterdir():
      with contextlib.suppress(FileNotFoundError):
        is_old = time.time() - path.stat().st_mtime > ABANDONED_SECS
        is_shard = rows_folder.is_shard_name(path.name)
        if path.name not in kept and (is_shard or is_old):
          self._opened.pop(path.name, None)
          path.unlink()

  def _check_room(
    self,
    folder: pathlib.Path,
    cache_gb: float,
    block_shards: int,
    num_shards: int,
  ) -> None:
    total = sum(x["bytes"] for x in self._records.values()) / 1e9

    def need(block_shards: int) -> float:  # for shards of about one size
      return total * min(1, 2 * block_shards / num_shards)

    size = need(block_shards) if block_shards else total
    present = sum(x.stat().st_size for x in folder.glob("*.npy"))
    free = (shutil.disk_usage(folder).free + present) / 1e9
    if size <= min(cache_gb, free):
      return
    way = "a smaller --config.data.block_shards=NUMBER"
    if not block_shards:
      size_of_blocks = need(Data.block_shards)
      way = f"--config.data.order=blocks, which needs {size_of_blocks:,.3g} GB"
    raise InputError(
      f"data.rows='{self._source}' needs {size:,.3g} GB of the cache, but"
      f" data.cache_gb={cache_gb:g}, and the disk of '{folder}' has"
      f" {free:,.3g} GB. Set a larger --config.data.cache_gb=NUMBER,"
      f" TRUENEGS_CACHE=FOLDER of a larger disk, or {way}."
    )
