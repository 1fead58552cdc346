"""Finds, opens, decompresses and reads files of text, local or by URL.

  for file in find_files("wiki/*.txt.zst", suffixes=(".txt",)):
    for block in read_blocks(file): ...

fsspec opens URLs: gcsfs reads gs://, s3fs s3:// and huggingface_hub hf://. They
repeat failed requests.
"""

import bz2
import contextlib
import glob
import gzip
import io
import lzma
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from truenegs_jax.runtime import errors

COMPRESSIONS = (".bz2", ".gz", ".xz", ".zst")
BLOCK_BYTES = 2**19  # read at once: few calls, little memory
REQUEST_BYTES = 2**22  # of a URL's text that is held in memory
Blocks = Iterator[bytes]
CHECKSUMS = ("ETag", "md5Hash", "etag", "blob_id")  # keys, by file system


class File(NamedTuple):
  """A file as it was when found."""

  path: str  # or URL
  suffix: str  # of its format in lower case, ".jsonl" of "a.jsonl.gz"
  compression: str  # a suffix in COMPRESSIONS, or ""
  size: int  # bytes as they are stored
  version: int | str  # time of its last change in ns; of a URL, its checksum


def is_url(where: str) -> bool:
  """Returns whether `where` is a URL of one of SCHEMES."""
  scheme, separator, _ = where.partition("://")
  return bool(separator) and scheme in errors.SCHEMES


def find_files(where: str, *, suffixes: Collection[str]) -> list[File]:
  """Finds the files of a path, a folder or a glob, sorted; none if none match.

  Of a folder, or its URL, only files with these suffixes, perhaps followed by
  that of a compression, are found, also in its subfolders; no hidden ones.
  """

  def is_text(name: str) -> bool:
    return _suffixes(name)[0] in suffixes

  if is_url(where):
    return _find_urls(where, is_text)
  path = os.path.expanduser(where)
  try:
    if not os.path.isdir(path):
      paths = _glob(pathlib.Path(path))
    elif not (paths := _walk(path, is_text)):
      raise errors.DataError(
        f"Folder '{path}' holds no text file ({' '.join(sorted(suffixes))},"
        " also compressed). Use a glob for files with other names."
      )
    paths.sort(key=lambda x: x.split(os.sep))
    return [stat_file(path) for path in paths]
  except (OSError, ValueError) as error:  # "\0"
    raise errors.DataError(f"{where!r} cannot be read ({error}).") from error


def find_existing(
  where: str | pathlib.Path, *, or_compressed: bool = False
) -> pathlib.Path | None:
  """Returns the path, also with the suffix of a compression, or None."""
  for suffix in ("", *COMPRESSIONS) if or_compressed else ("",):
    path = os.path.expanduser(where) + suffix
    if os.path.exists(path):
      return pathlib.Path(path)
  return None


def stat_file(path: str | pathlib.Path) -> File:
  """Returns format, size and time of a file."""
  path = pathlib.Path(path)
  status = path.stat()
  if not path.is_file():
    raise errors.DataError(f"{path} is a folder or a device. Name a file.")
  suffixes = _suffixes(path.name)
  return File(str(path), *suffixes, status.st_size, status.st_mtime_ns)


def files_identity(files: list[File]) -> list[list[object]]:
  """Returns as JSON the names, sizes and times, of URLs checksums, of files.

  Folders may move, so they do not count. Hashes would read the whole corpus.
  """
  return [[os.path.basename(x.path), x.size, x.version] for x in files]


def size_of_url(url: str) -> int:
  """Returns the size of a file by its URL or path."""
  system, path = _connect(url)
  return int(system.size(path))


def read_blocks(file: File, *, size: int = BLOCK_BYTES) -> Blocks:
  """Yields the decompressed content of a file in blocks of at most `size`."""
  num_bytes = 0
  with open_file(file) as raw:
    try:
      for block in _decompress(raw, file.compression, size):
        num_bytes += len(block)
        yield block
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
      if getattr(error, "errno", None):
        raise
      raise errors.DataError(
        f"{file.path}: the {file.compression} file is damaged or cut off after"
        f" {num_bytes:,} bytes of text, or it is none ({error}). Download it"
        f" again; if it is plain text, remove {file.compression} from its name."
      ) from error


@contextlib.contextmanager
def open_file(file: File) -> Iterator[io.RawIOBase]:
  """Opens a file without decompression; DataError if it cannot be read."""
  open_raw = _open_url if is_url(file.path) else io.FileIO
  try:
    with open_raw(file.path) as raw:
      yield raw
  except OSError as error:
    raise errors.DataError(
      f"{file.path}: cannot be read: {error.strerror or error}."
    ) from error


@contextlib.contextmanager
def convert_errors(url: str) -> Iterator[None]:
  """Turns the errors of file systems into errors that name the URL."""
  try:
    yield
  except ImportError as error:
    raise errors.missing_package(url, error) from error
  # The file systems raise two dozen types.
  except Exception as error:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    _, access = errors.SCHEMES[url.partition("://")[0]]
    raise errors.UnavailableError(
      f"'{url}' cannot be reached ({reason}). Correct the name; or for access,"
      f" {access}; or if the connection broke, run the same command again."
    ) from error


def _find_urls(where: str, is_text: Callable[[str], bool]) -> list[File]:
  """Finds files by URL; hidden files only if they are named."""
  with convert_errors(where):
    system, path = _connect(where)
    from fsspec.utils import glob_translate

    # A glob of s3fs finds nothing in a missing bucket.
    folder = re.split(r"[^/]*[*?\[]", path, maxsplit=1)[0].rstrip("/")
    pattern = re.compile(glob_translate(path))
    system.invalidate_cache()
    entries = system.find(folder, detail=True)
  files = []
  for name, entry in sorted(entries.items(), key=lambda x: x[0].split("/")):
    is_match = is_text(name) if folder == path else bool(pattern.match(name))
    is_shown = is_match and "/." not in name[len(folder) :]
    if entry["type"] == "file" and (name == path or is_shown):
      checksum = next(filter(None, map(entry.get, CHECKSUMS)), "")
      url = system.unstrip_protocol(name)
      files.append(File(url, *_suffixes(name), entry["size"], str(checksum)))
  return files


def _open_url(url: str) -> Any:
  """Opens a URL for reading; every error of it is an UnavailableError."""
  with convert_errors(url):
    system, path = _connect(url)
    file = system.open(path, "rb", REQUEST_BYTES, cache_type="readahead")
  file.read = convert_errors(url)(file.read)
  return file


def _connect(url: str) -> tuple[Any, str]:
  """Returns the file system of a URL and its path there."""
  import fsspec  # a tenth of a second

  system, path = fsspec.url_to_fs(url)
  return system, path.rstrip("/")


def _decompress(raw: io.RawIOBase, compression: str, size: int) -> Blocks:
  if compression in (".bz2", ".xz"):
    return _read_streams(raw, compression, size)
  stream: Any = raw
  if compression == ".gz":
    stream = gzip.GzipFile(fileobj=raw)
  elif compression == ".zst":
    import pyarrow  # takes a quarter of a second

    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(raw), "zstd")
  return iter(lambda: stream.read(size), b"")


def _read_streams(raw: io.RawIOBase, compression: str, size: int) -> Blocks:
  """Decompresses all streams of a file.

  The files of `bz2` and `lzma`, and so fsspec and `datasets`, end without an
  error at damage after the first stream; pyarrow fails at an empty bz2 stream.
  """
  data = raw.read(size)
  while data:
    decompressor: Any = bz2.BZ2Decompressor()
    if compression == ".xz":  # the highest preset takes a quarter of the limit
      decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=2**28)
    while not decompressor.eof:
      if decompressor.needs_input and not (data := data or raw.read(size)):
        raise EOFError("the end of the stream is missing")
      if block := decompressor.decompress(data, size):
        yield block
      data = b""
    # The formats allow zeros between and after the streams.
    data = decompressor.unused_data.lstrip(b"\0")
    while not data and (more := raw.read(size)):
      data = more.lstrip(b"\0")


def _walk(folder: str, is_text: Callable[[str], bool]) -> list[str]:
  def refuse(error: OSError) -> None:
    raise error  # os.walk would skip unreadable folders

  paths: list[str] = []
  seen = set()  # links may form a circle
  for name, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
    if (real := os.path.realpath(name)) in seen:
      folders.clear()
      continue
    seen.add(real)
    # Editors and archives leave hidden files ("._a.txt").
    folders[:] = [f for f in folders if not f.startswith(".")]
    texts = [n for n in names if not n.startswith(".") and is_text(n)]
    paths += [os.path.join(name, text) for text in texts]
  return paths


def _glob(pattern: pathlib.Path) -> list[str]:
  if os.path.lexists(pattern):
    return [str(pattern)]
  # Brackets in the name of an existing folder are not a pattern.
  fixed = next(p for p in pattern.parents if os.path.lexists(p))
  rest = str(pattern.relative_to(fixed))
  paths = [fixed / x for x in glob.glob(rest, root_dir=fixed, recursive=True)]
  return [str(path) for path in paths if not path.is_dir()]


def _suffixes(name: str) -> tuple[str, str]:
  """Returns the suffixes of format and compression; "" for none."""
  path = pathlib.PurePath(name.lower())
  if path.suffix in COMPRESSIONS:
    return pathlib.PurePath(path.stem).suffix, path.suffix
  return path.suffix, ""
