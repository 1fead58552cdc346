"""Finds, opens, unpacks and reads files of text; the only place that does.

  for file in find_files("wiki/*.txt.zst", suffixes=(".txt",)):
    for block in read_blocks(file, ReadState(), size=2**19): ...

A file that is another by the time it is read is refused.
"""

import bz2
import contextlib
import functools
import glob
import lzma
import os
import pathlib
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, BinaryIO, NamedTuple

from truenegs_jax.data.corpus.read_state import BLOCK_BYTES, ReadState
from truenegs_jax.runtime.errors import DataError

# What a file of this suffix begins with.
COMPRESSIONS = {
  ".bz2": b"BZh",
  ".gz": b"\x1f\x8b",
  ".xz": b"\xfd7zXZ\0",
  ".zst": b"\x28\xb5\x2f\xfd",
}
# A frame of zst that holds none of the text may come first (RFC 8878, 3.1.2).
SKIPPABLE = (b"\x2a\x4d\x18", slice(1, 4))
XZ_MEMORY = 2**28  # bytes; the highest preset takes a quarter of it

# Read as text they would give noise that a lenient reader takes for words.
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tgz", ".tbz", ".lz4", ".lzma")
MARKUP = (".xml", ".html", ".htm", ".pdf", ".docx", ".epub", ".rtf", ".warc")
HEAD_BYTES = 4096
MAX_HEADS = 100  # files whose beginning is looked at, too


def begins_as(head: bytes) -> str:
  """The compression of a file that begins so, or "" for none."""
  mark, place = SKIPPABLE
  if head[place] == mark:
    return ".zst"
  return next(
    (name for name, magic in COMPRESSIONS.items() if head.startswith(magic)), ""
  )


def decompressed(raw: BinaryIO, compression: str, size: int) -> Iterator[bytes]:
  """The content of an open file, in blocks of at most `size` bytes.

  Args:
    compression: a suffix in MAGIC, or "" for none.

  Raises:
    EOFError, OSError, zlib.error, lzma.LZMAError: damaged or cut off.
  """
  if compression == ".gz":
    return _unpack(raw, size, lambda: zlib.decompressobj(wbits=31))
  if compression == ".xz":
    new = functools.partial(lzma.LZMADecompressor, memlimit=XZ_MEMORY)
    return _unpack(raw, size, new)
  if compression == ".bz2":
    return _unpack(raw, size, bz2.BZ2Decompressor)
  if compression == ".zst":
    import pyarrow  # takes a quarter of a second

    # A duplicate, for pyarrow closes what it has read to the end.
    own = os.fdopen(os.dup(raw.fileno()), "rb")
    stream = pyarrow.CompressedInputStream(own, "zstd")
    return iter(lambda: stream.read(size), b"")
  return iter(lambda: raw.read(size), b"")


def _unpack(
  raw: BinaryIO, size: int, new: Callable[[], Any]
) -> Iterator[bytes]:
  """Streams one after the other, as compressed files may hold."""
  # LZMAFile and BZ2File take garbage after the first stream for the end, and
  # gzip.GzipFile reads 8 KB at a time.
  data = raw.read(size)
  while data:
    machine = new()
    while not machine.eof:
      is_fed = data or not getattr(machine, "needs_input", True)
      data = data if is_fed else raw.read(size)
      block = machine.decompress(data, size)
      if block:
        yield block
      elif not is_fed and not data:
        raise EOFError("the end of the stream is missing")
      data = getattr(machine, "unconsumed_tail", b"")
    data = machine.unused_data
    # The formats allow for zeros between and after the streams.
    while not data.strip(b"\0") and (more := raw.read(size)):
      data = more
    data = data.lstrip(b"\0")


class File(NamedTuple):
  """A file as it was found; one that differs when it is read is refused.

  Attributes:
    suffix: of its format, in small letters: ".jsonl" of "a.jsonl.gz".
    compression: ".gz", ".xz", ".zst" or "".
    size: bytes on disk.
    mtime_ns: time of change.
  """

  path: pathlib.Path
  suffix: str
  compression: str
  size: int
  mtime_ns: int


def find_files(where: str, *, suffixes: Collection[str]) -> list[File]:
  """The files that a path, a folder or a glob stands for, in order.

  Args:
    where: a file or a glob names files of any kind; a folder stands for those
      of the known kinds in it and in the folders in it, hidden ones left out.
    suffixes: the known kinds, such as ".txt"; each may be followed by the
      suffix of a compression.

  Returns:
    Empty where nothing has that name.

  Raises:
    DataError: a folder without such a file, a file that cannot be read.
  """
  try:
    location = pathlib.Path(where).expanduser()
    if location.is_dir():
      paths = _walk(location, suffixes)
    elif os.path.lexists(location):
      paths = [location]
    else:
      paths = [p for p in _glob(location) if not p.is_dir()]
    return [stat_file(path) for path in paths]
  except (OSError, RuntimeError, ValueError) as error:  # "~nobody", "\0"
    reason = getattr(error, "strerror", None) or error
    raise DataError(f"{where!r} cannot be read: {reason}.") from error


def find_existing(
  where: str | pathlib.Path, *, or_compressed: bool = False
) -> pathlib.Path | None:
  """The path that a user names; None where nothing is there.

  Args:
    or_compressed: or else the first with the suffix of a compression behind it.
  """
  try:
    path = pathlib.Path(where).expanduser()
    tried = [
      f"{path}{suffix}"
      for suffix in ("", *(COMPRESSIONS if or_compressed else ()))
    ]
    return next(filter(pathlib.Path.exists, map(pathlib.Path, tried)), None)
  except (OSError, RuntimeError, ValueError):  # too long, "~nobody", "\0"
    return None


def stat_file(path: pathlib.Path) -> File:
  """A file as it is now.

  Raises:
    DataError: a folder, a device, an archive, or a link to nothing.
    OSError: it cannot be looked at.
  """
  if path.is_symlink() and not path.exists():
    raise DataError(f"{path}: a link to {os.readlink(path)}, which is missing.")
  if path.is_dir():
    raise DataError(f"{path}: a folder; name a file in it.")
  if not path.is_file():
    raise DataError(f"{path}: neither a file nor a folder.")
  suffix, compression = _kind(path.name)
  if suffix in ARCHIVES:
    raise DataError(
      f"{path}: {suffix} files are not read: unpack it (files of"
      f" {', '.join(COMPRESSIONS)} are read as they are)."
    )
  if suffix in MARKUP:
    raise DataError(
      f"{path}: {suffix} files hold more than text: extract it first (a dump of"
      " Wikipedia with WikiExtractor, say)."
    )
  status = path.stat()
  return File(path, suffix, compression, status.st_size, status.st_mtime_ns)


def files_identity(files: list[File]) -> list[list[Any]]:
  """The identity of these files, as JSON."""
  # Name, size and time of change, not a hash of the content: that would cost
  # reading the whole corpus at every start, while a copy with another time
  # only costs a second preparation. Folders may move: they do not count.
  state = [[file.path.name, file.size, file.mtime_ns] for file in files]
  # Parts of one size in folders of two languages, unpacked by a tool that sets
  # all times to 0, are told apart by how they begin.
  for entry, file in zip(state[:MAX_HEADS], files, strict=False):
    with open_file(file) as raw:
      entry.append(zlib.crc32(raw.read(HEAD_BYTES)))
  return state


def read_blocks(
  file: File, reading: ReadState, *, size: int
) -> Iterator[bytes]:
  """The content of a file, decompressed, in blocks of at most `size` bytes.

  Raises:
    DataError: cannot be read, damaged, or changed since it was found.
  """
  num_bytes = 0
  with open_file(file) as raw:
    try:
      for block in decompressed(raw, file.compression, size):
        num_bytes += len(block)
        reading.advance(raw.tell() / max(1, file.size))
        yield block
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
      if getattr(error, "errno", None):
        raise
      raise DataError(
        f"{file.path}: the {file.compression} file is damaged or cut off after"
        f" {num_bytes:,} bytes of its content, {raw.tell():,} of its own"
        f" ({error}): fetch it again."
      ) from error


@contextlib.contextmanager
def open_file(file: File) -> Iterator[BinaryIO]:
  """Opens a file as it is on disk, and sees that it is what was found.

  Raises:
    DataError: cannot be read, is of another kind than its name says, or has
      changed since it was found.
  """
  try:
    with open(file.path, "rb", buffering=0) as raw:
      _check_unchanged(file, raw)
      _check_kind(file, raw.read(8))
      raw.seek(0)
      yield raw
      _check_unchanged(file, raw)
  except OSError as error:
    raise DataError(
      f"{file.path}: cannot be read: {error.strerror or error}."
    ) from error


@contextlib.contextmanager
def open_seekable(file: File, reading: ReadState) -> Iterator[BinaryIO]:
  """Opens a file for readers that jump about; what is compressed is unpacked.

  Raises:
    DataError: as `open_file`, or there is no room to unpack it.
  """
  if not file.compression:
    with open_file(file) as raw:
      yield raw
    return
  with tempfile.TemporaryFile() as unpacked:
    for block in read_blocks(file, reading, size=BLOCK_BYTES):
      try:
        unpacked.write(block)
      except OSError as error:
        raise DataError(
          f"{file.path}: cannot be unpacked to {tempfile.gettempdir()}:"
          f" {error.strerror}; set TMPDIR to a folder with room."
        ) from error
    unpacked.seek(0)
    yield unpacked


def _walk(
  folder: pathlib.Path, suffixes: Collection[str]
) -> list[pathlib.Path]:
  def refuse(error: OSError) -> None:
    raise error  # os.walk would leave out what it may not read

  found, seen = [], set()
  for name, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
    status = os.stat(name)
    if (status.st_dev, status.st_ino) in seen:  # links may form a circle
      folders.clear()
      continue
    seen.add((status.st_dev, status.st_ino))
    # Hidden ones are the debris of editors and archives ("._a.txt").
    folders[:] = sorted(f for f in folders if not f.startswith("."))
    found += [
      pathlib.Path(name, n)
      for n in names
      if not n.startswith(".") and _kind(n)[0] in suffixes
    ]
  if not found:
    known = " ".join(sorted(suffixes))
    raise DataError(
      f"folder {folder} holds no text file ({known}, each also"
      f" with {' '.join(COMPRESSIONS)}); files of other names can be given by a"
      " glob."
    )
  return sorted(found, key=lambda path: path.relative_to(folder).parts)


def _glob(pattern: pathlib.Path) -> list[pathlib.Path]:
  # A bracket in the name of a folder that exists is no pattern.
  fixed = next(p for p in [pattern, *pattern.parents] if os.path.lexists(p))
  rest = pattern.relative_to(fixed)
  escaped = os.path.join(glob.escape(str(fixed)), str(rest))
  return sorted(map(pathlib.Path, glob.glob(escaped, recursive=True)))


def _kind(name: str) -> tuple[str, str]:
  """Suffix of the format and of the compression."""
  suffixes = [suffix.lower() for suffix in pathlib.PurePath(name).suffixes[-2:]]
  compression = (
    suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
  )
  return suffixes[-1] if suffixes else "", compression


def _check_unchanged(file: File, raw: BinaryIO) -> None:
  status = os.fstat(raw.fileno())
  if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
    raise DataError(
      f"{file.path}: changed while it was in use (from {file.size:,} to"
      f" {status.st_size:,} bytes): start again when nothing writes to it."
    )


def _check_kind(file: File, head: bytes) -> None:
  begins = begins_as(head)
  if file.compression and head and file.compression != begins:
    raise DataError(
      f"{file.path}: no {file.compression} file: it begins with {head[:6]!r}."
    )
  if not file.compression and begins:
    raise DataError(
      f"{file.path}: a {begins} file by its content; add {begins} to its name."
    )
