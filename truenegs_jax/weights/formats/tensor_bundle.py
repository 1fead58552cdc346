"""TensorFlow's checkpoints, read without TensorFlow.

A checkpoint "NAME" is NAME.index and NAME.data-00000-of-00001, or more of the
latter. The index is a table in LevelDB's format (table_format.md of LevelDB)
from names of variables to BundleEntryProtos, from "" to the BundleHeaderProto
(tensorflow/core/protobuf/tensor_bundle.proto); the data files are arrays and
nothing else. The only library that reads this is TensorFlow itself, 600 MB for
what takes 200 lines.
"""

import dataclasses
import functools
import io
import itertools
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats.network import Arrays

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER = 48  # bytes
TRAILER = 5  # bytes after each block: kind of compression, checksum
# BERT-large's has 0.1 MB and 1,200 entries with the optimizer's state.
MAX_INDEX, MAX_ENTRIES, MAX_NAME = 2**20, 20_000, 1_000
MAX_SHARDS, MAX_RANK, MAX_DIM = 1_000, 32, 2**31
# tensorflow/core/framework/types.proto; the others are not read.
DTYPES = {
  1: np.dtype("<f4"),
  2: np.dtype("<f8"),
  3: np.dtype("<i4"),
  4: np.dtype("u1"),
  9: np.dtype("<i8"),
  10: np.dtype("?"),
  14: np.dtype(ml_dtypes.bfloat16),
  19: np.dtype("<f2"),
}
CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, lowest power first
CRC_CHUNK = 2**18  # words


@dataclasses.dataclass(frozen=True)
class _Entry:
  dtype: np.dtype
  shape: tuple[int, ...]
  path: pathlib.Path
  offset: int
  size: int
  crc: int
  problem: str  # why it cannot be read; "" if it can


_Shards = Callable[[int], tuple[pathlib.Path, int]]


def open_bundle(index: pathlib.Path) -> Arrays:
  """The variables of a checkpoint by TensorFlow's names.

  Whatever the index says is checked against the files here, the checksum of an
  array when it is read. Variables of other types than DTYPES, and partitioned
  ones, are known by shape and type and refused when they are read.

  Args:
    index: the file `NAME.index`; those with the data lie beside it.

  Raises:
    InputError: no such index, another format, damaged or cut off, data files
      that are absent or too short. `read` raises it, too.
  """
  try:
    if index.stat().st_size > MAX_INDEX:
      raise ValueError(f"it is larger than {MAX_INDEX:,} bytes")
    table = _table(index.read_bytes())
    shard = _shards(index, table.pop(b"", b""))
    entries = {
      name.decode("ascii", "backslashreplace"): _entry(value, shard)
      for name, value in table.items()
      if name[0]  # else a part of a partitioned variable
    }
  except (OSError, ValueError) as e:
    raise InputError(
      f"init: {index} cannot be read as the index of a TensorFlow checkpoint:"
      f" {e}. If its files were copied, copy them again, all."
    ) from e
  return Arrays(
    path=index,
    shapes={name: entry.shape for name, entry in entries.items()},
    dtypes={name: entry.dtype.name for name, entry in entries.items()},
    read=lambda name: _read(name, entries[name]),
  )


def masked_crc32c(data: np.ndarray) -> int:
  """The checksum of bytes, uint8 `[N]`, that blocks and arrays carry.

  That is CRC-32C (RFC 3720, B.4) turned by 15 bits plus a constant; it takes
  about 1 ns a byte.

  A checksum is linear: what a word adds to it depends on the word and on how
  many follow, not on the others. So neighbours are added in pairs, all pairs at
  once, then pairs of pairs.
  """
  crc: Any = np.uint32(0xFFFFFFFF)
  words = data[: len(data) // 4 * 4].view("<u4")
  for start in range(0, len(words), CRC_CHUNK):
    sums = words[start : start + CRC_CHUNK].copy()
    sums[0] ^= crc
    level = 0
    while len(sums) > 1:
      if len(sums) % 2:
        sums = np.append(np.uint32(0), sums)
      sums = _moved(sums[::2], level) ^ sums[1::2]
      level += 1
    crc = _moved(sums, 0)[0]
  for byte in data[len(words) * 4 :]:
    crc = _shifted(crc ^ byte, 8)
  crc = int(crc) ^ 0xFFFFFFFF
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _moved(words: np.ndarray, level: int) -> np.ndarray:
  """What words add to a checksum when 2**level words, all 0, follow."""
  bytes_Nx4 = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 4)
  parts = zip(_moved_bytes(level), bytes_Nx4.T, strict=True)
  return functools.reduce(np.bitwise_xor, (part[x] for part, x in parts))


@functools.cache
def _moved_bytes(level: int) -> np.ndarray:
  """`_moved` of words with one byte that is not 0, by place and value."""
  if level:
    before = _moved_bytes(level - 1)
    return _moved(before.ravel(), level - 1).reshape(4, 256)
  places = np.arange(0, 32, 8, dtype=np.uint32)[:, None]
  return _shifted(np.arange(256, dtype=np.uint32)[None] << places, 32)


def _shifted(crc: Any, bits: int) -> Any:
  """A checksum, or an array of them, after that many bits of 0."""
  for _ in range(bits):
    crc = crc >> 1 ^ (crc & 1) * np.uint32(CASTAGNOLI)
  return crc


def _table(data: bytes) -> dict[bytes, bytes]:
  """All that an index holds, by key."""
  if len(data) < FOOTER or not data.endswith(MAGIC):
    raise ValueError("it does not end as one, so it is cut off or another file")
  footer = io.BytesIO(data[-FOOTER:])
  _handle(footer)  # of statistics, which TensorFlow does not write
  blocks = [
    _handle(io.BytesIO(value))
    for _, value in _limited(_block(data, *_handle(footer)))
  ]
  if sum(size for _, size in blocks) > len(data):
    raise ValueError("its blocks overlap")
  return dict(
    _limited(itertools.chain.from_iterable(_block(data, *b) for b in blocks))
  )


def _limited(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator:
  for number, pair in enumerate(pairs):
    if number == MAX_ENTRIES:
      raise ValueError(f"it has more than {MAX_ENTRIES:,} entries")
    yield pair


def _handle(stream: io.BytesIO) -> tuple[int, int]:
  """Offset and size of a block, in bytes."""
  return _varint(stream), _varint(stream)


def _block(
  data: bytes, offset: int, size: int
) -> Iterator[tuple[bytes, bytes]]:
  """Keys and values, each key said by what it does not share with the last."""
  block = data[offset : offset + size + TRAILER]
  if size < 4 or len(block) != size + TRAILER:
    raise ValueError("a block lies outside of it")
  crc = masked_crc32c(np.frombuffer(block[:-4], np.uint8))
  if crc != int.from_bytes(block[-4:], "little"):
    raise ValueError("a checksum is wrong, so it is damaged")
  if block[size]:
    raise ValueError(
      "it is compressed, and no checkpoint of TensorFlow is; load and save it"
      " there with tf.compat.v1.train.Saver"
    )
  num_restarts = int.from_bytes(block[size - 4 : size], "little")
  end = size - 4 - 4 * num_restarts
  stream, key = io.BytesIO(block[: max(0, end)]), b""
  while stream.tell() < end:
    shared, added, length = (_varint(stream) for _ in range(3))
    if shared > len(key) or shared + added > MAX_NAME:
      raise ValueError("a name in it is damaged")
    key = key[:shared] + _take(stream, added)
    yield key, _take(stream, length)


def _message(data: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
  """The numbers and the strings of a protocol buffer, by their fields."""
  stream = io.BytesIO(data)
  numbers: dict[int, int] = {}
  strings: dict[int, list[bytes]] = {}
  while stream.tell() < len(data):
    field, kind = divmod(_varint(stream), 8)
    if kind == 0:
      numbers[field] = _varint(stream)
    elif kind == 2:
      strings.setdefault(field, []).append(_take(stream, _varint(stream)))
    elif kind == 5:
      numbers[field] = int.from_bytes(_take(stream, 4), "little")
    else:
      raise ValueError("an entry is damaged")
  return numbers, strings


def _varint(stream: io.BytesIO) -> int:
  """A number, 7 bits a byte, the lowest first."""
  value = 0
  for shift in range(0, 70, 7):
    [byte] = _take(stream, 1)
    value |= (byte & 127) << shift
    if byte < 128:
      return value
  raise ValueError("a number in it has no end")


def _take(stream: io.BytesIO, size: int) -> bytes:
  if size > MAX_INDEX or len(taken := stream.read(size)) < size:
    raise ValueError("an entry goes on beyond its block")
  return taken


def _shards(index: pathlib.Path, header: bytes) -> _Shards:
  """Gives the path and size in bytes of a data file by its number."""
  numbers, _ = _message(header)
  num_shards, is_big_endian = numbers.get(1, 0), numbers.get(2, 0)
  if not 0 < num_shards <= MAX_SHARDS:
    raise ValueError(f"it is of {num_shards:,} data files")
  if is_big_endian:
    raise ValueError("it is of a big-endian machine; save it on another")

  @functools.cache
  def shard(number: int) -> tuple[pathlib.Path, int]:
    path = index.with_suffix(f".data-{number:05d}-of-{num_shards:05d}")
    if not path.is_file():
      raise ValueError(f"there is no {path.name} beside it")
    return path, path.stat().st_size

  return shard


def _entry(value: bytes, shard: _Shards) -> _Entry:
  """What a BundleEntryProto says, if that can be."""
  numbers, strings = _message(value)
  number, shard_id, offset, size, crc = (
    numbers.get(field, 0) for field in (1, 3, 4, 5, 6)
  )
  shape = tuple(
    _message(dim)[0].get(1, 0)
    for dims in strings.get(2, ())
    for dim in _message(dims)[1].get(2, ())
  )
  path, available = shard(shard_id)
  dtype, problem = DTYPES.get(number, np.dtype("V")), ""
  if number not in DTYPES:
    problem = f"it is of a type that is not read here, number {number}"
  elif 7 in strings:
    problem = "it is partitioned; save it whole with TensorFlow"
  elif (
    len(shape) > MAX_RANK
    or max(shape, default=0) > MAX_DIM
    or size != math.prod(shape) * dtype.itemsize
  ):
    raise ValueError("shape and size of an entry do not agree")
  elif offset + size > available:
    raise ValueError(f"{path.name} is cut off, it has {available:,} bytes")
  return _Entry(dtype, shape, path, offset, size, crc, problem)


def _read(name: str, entry: _Entry) -> np.ndarray:
  try:
    if entry.problem:
      raise ValueError(entry.problem)
    data = np.fromfile(
      entry.path, np.uint8, count=entry.size, offset=entry.offset
    )
    if masked_crc32c(data) != entry.crc:
      raise ValueError("its checksum is wrong, so the file is damaged")
    return data.view(entry.dtype).reshape(entry.shape)
  except (OSError, ValueError) as e:
    raise InputError(
      f"init: {name} of {entry.path} cannot be read: {e}."
    ) from e
