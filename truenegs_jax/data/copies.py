"""Copies a rows folder in a bucket to this machine, before a run starts.

  rows = open_rows(copy_rows("gs://bucket/rows/mine"), "train")

The copy is in `rows-copies` of the cache, named by a hash of the manifest, and
is a rows folder like any other. A later start on this machine finds it there.
"""

import concurrent.futures
import contextlib
import functools
import json
import pathlib
import shutil
import zlib
from collections.abc import Mapping

from truenegs_jax.data import rows as rows_folder
from truenegs_jax.runtime import cache, progress
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.files import atomic_file, disk_errors, lock_folder
from truenegs_jax.runtime.paths import is_bucket, join_inside, open_path

COPIERS = 4  # threads, each with a file in memory, some 50 MB
Records = Mapping[str, Mapping[str, int]]  # of the manifest, by name of file


def copy_rows(folder: str | pathlib.Path) -> pathlib.Path:
  """Returns a local rows folder: the folder itself, or its complete copy.

  Of several processes of a machine, one copies and the others wait for it.
  After a kill, the files that are whole are kept.

  Raises:
    DataError: a file in the bucket is damaged or missing.
    InputError: the disk of the cache lacks room.
  """
  source = open_path("data.rows", folder)
  if not is_bucket(source):
    return source
  manifest = rows_folder.read_manifest(source)
  key = rows_folder.hash_json(manifest)
  copy = cache.folder().resolve() / "rows-copies" / key
  path = copy / rows_folder.MANIFEST
  if path.exists() and not _find_missing(copy, manifest["files"]):
    return copy
  with lock_folder(copy):
    with disk_errors(copy):
      copy.mkdir(exist_ok=True)
    missing = _find_missing(copy, manifest["files"])
    if missing:  # no other process copied them meanwhile
      _check_room(source, copy, missing)
      _copy_files(source, copy, missing)
    with atomic_file(path) as file:
      file.write(json.dumps({**manifest, "checksum": key}).encode())
  return copy


def _find_missing(copy: pathlib.Path, records: Records) -> Records:
  """Returns the records of files that are not copied yet.

  A file appears when it was copied and verified. `Verification` finds damage
  that came later, as in any rows folder.
  """
  missing = {}
  for name, record in records.items():
    path = join_inside(copy, name)
    if not path.exists() or path.stat().st_size != record["bytes"]:
      missing[name] = record
  return missing


def _check_room(
  source: pathlib.Path, copy: pathlib.Path, missing: Records
) -> None:
  needed = sum(record["bytes"] for record in missing.values()) / 1e9
  free = shutil.disk_usage(copy).free / 1e9
  if needed > free:
    raise InputError(
      f"data.rows='{source}' needs {needed:,.3g} GB for its copy in '{copy}',"
      f" but the disk has {free:,.3g} GB. Free some space, or set"
      " TRUENEGS_CACHE=FOLDER of a larger disk."
    )


def _copy_files(
  source: pathlib.Path, copy: pathlib.Path, missing: Records
) -> None:
  """Copies files in threads."""
  text = f"Copying rows from '{source}'"
  console = progress.log_console()
  write = functools.partial(_copy_file, source, copy)
  with (
    progress.counting(console, text, len(missing)) as advance,
    concurrent.futures.ThreadPoolExecutor(COPIERS) as pool,
  ):
    for _ in pool.map(write, missing, missing.values()):
      advance()


def _copy_file(
  source: pathlib.Path, copy: pathlib.Path, name: str, record: Mapping[str, int]
) -> None:
  """Copies a file; DataError if it is not as the manifest says."""
  path = join_inside(source, name)
  data = b""
  with contextlib.suppress(FileNotFoundError):
    data = path.read_bytes()
  if {"bytes": len(data), "crc32": zlib.crc32(data)} != record:
    raise DataError(f"{path}: damaged or missing. {rows_folder.REBUILD}")
  with atomic_file(join_inside(copy, name)) as file:
    file.write(data)
