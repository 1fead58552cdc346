"""The store of unfinished rows: a local folder, or a folder in a bucket.

A bucket is a `UPath`, which has the methods of `pathlib.Path` that are used. A
file appears with its whole content, or not at all.
"""

import contextlib
import functools
import io
import pathlib
import shutil
import zlib
from typing import Any

import numpy as np

from truenegs_jax.data.corpus import files
from truenegs_jax.runtime.errors import DiskError, InputError
from truenegs_jax.runtime.files import atomic_file


def open_bucket(url: str, name: str) -> Any:
  """Returns the folder `name` in a folder of a bucket, after writing to it."""
  if not files.is_url(url):
    raise InputError(f"--store={url!r} is no URL such as gs://bucket/folder.")
  try:
    from upath import UPath
  except ImportError as error:
    message = f"--store={url} needs pip install '.[beam]' in the checkout."
    raise InputError(message) from error
  with files.convert_errors(url):
    # Other machines write, too: a listing may not be kept.
    folder = UPath(url, use_listings_cache=False) / f"truenegs-{name}"
    (folder / "probe").write_bytes(b"")
  return folder


def unfinished_folder(folder: pathlib.Path) -> pathlib.Path:
  """Returns the local store of the rows in `folder`."""
  return folder.with_name(f".{folder.name}.unfinished")


def measure_unfinished(folder: pathlib.Path) -> tuple[int, int]:
  """Returns the number of shards that are written, and the bytes of rows."""
  temporary = unfinished_folder(folder)
  sizes = [path.stat().st_size for path in temporary.glob("rows/*.npy")]
  return len([*temporary.glob("shard-*.json")]), sum(sizes)


def write_file(path: pathlib.Path, *buffers: Any) -> dict[str, int]:
  """Writes a file of a store; returns its size and CRC-32.

  Other processes may write the same file at the same time.
  """
  if isinstance(path, pathlib.Path):
    with atomic_file(path, several_writers=True) as file:
      file.writelines(buffers)
  else:
    with files.convert_errors(str(path)):
      path.write_bytes(b"".join(buffers))
  crc = functools.reduce(lambda crc, x: zlib.crc32(x, crc), buffers, 0)
  return {"bytes": sum(memoryview(x).nbytes for x in buffers), "crc32": crc}


def read_file(path: pathlib.Path) -> bytes:
  """Returns the content of a file of a store."""
  if isinstance(path, pathlib.Path):
    return path.read_bytes()
  with files.convert_errors(str(path)):
    return path.read_bytes()


def read_arrays(path: pathlib.Path, *names: str) -> dict[str, np.ndarray]:
  """Returns saved arrays; DiskError if the file is damaged, and so removed."""
  data = read_file(path)
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
  if isinstance(folder, pathlib.Path):
    shutil.rmtree(folder, ignore_errors=True)
  else:
    with contextlib.suppress(Exception):
      folder.fs.rm(folder.path, recursive=True)
