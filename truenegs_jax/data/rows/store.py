"""The store of unfinished rows: a local folder, or a folder in a bucket.

A file appears with its whole content, or not at all.
"""

import contextlib
import functools
import io
import pathlib
import zlib
from typing import Any

import numpy as np

from truenegs_jax.runtime import cache
from truenegs_jax.runtime.errors import DiskError, InputError
from truenegs_jax.runtime.files import atomic_file, remove_folder, short_sha256
from truenegs_jax.runtime.paths import is_bucket, open_path


def open_bucket(url: str, name: str) -> pathlib.Path:
  """Returns the folder `name` in a folder of a bucket, after writing to it."""
  folder = open_path("--store", url)
  if not is_bucket(folder):
    raise InputError(f"--store={url!r} is no URL such as gs://bucket/folder.")
  folder /= f"truenegs-{name}"
  (folder / "probe").write_bytes(b"")
  return folder


def local_folder(folder: pathlib.Path) -> pathlib.Path:
  """Returns the folder itself, or one in the cache for a folder in a bucket.

  Locks and unfinished rows are beside it.
  """
  if not is_bucket(folder):
    return folder
  return cache.folder().resolve() / "rows" / short_sha256(str(folder))


def unfinished_folder(folder: pathlib.Path) -> pathlib.Path:
  """Returns the local store of the rows in `folder`."""
  folder = local_folder(folder)
  return folder.with_name(f".{folder.name}.unfinished")


def measure_unfinished(folder: pathlib.Path) -> tuple[int, int]:
  """Returns the number of shards that are written, and the bytes of rows."""
  temporary = unfinished_folder(folder)
  sizes = [path.stat().st_size for path in temporary.glob("rows/*.npy")]
  return len([*temporary.glob("shard-*.json")]), sum(sizes)


def write_file(path: pathlib.Path, *buffers: Any) -> dict[str, int]:
  """Writes a file, also while others do; returns its size and CRC-32."""
  with atomic_file(path, several_writers=True) as file:
    file.writelines(buffers)
  crc = functools.reduce(lambda crc, x: zlib.crc32(x, crc), buffers, 0)
  return {"bytes": sum(memoryview(x).nbytes for x in buffers), "crc32": crc}


def read_arrays(path: pathlib.Path, *names: str) -> dict[str, np.ndarray]:
  """Returns saved arrays; DiskError if the file is damaged, and so removed."""
  data = path.read_bytes()
  try:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
      return {name: arrays[name] for name in names}
  except Exception as error:  # numpy, zipfile and zlib raise unrelated types
    path.unlink(missing_ok=True)
    raise DiskError(
      f"{path}: damaged ({error}). Run the same command again to count again."
    ) from error


def remove_store(folder: pathlib.Path) -> None:
  """Removes a folder with all its files, as far as possible."""
  with contextlib.suppress(Exception):
    remove_folder(folder)
