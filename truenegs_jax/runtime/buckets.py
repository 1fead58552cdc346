"""Files and folders in buckets, gs:// and s3://, by the methods of a path.

  folder = open_path("gs://bucket/runs/mine")  # of `runtime.files`
  (folder / "config.json").read_bytes()

An object appears with its whole content. A failed request is repeated for some
minutes. `etils.epath`, and so Orbax, takes these paths as they are; its own
class has the methods that are missing here.

A folder of several files is whole when its MANIFEST is, which `upload_folder`
writes last and `download_files` compares with the files.

Imported only where a URL is opened.
"""

import contextlib
import errno
import functools
import hashlib
import json
import os
import pathlib
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import fsspec
import tensorstore as ts
from etils import epath
from etils.epath import backend

from truenegs_jax.runtime import errors

Result = TypeVar("Result")
MANIFEST = "files.json"  # {"files": {name: SHA-256}} of a folder
REPEAT_SECS = 180.0  # for which a failing request is repeated
MAX_PAUSE_SECS = 16.0
# Answers, not failures: each is the same when the request is repeated.
ANSWERS = (FileExistsError, FileNotFoundError, errors.TrueNegsError)
# Fields of a listing that change with a file; servers have some of them.
LISTED = ("size", "ETag", "etag", "crc32c")


def repeat(url: str, action: Callable[[], Result]) -> Result:
  """Calls `action`, again with growing pauses if a request failed.

  Raises one of ANSWERS, InputError if a package, the bucket or the right to use
  it is missing, or DiskError if it could not be reached for REPEAT_SECS.
  """
  end, pause = time.monotonic() + REPEAT_SECS, 0.5
  while True:
    try:
      return action()
    except (*ANSWERS, IsADirectoryError, NotADirectoryError):
      raise
    except Exception as error:  # the file systems raise two dozen types
      if getattr(error, "errno", None) == errno.ENOSPC:  # of a local file
        raise
      if is_final(error):
        raise explain(url, error) from error
      if time.monotonic() > end:
        raise errors.DiskError(
          f"'{url}' could not be reached for {REPEAT_SECS / 60:.0f} minutes"
          f" ({describe(error)}). All that was saved before is intact. Run the"
          " same command again."
        ) from error
    time.sleep(pause * random.uniform(0.5, 1))
    pause = min(2 * pause, MAX_PAUSE_SECS)


def is_final(error: Exception) -> bool:
  """Whether a request would fail again: no access, bucket or package."""
  kinds = "DefaultCredentialsError", "NoCredentialsError"
  is_known = isinstance(error, ImportError | PermissionError)
  text = str(error)
  is_denied = bool(re.search("^Forbidden|PERMISSION_DENIED|NOT_FOUND", text))
  is_denied &= "http_response_code='401'" not in text  # expired, renewed soon
  return is_known or is_denied or type(error).__name__ in kinds


def explain(url: str, error: Exception) -> errors.InputError:
  """Returns the error for a URL that this user cannot use."""
  if isinstance(error, ImportError):
    return errors.missing_package(url, error)
  _, access = errors.SCHEMES[url.partition("://")[0]]
  return errors.InputError(
    f"'{url}' cannot be used ({describe(error)}). Correct the name, get the"
    " right to list, read, write and delete its objects (Google's role Storage"
    f" Object User), or {access}."
  )


def describe(error: Exception) -> str:
  """Returns type and message of a library's error on one line."""
  return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _repeated(method: Callable[..., Any]) -> Callable[..., Any]:
  """Repeats a method of epath; an iterator becomes a list."""

  @functools.wraps(method)
  def call(path: Any, *args: Any, **kwargs: Any) -> Any:
    def act() -> Any:
      result = method(path, *args, **kwargs)
      return list(result) if isinstance(result, Iterator) else result

    return repeat(str(path), act)

  return call


def open_system(scheme: str) -> Any:
  """Opens the file system of gs or s3, which other machines write to, too.

  fsspec keeps it for the next call.
  """
  if scheme == "gs":
    # The class of the package gcsfs asks for the kind of each bucket, again and
    # again if this user has no right to know it.
    from gcsfs.core import GCSFileSystem

    return GCSFileSystem(use_listings_cache=False)
  return fsspec.filesystem(scheme, use_listings_cache=False)


class _Backend(type(backend.fsspec_backend)):  # type: ignore[misc]
  """Makes epath use `open_system`."""

  def fs(self, path: str | os.PathLike[str]) -> Any:
    return open_system(os.fspath(path).partition("://")[0])


_Path: Any = type(epath.Path("/"))


class BucketPath(_Path):
  """A file or folder in a bucket."""

  _backend = _Backend()
  exists = _repeated(_Path.exists)
  is_dir = _repeated(_Path.is_dir)
  stat = _repeated(_Path.stat)
  unlink = _repeated(_Path.unlink)
  rmtree = _repeated(_Path.rmtree)

  def iterdir(self) -> Iterator[Any]:
    """Yields files and folders without MANIFEST; none if it is missing."""
    with contextlib.suppress(FileNotFoundError):
      for path in _repeated(_Path.iterdir)(self):
        if path.name != MANIFEST:
          yield path

  def glob(self, pattern: str) -> Iterator[Any]:
    """Yields what matches a pattern without "**"."""
    with contextlib.suppress(FileNotFoundError):  # no such bucket
      yield from _repeated(_Path.glob)(self, pattern)

  def rename(self, target: Any) -> None:
    """Copies all objects of a folder, then removes it."""
    for name in self.find():
      paths = str(self / name), str(target / name)
      repeat(str(target), functools.partial(self.system.cp_file, *paths))
    self.rmtree(missing_ok=True)  # the answer to a try may be lost

  def find(self) -> list[str]:
    """Returns the names of all objects, with those in subfolders."""
    start = len(str(self).partition("://")[2]) + 1
    with contextlib.suppress(FileNotFoundError):  # no such bucket
      names = repeat(str(self), lambda: self.system.find(str(self)))
      return [name[start:] for name in names]
    return []

  def is_file(self) -> bool:
    """Returns whether there is such an object."""
    return repeat(str(self), lambda: self.system.isfile(str(self)))

  def mkdir(self, *args: Any, **kwargs: Any) -> None:
    """Does nothing, since buckets have no folders."""

  def resolve(self, *, strict: bool = False) -> "BucketPath":
    """Returns the path itself."""
    del strict
    return self

  absolute = expanduser = resolve

  @property
  def system(self) -> Any:
    """The file system of fsspec."""
    return open_system(self._uri_scheme)

  def read_bytes(self) -> bytes:
    """Reads an object; epath's method needs four requests."""
    return repeat(str(self), lambda: self.system.cat_file(str(self)))

  def read_text(self, encoding: str | None = None) -> str:
    """Reads an object with UTF-8."""
    return self.read_bytes().decode(encoding or "utf-8")

  def write_text(self, text: str) -> int:
    """Writes an object with UTF-8."""
    return self.write_bytes(text.encode())

  def write_bytes(self, data: bytes) -> int:
    """Writes an object as a whole."""
    self._write(lambda: self.system.pipe_file(str(self), data))
    return len(data)

  def upload(self, file: pathlib.Path) -> None:
    """Writes an object with the content of a local file."""
    self._write(lambda: self.system.put_file(str(file), str(self)))

  def _write(self, action: Callable[[], object]) -> None:
    try:
      repeat(str(self), action)
    except FileNotFoundError as error:  # no such bucket
      raise explain(str(self), error) from error

  def download(self, file: pathlib.Path) -> None:
    """Writes the object to a local file."""
    repeat(str(self), lambda: self.system.get_file(str(self), str(file)))

  def list_files(self) -> dict[str, Any]:
    """Returns the files of a folder with values that change when they do.

    They are the manifest's, or listed if something else wrote the folder.
    Raises InputError if it is being written.
    """
    files: Any = None
    try:
      files = json.loads((self / MANIFEST).read_bytes())["files"]
    except FileNotFoundError:
      url = str(self)
      listed = repeat(url, lambda: self.system.ls(url, detail=True))
      files = {
        pathlib.PurePath(x["name"]).name: [x.get(field) for field in LISTED]
        for x in listed
        if x["type"] == "file"
      }
    except (LookupError, TypeError, ValueError):  # of a stranger
      pass
    if not isinstance(files, dict) or any("/" in x or x == ".." for x in files):
      raise _incomplete(self)
    return files

  def download_files(self, files: Mapping[str, Any], to: pathlib.Path) -> None:
    """Copies some of `list_files`; InputError if one is not as listed."""
    for name, expected in files.items():
      try:
        (self / name).download(to / name)
      except FileNotFoundError as e:
        raise _incomplete(self) from e
      if isinstance(expected, str) and _hash_file(to / name) != expected:
        raise _incomplete(self)


def open_store(folder: BucketPath) -> ts.KvStore:
  """Opens a folder for reads and writes on conditions, with TensorStore."""
  url = str(folder)
  scheme, _, rest = url.partition("://")
  bucket, _, path = rest.partition("/")
  driver = {"gs": "gcs", "s3": "s3"}[scheme]
  spec = {"driver": driver, "bucket": bucket, "path": f"{path}/"}
  endpoint = os.environ.get("AWS_ENDPOINT_URL")
  if endpoint and driver == "s3":
    spec |= {"endpoint": endpoint, "aws_region": "us-east-1"}
  retries = {"max_retries": 6, "initial_delay": "1s", "max_delay": "32s"}
  context = ts.Context({f"{driver}_request_retries": retries})
  return repeat(url, lambda: ts.KvStore.open(spec, context=context).result())


def upload_folder(source: pathlib.Path, folder: BucketPath) -> None:
  """Writes a local folder with its subfolders, each with its manifest.

  Until it is complete, and after a kill, the manifest says that it is not.
  Files of an earlier folder that have no successor are kept, but not listed.
  """
  files: dict[str, str] = {}
  path = folder / MANIFEST
  path.write_bytes(json.dumps({"files": None}).encode())
  for entry in sorted(source.iterdir()):
    if entry.is_dir():
      upload_folder(entry, folder / entry.name)
    else:
      (folder / entry.name).upload(entry)
      files[entry.name] = _hash_file(entry)
  path.write_bytes(json.dumps({"files": files}, indent=1).encode())


def _incomplete(folder: BucketPath) -> errors.InputError:
  return errors.InputError(
    f"'{folder}' is incomplete: it is being written, or its writer was stopped."
    " Wait for the writer, or run it again. If you changed its files yourself,"
    f" remove {MANIFEST} there."
  )


def _hash_file(path: pathlib.Path) -> str:
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
