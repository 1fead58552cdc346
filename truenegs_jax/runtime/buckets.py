"""Files and folders in buckets, gs:// and s3://, by the methods of a path.

  folder = open_path("gs://bucket/runs/mine")  # of `runtime.paths`
  (folder / "config.json").read_bytes()

A path is one of `etils.epath`, so that Orbax takes it as it is, and fsspec asks
the servers: gcsfs and s3fs repeat failed requests for half a minute or more. An
object appears with its whole content.

Imported only where a URL is opened.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from typing import Any

import fsspec
from etils import epath
from etils.epath import backend

from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import DiskError, InputError, TrueNegsError

# Answers, not failures.
ANSWERS = (
  FileExistsError,
  FileNotFoundError,
  IsADirectoryError,
  NotADirectoryError,
  TrueNegsError,
)
# Messages and types of errors that the same request would have again.
REFUSED = re.compile("^Forbidden|PERMISSION_DENIED|NOT_FOUND")
EXPIRED = "http_response_code='401'"  # of credentials, which are renewed soon
NO_CREDENTIALS = ("DefaultCredentialsError", "NoCredentialsError")


@contextlib.contextmanager
def explain_errors(url: str) -> Iterator[None]:
  """Turns the errors of libraries into those of this package.

  Raises one of ANSWERS, InputError if a package, the bucket or the right to use
  it is missing, or DiskError if it is out of reach.
  """
  try:
    yield
  except ANSWERS:
    raise
  except Exception as error:  # the file systems raise two dozen types
    raise explain(url, error) from error


def explain(url: str, error: Exception) -> TrueNegsError:
  """Returns the error for a URL that cannot be used, now or by this user."""
  if isinstance(error, ImportError):
    return errors.missing_package(url, error)
  text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
  is_final = isinstance(error, FileNotFoundError | PermissionError)
  is_final |= type(error).__name__ in NO_CREDENTIALS
  if REFUSED.search(str(error)) and EXPIRED not in str(error):
    is_final = True
  if not is_final:
    return DiskError(
      f"'{url}' could not be reached ({text}). All that was saved before is"
      " intact. Run the same command again."
    )
  _, access = errors.SCHEMES[url.partition("://")[0]]
  return InputError(
    f"'{url}' cannot be used ({text}). Correct the name, get the right to list,"
    " read, write and delete its objects (Google's role Storage Object User),"
    f" or {access}."
  )


class _System:
  """A file system of fsspec with the errors of this package."""

  def __init__(self, scheme: str) -> None:
    """Opens gs or s3, to which other machines write, too."""
    # fsspec keeps a system for the next call.
    with explain_errors(f"{scheme}://"):
      if scheme == "gs":
        # The class that gcsfs registers asks for the kind of each bucket, again
        # and again if this user has no right to know it.
        from gcsfs.core import GCSFileSystem

        self._system = GCSFileSystem(use_listings_cache=False)
      else:
        self._system = fsspec.filesystem(scheme, use_listings_cache=False)

  def __getattr__(self, name: str) -> Any:
    """Returns a method whose first argument is the URL."""
    method = getattr(self._system, name)

    @functools.wraps(method)
    def call(url: str, *args: Any, **options: Any) -> Any:
      with explain_errors(url):
        return method(url, *args, **options)

    return call


class _Backend(type(backend.fsspec_backend)):  # type: ignore[misc]
  """Makes epath use `_System`."""

  def fs(self, path: str | os.PathLike[str]) -> Any:
    return _System(os.fspath(path).partition("://")[0])


_Path: Any = type(epath.Path("/"))


class BucketPath(_Path):
  """A file or folder in a bucket: epath's, without its faults.

  Its `resolve` takes a URL for a relative path, `is_dir` takes a bucket out of
  reach for none, `mkdir` needs the right to see the bucket, reading asks for
  the size before, and `rename` asks ten times.
  """

  _backend = _Backend()

  @property
  def system(self) -> Any:
    """The file system of fsspec."""
    return self._backend.fs(self)

  def resolve(self, *, strict: bool = False) -> "BucketPath":
    """Returns the path itself."""
    del strict
    return self

  absolute = expanduser = resolve

  def mkdir(self, *args: Any, **kwargs: Any) -> None:
    """Does nothing, since buckets have no folders."""

  def is_dir(self) -> bool:
    """Returns whether there are objects in such a folder."""
    with contextlib.suppress(FileNotFoundError):
      return self.system.info(str(self))["type"] == "directory"
    return False

  def find(self) -> dict[str, Any]:
    """Returns the names of all objects, also in subfolders, and their fields.

    The fields of an object change when it does.
    """
    start = len(str(self).partition("://")[2]) + 1
    with contextlib.suppress(FileNotFoundError):  # no such bucket
      objects = self.system.find(str(self), detail=True)
      return {name[start:]: fields for name, fields in objects.items()}
    return {}

  def rename(self, target: Any) -> None:
    """Copies all objects of a folder, then removes it."""
    self.system.copy(str(self), str(target), recursive=True)
    self.rmtree()

  def read_bytes(self) -> bytes:
    """Reads an object."""
    return self.system.cat_file(str(self))

  def read_text(self, encoding: str | None = None) -> str:
    """Reads an object with UTF-8."""
    return self.read_bytes().decode(encoding or "utf-8")

  def write_bytes(self, data: bytes) -> int:
    """Writes an object as a whole; InputError if the bucket is missing."""
    try:
      self.system.pipe_file(str(self), data)
    except FileNotFoundError as error:
      raise explain(str(self), error) from error
    return len(data)

  def write_text(self, text: str) -> int:
    """Writes an object with UTF-8."""
    return self.write_bytes(text.encode())
