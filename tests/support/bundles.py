"""Writes TensorFlow checkpoints, as its own Saver does; see tensor_bundle.py.

bundles.write(tmp_path / "model.ckpt", {"a/kernel": x, "a/bias": y})
"""

import pathlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from truenegs_jax.weights.formats import tensor_bundle

TYPES = {dtype: number for number, dtype in tensor_bundle.DTYPES.items()}
RESTART = 16  # entries between keys that are written in full
BLOCK = 5_000  # entries; TensorFlow closes a block at 256 KiB


def write(
  prefix: pathlib.Path,
  arrays: Mapping[str, np.ndarray],
  *,
  block: int = BLOCK,
) -> pathlib.Path:
  """A whole checkpoint, whose folder is made.

  Args:
    block: entries of each of the index' blocks.

  Returns:
    The path of the index.
  """
  prefix.parent.mkdir(parents=True, exist_ok=True)
  data, entries = b"", {b"": number(1, 1) + string(3, number(1, 1))}
  for name, x in sorted(arrays.items()):
    raw = x.tobytes()
    entries[name.encode()] = entry(x, offset=len(data), size=len(raw))
    data += raw
  prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
  index = prefix.with_name(f"{prefix.name}.index")
  index.write_bytes(table(sorted(entries.items()), block))
  return index


def entry(x: np.ndarray, *, offset: int, size: int) -> bytes:
  """The BundleEntryProto of an array."""
  dims = b"".join(string(2, number(1, n)) for n in x.shape)
  return (
    number(1, TYPES[x.dtype])
    + string(2, dims)
    + number(4, offset)
    + number(5, size)
    + b"\x35"
    + checksum(x.tobytes())
  )


def table(pairs: Sequence[tuple[bytes, bytes]], block: int = BLOCK) -> bytes:
  """A table in LevelDB's format; `pairs` are sorted."""
  file, handles = b"", []

  def add(entries: Sequence[tuple[bytes, bytes]], restart: int) -> bytes:
    """Appends a block and gives its handle."""
    nonlocal file
    body = block_of(entries, restart)
    handle = varint(len(file)) + varint(len(body))
    file += body + b"\0" + checksum(body + b"\0")
    return handle

  for start in range(0, len(pairs), block):
    part = pairs[start : start + block]
    key = part[-1][0]
    if start + block >= len(pairs) and key:
      key = bytes([key[0] + 1])  # the shortest that comes later
    handles.append((key, add(part, RESTART)))
  footer = add([], 1) + add(handles, 1)
  return file + footer.ljust(40, b"\0") + tensor_bundle.MAGIC


def block_of(entries: Iterable[tuple[bytes, bytes]], restart: int) -> bytes:
  """A block without its trailer."""
  body, restarts, last = b"", [0], b""
  for i, (key, value) in enumerate(entries):
    shared = 0
    if i % restart:
      pairs = zip(key, last, strict=False)
      shared = next(
        (n for n, (a, b) in enumerate(pairs) if a != b),
        min(len(key), len(last)),
      )
    elif i:
      restarts.append(len(body))
    body += varint(shared) + varint(len(key) - shared) + varint(len(value))
    body += key[shared:] + value
    last = key
  return body + np.array([*restarts, len(restarts)], "<u4").tobytes()


def number(field: int, value: int) -> bytes:
  """A field of a protocol buffer; what is 0 is not written."""
  return varint(field << 3) + varint(value) if value else b""


def string(field: int, value: bytes) -> bytes:
  """A field of a protocol buffer: text, bytes or another message."""
  return varint(field << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
  """7 bits a byte, the lowest first."""
  high = value >> 7
  return bytes([value & 127 | 128]) + varint(high) if high else bytes([value])


def checksum(data: bytes) -> bytes:
  """As blocks and arrays carry it."""
  crc = tensor_bundle.masked_crc32c(np.frombuffer(data, np.uint8))
  return crc.to_bytes(4, "little")
