"""Finds and opens files in buckets and on the hub by their URL, with fsspec.

  for url, size, checksum in find("gs://bucket/*.txt.xz", is_text=is_text):
    with open_url(url) as raw: ...

gcsfs reads gs://, s3fs s3:// and huggingface_hub hf://. They repeat failed
requests; an error that remains becomes one message.
"""

import contextlib
import io
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from truenegs_jax.runtime.errors import InputError, UnavailableError

REQUEST_BYTES = 2**22  # of the text that is held in memory


class Scheme(NamedTuple):
  """A scheme of URLs, for messages."""

  package: str
  extra: str  # of this package
  access: str  # how to get credentials
  endpoint: str  # environment variable of another server


SCHEMES = {
  "gs": Scheme(
    "gcsfs",
    "gcs",
    "Run `gcloud auth application-default login`, or set"
    " GOOGLE_APPLICATION_CREDENTIALS to a key file.",
    "STORAGE_EMULATOR_HOST",
  ),
  "s3": Scheme(
    "s3fs",
    "s3",
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
    "AWS_ENDPOINT_URL",
  ),
  "hf": Scheme(
    "huggingface_hub",
    "hf",
    "Run `hf auth login`, or set HF_TOKEN.",
    "HF_ENDPOINT",
  ),
}
CHECKSUMS = ("ETag", "md5Hash", "etag", "blob_id")  # keys, by file system
DENIED = re.compile(r"\b40[13]\b|credential|denied|forbidden|anonymous", re.I)


def is_url(where: str) -> bool:
  """Returns whether `where` is a URL of one of SCHEMES."""
  scheme, separator, _ = where.partition("://")
  return bool(separator) and scheme in SCHEMES


def find(
  where: str, *, is_text: Callable[[str], bool]
) -> list[tuple[str, int, str]]:
  """Finds URL, size and checksum of the files of a URL, a folder or a glob.

  They are sorted. Folders and globs leave out hidden files, folders also the
  names that are not `is_text`.

  Raises:
    InputError: the package of the scheme is not installed.
    UnavailableError: the bucket is missing, or cannot be read.
  """
  with convert_errors(where):
    system, path = _connect(where)
    from fsspec.utils import glob_translate

    folder = re.split(r"[^/]*[*?\[]", path, maxsplit=1)[0].rstrip("/")
    pattern = re.compile(glob_translate(path))
    system.invalidate_cache()

    def is_chosen(name: str) -> bool:
      if name == path:
        return True
      if "/." in name[len(folder) :]:
        return False
      return is_text(name) if folder == path else bool(pattern.match(name))

    entries = system.find(folder, detail=True)
    return [
      (system.unstrip_protocol(name), entry["size"], _checksum(entry))
      for name, entry in sorted(entries.items(), key=lambda x: x[0].split("/"))
      if entry["type"] == "file" and is_chosen(name)
    ]


def open_url(url: str) -> io.RawIOBase:
  """Opens a file for reading; every error of it is an `UnavailableError`."""
  return _RemoteFile(url)


def checksum(url: str) -> str:
  """Returns the present checksum of a file."""
  with convert_errors(url):
    system, path = _connect(url)
    system.invalidate_cache()
    return _checksum(system.info(path))


class _RemoteFile(io.RawIOBase):
  def __init__(self, url: str) -> None:
    self._url = url
    with convert_errors(url):
      system, path = _connect(url)
      self._file = system.open(
        path, "rb", block_size=REQUEST_BYTES, cache_type="readahead"
      )

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    with convert_errors(self._url):
      data = self._file.read(len(buffer))
    buffer[: len(data)] = data
    return len(data)

  def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
    return self._file.seek(offset, whence)

  def tell(self) -> int:
    return self._file.tell()


def _connect(url: str) -> tuple[Any, str]:
  """Returns the file system of a URL and its path there."""
  import fsspec  # a tenth of a second

  for name in ("fsspec", "gcsfs", "google.auth", "huggingface_hub", "s3fs"):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  system, path = fsspec.url_to_fs(url)
  return system, path.rstrip("/")


def _checksum(entry: dict[str, Any]) -> str:
  return str(next((entry[key] for key in CHECKSUMS if entry.get(key)), ""))


@contextlib.contextmanager
def convert_errors(url: str) -> Iterator[None]:
  """Turns the errors of file systems into errors that name the URL."""
  scheme = SCHEMES[url.partition("://")[0]]
  try:
    yield
  except ImportError as error:
    raise InputError(
      f"'{url}' needs the package {scheme.package}. Install"
      f" truenegs_jax[{scheme.extra}]."
    ) from error
  # The file systems raise two dozen types.
  except Exception as error:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if DENIED.search(reason):
      problem, fix = "cannot be read with your credentials", scheme.access
    elif isinstance(error, FileNotFoundError):
      problem = "has no such bucket or file, or you may not see it"
      fix = f"Correct the name. Or: {scheme.access}"
    else:
      problem = "cannot be reached, or the connection broke"
      fix = (
        "Run the same command again, which keeps what is prepared. Set"
        f" {scheme.endpoint} only for a server of your own."
      )
    raise UnavailableError(f"'{url}' {problem} ({reason}). {fix}") from error
