"""Compressed files: how each kind begins, and its content as a stream."""

import bz2
import functools
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

# What a file of this suffix begins with.
MAGIC = {
  ".bz2": b"BZh",
  ".gz": b"\x1f\x8b",
  ".xz": b"\xfd7zXZ\0",
  ".zst": b"\x28\xb5\x2f\xfd",
}
# A frame of zst that holds none of the text may come first (RFC 8878, 3.1.2).
SKIPPABLE = (b"\x2a\x4d\x18", slice(1, 4))
XZ_MEMORY = 2**28  # bytes; the highest preset takes a quarter of it


def begins_as(head: bytes) -> str:
  """The compression of a file that begins so, or "" for none."""
  mark, place = SKIPPABLE
  if head[place] == mark:
    return ".zst"
  return next(
    (name for name, magic in MAGIC.items() if head.startswith(magic)), ""
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
