"""Finds and opens files in buckets and on the hub by their URL, with fsspec.

  for url, size, checksum in find("gs://bucket/*.txt.xz", is_text=is_text):
    with open_url(url) as raw: ...

gcsfs reads gs://, s3fs s3:// and huggingface_hub hf://. They repeat failed
requests; an error that remains becomes one message.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

from truenegs_jax.runtime.errors import InputError, UnavailableError

REQUEST_BYTES = 2**22  # of the text that is held in memory
# Scheme -> extra of this package, how to get credentials.
SCHEMES = {
  "gs": (
    "gcs",
    "run `gcloud auth application-default login`, or set"
    " GOOGLE_APPLICATION_CREDENTIALS to a key file",
  ),
  "s3": (
    "s3",
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
  ),
  "hf": ("hf", "run `hf auth login`, or set HF_TOKEN"),
}
CHECKSUMS = ("ETag", "md5Hash", "etag", "blob_id")  # keys, by file system


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
  """
  with convert_errors(where):
    system, path = _connect(where)
    from fsspec.utils import glob_translate

    # A glob of s3fs finds nothing in a missing bucket.
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
    chosen = []
    for name, entry in sorted(entries.items(), key=lambda x: x[0].split("/")):
      if entry["type"] == "file" and is_chosen(name):
        checksum = next(filter(None, map(entry.get, CHECKSUMS)), "")
        url = system.unstrip_protocol(name)
        chosen.append((url, entry["size"], str(checksum)))
    return chosen


def open_url(url: str) -> Any:
  """Opens a file for reading; every error of it is an `UnavailableError`."""
  with convert_errors(url):
    system, path = _connect(url)
    file = system.open(
      path, "rb", block_size=REQUEST_BYTES, cache_type="readahead"
    )
  file.read = convert_errors(url)(file.read)
  return file


def _connect(url: str) -> tuple[Any, str]:
  """Returns the file system of a URL and its path there."""
  import fsspec  # a tenth of a second

  for name in ("fsspec", "gcsfs", "google.auth", "huggingface_hub", "s3fs"):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  system, path = fsspec.url_to_fs(url)
  return system, path.rstrip("/")


@contextlib.contextmanager
def convert_errors(url: str) -> Iterator[None]:
  """Turns the errors of file systems into errors that name the URL."""
  extra, access = SCHEMES[url.partition("://")[0]]
  try:
    yield
  except ImportError as error:
    raise InputError(
      f"'{url}' needs a package ({error}). Install truenegs_jax[{extra}]."
    ) from error
  # The file systems raise two dozen types.
  except Exception as error:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    raise UnavailableError(
      f"'{url}' cannot be reached ({reason}). Correct the name; or for access,"
      f" {access}; or if the connection broke, run the same command again,"
      " which keeps what is prepared."
    ) from error
