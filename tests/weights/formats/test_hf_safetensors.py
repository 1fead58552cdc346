"""Reading safetensors files, shards and pickles, also hostile ones."""

import io
import itertools
import json
import os
import pathlib
import pickle
import struct
import sys
import tempfile
import types
import zipfile

import hypothesis
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import strategies as st

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats.hf_safetensors import open_arrays

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = "model-{}-of-2.safetensors"


def _tensors():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(3, 4)).astype(np.float32)
  return {
    "a.weight": x,
    "b.half": x.astype(np.float16),
    "c.bfloat": x.astype(ml_dtypes.bfloat16),
    "d.scalar": np.asarray(2.5, np.float64),
    "e.none": np.zeros((0, 4), np.float32),
    "f.position_ids": np.arange(6)[None],
    "g.mask": np.array([True, False]),
  }


def _save(path, tensors):
  safetensors.numpy.save_file(tensors, path)


def _save_shards(folder, tensors=None):
  """Writes two shards and their index, as transformers does."""
  tensors = tensors or _tensors()
  weight_map = {}
  for i in (1, 2):
    part = dict(itertools.islice(tensors.items(), i - 1, None, 2))
    _save(folder / SHARD.format(i), part)
    weight_map |= dict.fromkeys(part, SHARD.format(i))
  _write_index(folder, weight_map)
  return weight_map


def _write_index(folder, weight_map):
  index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
  (folder / INDEX).write_text(json.dumps(index))


def _entry(shape=(2,), offsets=(0, 8), dtype="F32"):
  return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def _write(folder, header, data=b"\0" * 8, *, num_bytes=None):
  """Writes a safetensors file without the library's checks."""
  if not isinstance(header, bytes):
    header = json.dumps(header).encode()
  size = struct.pack("<Q", len(header) if num_bytes is None else num_bytes)
  (folder / WEIGHTS).write_bytes(size + header + data)


def _error_message(folder):
  """Returns the message of the InputError, which must be printable."""
  with pytest.raises(InputError, match="^init: ") as error:
    open_arrays(folder)
  message = str(error.value)
  assert message.isprintable() and len(message) < 30_000
  assert str(folder) in message
  return message


def _assert_holds(arrays, tensors):
  assert arrays.shapes == {name: x.shape for name, x in tensors.items()}
  assert arrays.dtypes == {name: x.dtype.name for name, x in tensors.items()}
  for name, x in tensors.items():
    loaded = arrays.read(name)
    assert loaded.dtype == x.dtype
    np.testing.assert_array_equal(loaded, x)


def test_reads_every_type_from_one_file(tmp_path):
  _save(tmp_path / WEIGHTS, _tensors())
  arrays = open_arrays(tmp_path)
  assert arrays.path == tmp_path / WEIGHTS
  assert arrays.dtypes["c.bfloat"] == "bfloat16"
  _assert_holds(arrays, _tensors())


def test_reads_shards(tmp_path):
  _save_shards(tmp_path)
  arrays = open_arrays(tmp_path)
  assert arrays.path == tmp_path
  _assert_holds(arrays, _tensors())


def test_types_unknown_to_numpy_are_refused(tmp_path):
  _write(tmp_path, {"a": _entry((8,), dtype="F8_E4M3")})
  arrays = open_arrays(tmp_path)
  assert arrays.dtypes == {"a": "f8_e4m3"}
  with pytest.raises(InputError, match="'a' is of type f8_e4m3"):
    arrays.read("a")


ENTRY = json.dumps(_entry()).encode()
DEEP = 100_000
LIBRARY = "deserializing header"  # the rest depends on the library's version
# Case -> header, number of bytes after it, words of the message.
HOSTILE_HEADERS = {
  "not json": (b"hello", 0, LIBRARY),
  "no arrays": (b"{}", 0, "no arrays"),
  "nested lists": (b"[" * DEEP, 0, LIBRARY),
  "overlap": ({"a": _entry(), "b": _entry(offsets=(4, 12))}, 12, LIBRARY),
  "gap": ({"a": _entry(), "b": _entry(offsets=(9, 17))}, 17, LIBRARY),
  "file too short": ({"a": _entry()}, 7, LIBRARY),
  "file too long": ({"a": _entry()}, 9, LIBRARY),
  "shape too large": ({"a": _entry((3,))}, 8, LIBRARY),
  "two negative sizes": ({"a": _entry((-2, -1))}, 8, LIBRARY),
  "64-bit overflow": (
    {"a": _entry((2**61 + 1, 2), (0, 16))},
    16,
    LIBRARY,
  ),
  "huge empty shape": ({"a": _entry((2**62, 0), (0, 0))}, 0, "'a' cannot"),
  "33 axes": ({"a": _entry((1,) * 32 + (2,))}, 8, "'a' cannot"),
  "unknown type": ({"a": _entry(dtype="\x1b[31m")}, 8, LIBRARY),
  "not utf-8": (b'{"\xff":' + ENTRY + b"}", 8, LIBRARY),
  "terminal escape codes": ({"a\x1b[2J\nb": _entry()}, 8, r"'a\x1b[2J\nb'"),
  "empty name": ({"": _entry()}, 8, "'' is not a valid name"),
  "long name": ({"x" * 10**6: _entry()}, 8, "is not a valid name"),
  "repeated": (b'{"a":%b,"a":%b}' % (ENTRY, ENTRY), 8, "'a' is repeated"),
}


@pytest.mark.parametrize("case", HOSTILE_HEADERS)
def test_a_hostile_header_is_refused(tmp_path, case):
  header, num_bytes, expected = HOSTILE_HEADERS[case]
  _write(tmp_path, header, b"\0" * num_bytes)
  assert expected in _error_message(tmp_path)


@pytest.mark.parametrize("num_bytes", [0, 1, 7, 8, 9, 40, -1])
def test_a_truncated_file_is_refused(tmp_path, num_bytes):
  _save(tmp_path / WEIGHTS, _tensors())
  content = (tmp_path / WEIGHTS).read_bytes()
  (tmp_path / WEIGHTS).write_bytes(content[:num_bytes])
  assert WEIGHTS in _error_message(tmp_path)


def test_a_pointer_of_git_lfs_is_recognized(tmp_path):
  pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
  (tmp_path / WEIGHTS).write_text(pointer)
  assert "git lfs pull" in _error_message(tmp_path)


HOSTILE_INDEXES = {
  "not json": ("{", "Expecting"),
  "not utf-8": ("\udcff", "UTF-8"),
  "deep": ("[" * DEEP, "nested in"),
  "a list": ("[]", "not a JSON object"),
  "an empty map": ('{"weight_map": {}}', "weight_map"),
  "number as file name": ('{"weight_map": {"a": 1}}', "is not a string"),
  "repeated": ('{"weight_map": {"a": "x", "a": "y"}}', "'a' is repeated"),
  "long": ('{"weight_map": %s}' % (" " * 2**20), "1,048,576 bytes"),
}


@pytest.mark.parametrize("case", HOSTILE_INDEXES)
def test_a_hostile_index_is_refused(tmp_path, case):
  text, expected = HOSTILE_INDEXES[case]
  (tmp_path / INDEX).write_text(text, "utf-8", "surrogateescape")
  message = _error_message(tmp_path)
  assert expected in message and INDEX in message


@pytest.mark.parametrize(
  "shard",
  ["../x.safetensors", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "a\0b"],
)
def test_shards_outside_the_folder_are_refused(tmp_path, shard):
  folder = tmp_path / "folder"
  folder.mkdir()
  _save(tmp_path / "x.safetensors", _tensors())
  _write_index(folder, dict.fromkeys(_tensors(), shard))
  assert "leads out of the folder" in _error_message(folder)


def test_missing_shards_are_listed_with_the_number_of_arrays(tmp_path):
  weight_map = _save_shards(tmp_path)
  (tmp_path / SHARD.format(2)).unlink()
  message = _error_message(tmp_path)
  count = list(weight_map.values()).count(SHARD.format(2))
  assert SHARD.format(2) in message and SHARD.format(1) not in message
  assert f"{count} of {len(weight_map)} arrays" in message


def test_arrays_must_be_in_the_files_that_the_index_names(tmp_path):
  weight_map = _save_shards(tmp_path)
  _write_index(tmp_path, weight_map | {"a.weight": weight_map["b.half"]})
  assert "'a.weight'" in _error_message(tmp_path)
  _write_index(tmp_path, weight_map | {"nowhere": weight_map["b.half"]})
  assert "'nowhere'" in _error_message(tmp_path)


def test_an_array_in_two_shards_is_refused(tmp_path):
  weight_map = _save_shards(tmp_path)
  tensors = {
    name: _tensors()[name] for name in weight_map if name != "a.weight"
  }
  _save(tmp_path / SHARD.format(1), tensors)
  message = _error_message(tmp_path)
  assert "'b.half'" in message and SHARD.format(1) in message


class _Canary:
  """Creates a folder when its pickle is executed."""

  path = ""

  def __reduce__(self):
    return (os.mkdir, (self.path,))


def _zip(pickled):
  """Wraps a pickle in a zip file, as torch.save does."""
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, "w") as file:
    file.writestr("archive/data.pkl", pickled)
    file.writestr("archive/version", b"3\n")
  return buffer.getvalue()


@pytest.mark.parametrize("wrap", [bytes, _zip], ids=["plain", "zip"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", WEIGHTS, "model.pt"])
def test_code_in_a_pickle_is_not_executed(tmp_path, name, wrap):
  canary = tmp_path / "canary"
  _Canary.path = str(canary)
  pickled = pickle.dumps({"a": _Canary()}, protocol=2)
  (tmp_path / name).write_bytes(wrap(pickled))
  assert name in _error_message(tmp_path)
  assert not canary.exists()
  pickle.loads(pickled)
  assert canary.exists(), "the pickle is harmless"


@pytest.mark.parametrize("zipped", [True, False])
def test_reads_the_tensors_of_a_pickle(tmp_path, zipped):
  torch = pytest.importorskip("torch")
  x = torch.arange(6.0).reshape(2, 3)
  tensors = {
    "a": x,
    "half": x.half(),
    "bfloat": x.bfloat16(),
    "transposed": x.T,
    "ids": torch.arange(3),
  }
  path = tmp_path / "pytorch_model.bin"
  torch.save(tensors, path, _use_new_zipfile_serialization=zipped)
  arrays = open_arrays(tmp_path)
  _assert_holds(
    arrays,
    {
      name: x.float().numpy().astype(arrays.dtypes[name])
      for name, x in tensors.items()
    },
  )
  assert arrays.dtypes["bfloat"] == "bfloat16"
  arrays.release()
  np.testing.assert_array_equal(arrays.read("a"), x.numpy())
  torch.save([x], path, _use_new_zipfile_serialization=zipped)
  assert "named tensors" in _error_message(tmp_path)
  path.write_bytes(path.read_bytes()[:-50])
  assert "PyTorch cannot read it" in _error_message(tmp_path)


def test_a_pickle_needs_a_recent_torch(tmp_path, monkeypatch):
  (tmp_path / "pytorch_model.bin").write_bytes(b"")
  for torch in None, types.SimpleNamespace(__version__="2.9.1"):
    monkeypatch.setitem(sys.modules, "torch", torch)
    message = _error_message(tmp_path)
    assert "pip install torch==" in message and "save_pretrained" in message


@pytest.mark.parametrize("name", ["tf_model.h5", "flax_model.msgpack", "x.pth"])
def test_files_of_other_formats_are_listed(tmp_path, name):
  (tmp_path / name).touch()
  assert name in _error_message(tmp_path)


def test_an_empty_or_missing_folder_is_refused(tmp_path):
  assert WEIGHTS in _error_message(tmp_path)
  assert "No such file" in _error_message(tmp_path / "none")


def test_links_out_of_the_folder_are_refused(tmp_path):
  folder = tmp_path / "folder"
  folder.mkdir()
  _save(folder / "real", _tensors())
  (folder / WEIGHTS).symlink_to("real")
  _assert_holds(open_arrays(folder), _tensors())
  (tmp_path / "link").symlink_to("folder")  # made by the user
  _assert_holds(open_arrays(tmp_path / "link"), _tensors())
  (folder / "real").rename(tmp_path / "real")
  assert "No such file" in _error_message(folder)
  (folder / WEIGHTS).unlink()
  (folder / WEIGHTS).symlink_to("../real")
  assert "leads out of the folder" in _error_message(folder)
  (folder / WEIGHTS).rename(folder / "x")
  _write_index(folder, dict.fromkeys(_tensors(), "x"))
  assert "leads out of the folder" in _error_message(folder)
  (folder / "x").rename(folder / INDEX)
  assert "leads out of the folder" in _error_message(folder)


@pytest.mark.parametrize("subfolder", ["", "discriminator"])
def test_hub_cache_links_must_stay_in_their_repository(tmp_path, subfolder):
  repository = tmp_path / "models--X--Y"
  folder = repository / "snapshots" / "0123" / subfolder
  folder.mkdir(parents=True)
  for owner in (repository, tmp_path / "models--X--Z"):
    (owner / "blobs").mkdir(parents=True)
    _save(owner / "blobs" / "abc", _tensors())
  up = "../" * (3 if subfolder else 2)
  (folder / WEIGHTS).symlink_to(f"{up}blobs/abc")
  _assert_holds(open_arrays(folder), _tensors())
  (folder / WEIGHTS).unlink()
  (folder / WEIGHTS).symlink_to(f"{up}../models--X--Z/blobs/abc")
  assert "leads out of the folder" in _error_message(folder)


@pytest.mark.parametrize("name", [WEIGHTS, INDEX])
def test_folders_pipes_and_devices_are_refused(tmp_path, name):
  path = tmp_path / name
  path.mkdir()
  assert "not a file" in _error_message(tmp_path)
  path.rmdir()
  os.mkfifo(path)  # reading it would block forever
  assert "not a file" in _error_message(tmp_path)
  path.unlink()
  path.symlink_to(name)
  _error_message(tmp_path)
  path.unlink()
  path.symlink_to("/dev/zero")
  assert "leads out" in _error_message(tmp_path)


def test_a_changed_file_is_refused(tmp_path):
  _save(tmp_path / WEIGHTS, _tensors())
  arrays = open_arrays(tmp_path)
  os.utime(tmp_path / WEIGHTS, ns=(0, 0))
  with pytest.raises(InputError, match="^init: .* it has changed"):
    arrays.read("a.weight")
  arrays = open_arrays(tmp_path)
  (tmp_path / WEIGHTS).unlink()
  with pytest.raises(InputError, match="^init: .* No such file"):
    arrays.read("a.weight")
  os.mkfifo(tmp_path / WEIGHTS)
  with pytest.raises(InputError, match="^init: .* not a file"):
    arrays.read("a.weight")


@st.composite
def _damage(draw, data):
  """Returns the bytes with one range overwritten, removed or repeated."""
  at = draw(st.integers(0, len(data) - 1))
  size = draw(st.integers(0, 20))
  inserted = draw(
    st.one_of(
      st.binary(min_size=1, max_size=8),
      st.sampled_from([b"0", b"-", b"[", b"]", b'"', b",", b"9", b"{"]),
      st.integers(0, len(data)).map(lambda i: data[i : i + size]),
    )
  )
  return data[:at] + inserted + data[at + draw(st.sampled_from([0, 1, size])) :]


def _parse_file(data):
  """Returns {name: (shape, bytes)} of a file, by the format's description."""
  (size,) = struct.unpack("<Q", data[:8])
  header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
  header.pop("__metadata__", None)
  return {
    name: (tuple(x["shape"]), body[slice(*x["data_offsets"])])
    for name, x in header.items()
  }


def _read_all(folder):
  """Returns {name: (shape, bytes)} of a folder; None after an InputError."""
  try:
    arrays = open_arrays(folder)
    loaded = {name: arrays.read(name) for name in arrays.shapes}
  except InputError as e:
    assert str(e).startswith("init: ") and str(e).isprintable()
    return None
  for name, x in loaded.items():
    assert arrays.shapes[name] == x.shape
    assert arrays.dtypes[name] == x.dtype.name
  return {name: (x.shape, x.tobytes()) for name, x in loaded.items()}


@pytest.mark.parametrize("victim", [WEIGHTS, INDEX])
@hypothesis.settings(deadline=None, derandomize=True, max_examples=150)
@hypothesis.given(drawn=st.data())
def test_damaged_files_are_refused_or_read(victim, drawn):
  tensors = {name: x for name, x in _tensors().items() if name[0] in "acf"}
  with tempfile.TemporaryDirectory() as path:
    folder = pathlib.Path(path)
    if victim == WEIGHTS:
      _save(folder / WEIGHTS, tensors)
    else:
      _save_shards(folder, tensors)
    data = drawn.draw(_damage((folder / victim).read_bytes())) or b"x"
    (folder / victim).write_bytes(data)
    loaded = _read_all(folder)
  if loaded is not None and victim == WEIGHTS:
    assert loaded == _parse_file(data)
  elif loaded is not None:
    assert loaded == {n: (x.shape, x.tobytes()) for n, x in tensors.items()}
