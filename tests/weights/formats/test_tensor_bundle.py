"""TensorFlow's checkpoints: read to the last bit, or refused in a line."""

import hashlib
import itertools

import ml_dtypes
import numpy as np
import pytest

from support import bundles
from support.bundles import number, string
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats import tensor_bundle
from truenegs_jax.weights.formats.tensor_bundle import open_bundle

DATA = "m.data-00000-of-00001"
HEADER = (b"", number(1, 1))
TWO = string(2, string(2, number(1, 2)))  # the shape [2]
FLOAT = number(1, 1)


def _arrays():
  """Of every type that is read; of no, one and several axes; one is empty."""
  shapes = itertools.cycle([(3, 2), (), (0, 4), (5,), (2, 1, 3)])
  rng = np.random.default_rng(0)
  return {
    f"scope/{dtype.name}": rng.integers(0, 2, shape).astype(dtype)
    for dtype, shape in zip(bundles.TYPES, shapes, strict=False)
  }


def _write(folder, pairs, **kwargs):
  """An index of any content, with right checksums; a data file of 8 bytes."""
  (folder / DATA).write_bytes(bytes(8))
  (folder / "m.index").write_bytes(bundles.table(pairs, **kwargs))
  return folder / "m.index"


def _refusal(index, read=""):
  """What is said of a checkpoint, or of one of its arrays: one line."""
  with pytest.raises(InputError) as e:
    arrays = open_bundle(index)
    assert read
    arrays.read(read)
  assert str(e.value).startswith("init: ") and "\n" not in str(e.value)
  return str(e.value)


@pytest.mark.parametrize("block", [1, 3, 100])
def test_what_was_written_is_read(tmp_path, block):
  given = _arrays()
  arrays = open_bundle(bundles.write(tmp_path / "m", given, block=block))
  assert arrays.shapes == {name: x.shape for name, x in given.items()}
  assert arrays.dtypes == {name: x.dtype.name for name, x in given.items()}
  for name, x in given.items():
    read = arrays.read(name)
    assert (read.dtype, read.shape) == (x.dtype, x.shape)
    assert read.tobytes() == x.tobytes()


def test_the_tests_write_what_tensorflow_writes(tmp_path):
  kinds = {
    "kernel": (6, np.float32),
    "bias": (3, np.int64),
    "kernel/adam_m": (2, ml_dtypes.bfloat16),
    "scalar": (1, np.float16),
  }
  index = bundles.write(
    tmp_path / "m",
    {
      f"layer_{i}/{name}": (np.arange(size) * (i + 1)).astype(dtype)
      for i in range(12)
      for name, (size, dtype) in kinds.items()
    }
    | {"one": np.array(1.5), "flag": np.array([[True], [False]])},
  )
  digest = hashlib.sha256()
  for path in (index, tmp_path / DATA):
    digest.update(path.read_bytes())
  # The same variables, saved by tf.compat.v1.train.Saver of TensorFlow 2.21.
  assert digest.hexdigest() == (
    "2b92109f443c38aaa6b8fbdcdc656e8768a0b70dc170179ff73403820e348024"
  )


def _plain_crc32c(data):
  crc = 0xFFFFFFFF
  for byte in data:
    crc ^= byte
    for _ in range(8):
      crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
  return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("chunk", [1, 5, 2**18])
def test_the_checksum_is_crc32c_whatever_the_length(monkeypatch, chunk):
  assert _plain_crc32c(b"123456789") == 0xE3069283  # the RFC's polynomial
  monkeypatch.setattr(tensor_bundle, "CRC_CHUNK", chunk)
  data = np.random.default_rng(0).integers(0, 256, 300).astype(np.uint8)
  for length in [*range(20), 127, 128, 129, 300]:
    crc = _plain_crc32c(data[:length].tolist())
    masked = ((crc >> 15 | crc << 17 & 2**32 - 1) + 0xA282EAD8) % 2**32
    assert tensor_bundle.masked_crc32c(data[:length]) == masked


def test_partitioned_variables_and_other_types_leave_the_rest_alone(tmp_path):
  text = number(1, 7) + TWO + number(5, 8)
  part = FLOAT + TWO + string(7, b"")
  pairs = [
    HEADER,
    (b"\0part", FLOAT),
    (b"part", part),
    (b"text", text),
    (b"x", bundles.entry(np.zeros(2, np.float32), offset=0, size=8)),
  ]
  index = _write(tmp_path, pairs)
  arrays = open_bundle(index)
  assert arrays.shapes == {name: (2,) for name in ("part", "text", "x")}
  np.testing.assert_array_equal(arrays.read("x"), [0, 0])
  assert "partitioned" in _refusal(index, "part")
  assert "of a type that is not read here, number 7" in _refusal(index, "text")


def test_no_array_is_read_before_it_is_asked_for(tmp_path):
  given = {"a": np.arange(6.0), "b": np.arange(3)}
  arrays = open_bundle(bundles.write(tmp_path / "m", given))
  with (tmp_path / DATA).open("r+b") as file:
    file.write(b"\1")
  np.testing.assert_array_equal(arrays.read("b"), given["b"])
  assert "checksum" in _refusal(tmp_path / "m.index", read="a")


def test_a_file_that_is_cut_off_is_refused_wherever_it_is(tmp_path):
  given = {"a": np.arange(2, dtype=np.float32), "a/c": np.array(True)}
  index = bundles.write(tmp_path / "m", given, block=2)
  whole, data = index.read_bytes(), (tmp_path / DATA).read_bytes()
  for length in range(len(whole)):
    index.write_bytes(whole[:length])
    _refusal(index)
  index.write_bytes(whole)
  for length in range(len(data)):
    (tmp_path / DATA).write_bytes(data[:length])
    assert f"{DATA} is cut off" in _refusal(index)
  (tmp_path / DATA).unlink()
  assert f"there is no {DATA} beside it" in _refusal(index)
  index.unlink()
  assert "No such file" in _refusal(index)


def test_no_bit_that_tips_over_changes_what_is_read(tmp_path):
  given = {"a": np.arange(2, dtype=np.float32), "a/c": np.array(True)}
  index = bundles.write(tmp_path / "m", given, block=2)
  wrong = 0
  for path in (index, tmp_path / DATA):
    whole = path.read_bytes()
    for place in range(len(whole)):
      changed = bytearray(whole)
      changed[place] ^= 1 << place % 8
      path.write_bytes(changed)
      try:
        arrays = open_bundle(index)
        read = {name: arrays.read(name) for name in arrays.shapes}
      except InputError:
        wrong += 1
        continue
      assert path == index and read.keys() == given.keys()
      for name, x in given.items():
        np.testing.assert_array_equal(read[name], x)
    path.write_bytes(whole)
  size = index.stat().st_size + (tmp_path / DATA).stat().st_size
  # All but the padding of the footer and the statistics, of which there are
  # none, are looked at.
  assert wrong > size - 60


def _pairs(value, name=b"x"):
  return [HEADER, (name, value)]


DAMAGED = {
  "no header": ([(b"x", FLOAT + TWO)], "0 data files"),
  "a million files": ([(b"", number(1, 10**6))], "1,000,000 data files"),
  "another file": (_pairs(FLOAT + number(3, 1)), "no m.data-00001-of-00001"),
  "other byte order": ([(b"", number(1, 1) + number(2, 1))], "big-endian"),
  "too small": (_pairs(FLOAT + TWO + number(5, 4)), "do not agree"),
  "negative": (
    _pairs(FLOAT + string(2, string(2, number(1, 2**64 - 4)))),
    "do not agree",
  ),
  "too many axes": (
    _pairs(FLOAT + string(2, string(2, number(1, 1)) * 65) + number(5, 4)),
    "do not agree",
  ),
  "none of far too many": (
    _pairs(FLOAT + string(2, string(2, b"") + string(2, number(1, 2**63)))),
    "do not agree",
  ),
  "beyond the file": (
    _pairs(FLOAT + TWO + number(5, 8) + number(4, 1)),
    "cut off",
  ),
  "far beyond": (
    _pairs(FLOAT + TWO + number(5, 8) + number(4, 2**63)),
    "cut off",
  ),
  "unfinished string": (_pairs(b"\x12\x7f"), "beyond its block"),
  "endless string": (_pairs(b"\x12" + b"\xff" * 9 + b"\1"), "beyond its block"),
  "endless number": (_pairs(b"\x08" + b"\xff" * 20), "no end"),
  "unknown kind of field": (_pairs(b"\x0f"), "an entry is damaged"),
  "name too long": (_pairs(FLOAT, b"x" * 1_001), "a name in it is damaged"),
  "too many": (
    [HEADER, *((b"%05d" % i, FLOAT) for i in range(20_000))],
    "more than 20,000 entries",
  ),
  "too large": (_pairs(FLOAT + string(9, bytes(2**20))), "larger than"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_an_index_that_says_what_cannot_be_is_refused(tmp_path, name):
  pairs, words = DAMAGED[name]
  index = _write(tmp_path, pairs, block=len(pairs))
  assert words in _refusal(index)


def _with_blocks(*bodies, handles, kind=b"\0"):
  """A table of blocks as they are; `handles` lead to them, by offset, size."""
  file = b""
  entries = [
    (b"%03d" % i, bundles.varint(offset) + bundles.varint(size))
    for i, (offset, size) in enumerate(handles)
  ]
  for body in (*bodies, bundles.block_of(entries, 1)):
    start, size = len(file), len(body)
    file += body + kind + bundles.checksum(body + kind)
  footer = bytes(2) + bundles.varint(start) + bundles.varint(size)
  return file + footer.ljust(40, b"\0") + tensor_bundle.MAGIC


BLOCK = bundles.block_of([HEADER], 1)
ONE = (0, len(BLOCK))
BROKEN = {
  "compressed": (_with_blocks(BLOCK, handles=[ONE], kind=b"\1"), "compressed"),
  "the same block twice": (_with_blocks(BLOCK, handles=[ONE] * 999), "overlap"),
  "outside": (_with_blocks(BLOCK, handles=[(2**60, 40)]), "outside"),
  "no room for restarts": (_with_blocks(b"", handles=[(0, 0)]), "outside"),
  "more shared than there is": (
    _with_blocks(b"\1\0\0" + BLOCK[-8:], handles=[(0, 11)]),
    "a name in it is damaged",
  ),
  "restarts from before its beginning": (
    _with_blocks(b"\xff" * 4, handles=[(0, 4)]),
    "0 data files",
  ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_table_that_is_no_table_is_refused(tmp_path, name):
  data, words = BROKEN[name]
  index = _write(tmp_path, [HEADER])
  index.write_bytes(data)
  assert words in _refusal(index)
  index.write_bytes(_with_blocks(BLOCK, handles=[ONE]))
  assert not open_bundle(index).shapes  # the rest of it was right
