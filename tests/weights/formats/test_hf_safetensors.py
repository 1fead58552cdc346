"""Files of safetensors: what is read, and what hostile ones come to."""

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
CUT = "model-{}-of-2.safetensors"


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
  """Two shards and their index, as transformers has them."""
  tensors = tensors or _tensors()
  places = {}
  for i in (1, 2):
    part = dict(itertools.islice(tensors.items(), i - 1, None, 2))
    _save(folder / CUT.format(i), part)
    places |= dict.fromkeys(part, CUT.format(i))
  _write_index(folder, places)
  return places


def _write_index(folder, places):
  index = {"metadata": {"total_size": 1}, "weight_map": places}
  (folder / INDEX).write_text(json.dumps(index))


def _entry(shape=(2,), offsets=(0, 8), dtype="F32"):
  return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def _write(folder, header, data=b"\0" * 8, *, num_bytes=None):
  """A file of safetensors, by hand."""
  if not isinstance(header, bytes):
    header = json.dumps(header).encode()
  size = struct.pack("<Q", len(header) if num_bytes is None else num_bytes)
  (folder / WEIGHTS).write_bytes(size + header + data)


def _refused(folder):
  """The message of the InputError, of which all can be shown."""
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
    read = arrays.read(name)
    assert read.dtype == x.dtype
    np.testing.assert_array_equal(read, x)


def test_one_file_is_read_with_every_type(tmp_path):
  _save(tmp_path / WEIGHTS, _tensors())
  arrays = open_arrays(tmp_path)
  assert arrays.path == tmp_path / WEIGHTS
  assert arrays.dtypes["c.bfloat"] == "bfloat16"
  _assert_holds(arrays, _tensors())


def test_shards_are_as_the_one_file(tmp_path):
  _save_shards(tmp_path)
  arrays = open_arrays(tmp_path)
  assert arrays.path == tmp_path
  _assert_holds(arrays, _tensors())


def test_types_that_numpy_lacks_are_named_and_not_read(tmp_path):
  _write(tmp_path, {"a": _entry((8,), dtype="F8_E4M3")})
  arrays = open_arrays(tmp_path)
  assert arrays.dtypes == {"a": "f8_e4m3"}
  with pytest.raises(InputError, match="'a' is of type f8_e4m3"):
    arrays.read("a")


ENTRY = json.dumps(_entry()).encode()
DEEP = 100_000
LIBRARY = "deserializing header"  # it says more, in each version otherwise
# What is in the header, the bytes behind it, and what the message says.
HOSTILE = {
  "no json": (b"hello", 0, LIBRARY),
  "no arrays": (b"{}", 0, "no arrays"),
  "lists in lists": (b"[" * DEEP, 0, LIBRARY),
  "overlap": ({"a": _entry(), "b": _entry(offsets=(4, 12))}, 12, LIBRARY),
  "a hole": ({"a": _entry(), "b": _entry(offsets=(9, 17))}, 17, LIBRARY),
  "beyond the end": ({"a": _entry()}, 7, LIBRARY),
  "more than the arrays": ({"a": _entry()}, 9, LIBRARY),
  "a size too many": ({"a": _entry((3,))}, 8, LIBRARY),
  "twice negative": ({"a": _entry((-2, -1))}, 8, LIBRARY),
  "around 2^64": ({"a": _entry((2**61 + 1, 2), (0, 16))}, 16, LIBRARY),
  "huge, of no bytes": ({"a": _entry((2**62, 0), (0, 0))}, 0, "'a' cannot"),
  "of 33 axes": ({"a": _entry((1,) * 32 + (2,))}, 8, "'a' cannot"),
  "no type": ({"a": _entry(dtype="\x1b[31m")}, 8, LIBRARY),
  "no utf-8": (b'{"\xff":' + ENTRY + b"}", 8, LIBRARY),
  "a terminal's commands": ({"a\x1b[2J\nb": _entry()}, 8, r"'a\x1b[2J\nb'"),
  "no name": ({"": _entry()}, 8, "'' is no name"),
  "a long name": ({"x" * 10**6: _entry()}, 8, "is no name"),
  "twice": (b'{"a":%b,"a":%b}' % (ENTRY, ENTRY), 8, "'a' is there twice"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_header_is_refused(tmp_path, what):
  header, data, said = HOSTILE[what]
  _write(tmp_path, header, b"\0" * data)
  assert said in _refused(tmp_path)


@pytest.mark.parametrize("num_bytes", [0, 1, 7, 8, 9, 40, -1])
def test_a_file_that_was_cut_off_is_refused(tmp_path, num_bytes):
  _save(tmp_path / WEIGHTS, _tensors())
  whole = (tmp_path / WEIGHTS).read_bytes()
  (tmp_path / WEIGHTS).write_bytes(whole[:num_bytes])
  assert WEIGHTS in _refused(tmp_path)


def test_a_pointer_of_git_lfs_is_known(tmp_path):
  pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
  (tmp_path / WEIGHTS).write_text(pointer)
  assert "git lfs pull" in _refused(tmp_path)


INDEXES = {
  "no json": ("{", "Expecting"),
  "no utf-8": ("\udcff", "utf-8"),
  "deep": ("[" * DEEP, "recursion"),
  "a list": ("[]", "weight_map"),
  "an empty map": ('{"weight_map": {}}', "weight_map"),
  "a number for a file": ('{"weight_map": {"a": 1}}', "is no text"),
  "twice": ('{"weight_map": {"a": "x", "a": "y"}}', "'a' is there twice"),
  "long": ('{"weight_map": %s}' % (" " * 2**20), "1048576 bytes"),
}


@pytest.mark.parametrize("what", INDEXES)
def test_a_hostile_index_is_refused(tmp_path, what):
  text, said = INDEXES[what]
  (tmp_path / INDEX).write_text(text, "utf-8", "surrogateescape")
  message = _refused(tmp_path)
  assert said in message and INDEX in message


@pytest.mark.parametrize(
  "shard",
  ["../x.safetensors", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "a\0b"],
)
def test_no_shard_is_looked_for_elsewhere(tmp_path, shard):
  folder = tmp_path / "folder"
  folder.mkdir()
  _save(tmp_path / "x.safetensors", _tensors())
  _write_index(folder, dict.fromkeys(_tensors(), shard))
  assert "leads out of the folder" in _refused(folder)


def test_missing_shards_are_named_with_their_arrays(tmp_path):
  places = _save_shards(tmp_path)
  (tmp_path / CUT.format(2)).unlink()
  message = _refused(tmp_path)
  count = list(places.values()).count(CUT.format(2))
  assert CUT.format(2) in message and CUT.format(1) not in message
  assert f"{count} of {len(places)} arrays" in message


def test_an_array_has_to_be_where_the_index_has_it(tmp_path):
  places = _save_shards(tmp_path)
  _write_index(tmp_path, places | {"a.weight": places["b.half"]})
  assert "'a.weight'" in _refused(tmp_path)
  _write_index(tmp_path, places | {"nowhere": places["b.half"]})
  assert "'nowhere'" in _refused(tmp_path)


def test_two_shards_may_not_hold_one_array(tmp_path):
  places = _save_shards(tmp_path)
  tensors = {name: _tensors()[name] for name in places if name != "a.weight"}
  _save(tmp_path / CUT.format(1), tensors)
  message = _refused(tmp_path)
  assert "'b.half'" in message and CUT.format(1) in message


class _Canary:
  """Makes a folder when its pickle is loaded."""

  path = ""

  def __reduce__(self):
    return (os.mkdir, (self.path,))


def _zipped(pickled):
  """A pickle as torch.save lays it out."""
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, "w") as file:
    file.writestr("archive/data.pkl", pickled)
    file.writestr("archive/version", b"3\n")
  return buffer.getvalue()


@pytest.mark.parametrize("wrap", [lambda x: x, _zipped], ids=["plain", "zip"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", WEIGHTS, "model.pt"])
def test_what_is_pickled_is_never_executed(tmp_path, name, wrap):
  canary = tmp_path / "canary"
  _Canary.path = str(canary)
  pickled = pickle.dumps({"a": _Canary()}, protocol=2)
  (tmp_path / name).write_bytes(wrap(pickled))
  assert name in _refused(tmp_path)
  assert not canary.exists()
  pickle.loads(pickled)
  assert canary.exists(), "it would have been made"


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_of_a_pickle_are_read(tmp_path, zipped):
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
  assert "named tensors" in _refused(tmp_path)
  path.write_bytes(path.read_bytes()[:-50])
  assert "PyTorch does not read it" in _refused(tmp_path)


def test_without_a_recent_torch_a_pickle_is_left_alone(tmp_path, monkeypatch):
  (tmp_path / "pytorch_model.bin").write_bytes(b"")
  for torch in None, types.SimpleNamespace(__version__="2.9.1"):
    monkeypatch.setitem(sys.modules, "torch", torch)
    message = _refused(tmp_path)
    assert "truenegs_jax[torch]" in message and "save_pretrained" in message


@pytest.mark.parametrize("name", ["tf_model.h5", "flax_model.msgpack", "x.pth"])
def test_other_formats_are_named(tmp_path, name):
  (tmp_path / name).touch()
  assert name in _refused(tmp_path)


def test_an_empty_folder_and_none_are_refused(tmp_path):
  assert WEIGHTS in _refused(tmp_path)
  assert "No such file" in _refused(tmp_path / "none")


def test_links_stay_in_the_folder(tmp_path):
  folder = tmp_path / "folder"
  folder.mkdir()
  _save(folder / "real", _tensors())
  (folder / WEIGHTS).symlink_to("real")
  _assert_holds(open_arrays(folder), _tensors())
  (tmp_path / "link").symlink_to("folder")  # of the user's own
  _assert_holds(open_arrays(tmp_path / "link"), _tensors())
  (folder / "real").rename(tmp_path / "real")
  assert "No such file" in _refused(folder)
  (folder / WEIGHTS).unlink()
  (folder / WEIGHTS).symlink_to("../real")
  assert "leads out of the folder" in _refused(folder)
  (folder / WEIGHTS).rename(folder / "x")
  _write_index(folder, dict.fromkeys(_tensors(), "x"))
  assert "leads out of the folder" in _refused(folder)
  (folder / "x").rename(folder / INDEX)
  assert "leads out of the folder" in _refused(folder)


@pytest.mark.parametrize("inner", ["", "discriminator"])
def test_links_of_the_hubs_cache_stay_in_their_repository(tmp_path, inner):
  repository = tmp_path / "models--X--Y"
  folder = repository / "snapshots" / "0123" / inner
  folder.mkdir(parents=True)
  for owner in (repository, tmp_path / "models--X--Z"):
    (owner / "blobs").mkdir(parents=True)
    _save(owner / "blobs" / "abc", _tensors())
  up = "../" * (3 if inner else 2)
  (folder / WEIGHTS).symlink_to(f"{up}blobs/abc")
  _assert_holds(open_arrays(folder), _tensors())
  (folder / WEIGHTS).unlink()
  (folder / WEIGHTS).symlink_to(f"{up}../models--X--Z/blobs/abc")
  assert "leads out of the folder" in _refused(folder)


@pytest.mark.parametrize("name", [WEIGHTS, INDEX])
def test_what_is_no_file_is_not_opened(tmp_path, name):
  path = tmp_path / name
  path.mkdir()
  assert "not a file" in _refused(tmp_path)
  path.rmdir()
  os.mkfifo(path)  # would never end
  assert "not a file" in _refused(tmp_path)
  path.unlink()
  path.symlink_to(name)
  _refused(tmp_path)
  path.unlink()
  path.symlink_to("/dev/zero")
  assert "leads out" in _refused(tmp_path)


def test_a_file_that_changes_is_not_read(tmp_path):
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
  """The bytes with one place overwritten, cut out or copied elsewhere."""
  at = draw(st.integers(0, len(data) - 1))
  size = draw(st.integers(0, 20))
  piece = draw(
    st.one_of(
      st.binary(min_size=1, max_size=8),
      st.sampled_from([b"0", b"-", b"[", b"]", b'"', b",", b"9", b"{"]),
      st.integers(0, len(data)).map(lambda i: data[i : i + size]),
    )
  )
  return data[:at] + piece + data[at + draw(st.sampled_from([0, 1, size])) :]


def _bytes_by_hand(data):
  """Name -> shape and bytes of an array, by the format's description."""
  (size,) = struct.unpack("<Q", data[:8])
  header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
  header.pop("__metadata__", None)
  return {
    name: (tuple(x["shape"]), body[slice(*x["data_offsets"])])
    for name, x in header.items()
  }


def _read_all(folder):
  """Name -> shape and bytes of an array; None where there is an InputError."""
  try:
    arrays = open_arrays(folder)
    read = {name: arrays.read(name) for name in arrays.shapes}
  except InputError as e:
    assert str(e).startswith("init: ") and str(e).isprintable()
    return None
  for name, x in read.items():
    assert arrays.shapes[name] == x.shape
    assert arrays.dtypes[name] == x.dtype.name
  return {name: (x.shape, x.tobytes()) for name, x in read.items()}


@pytest.mark.parametrize("victim", [WEIGHTS, INDEX])
@hypothesis.settings(deadline=None, derandomize=True, max_examples=150)
@hypothesis.given(drawn=st.data())
def test_random_damage_is_refused_or_read(victim, drawn):
  tensors = {name: x for name, x in _tensors().items() if name[0] in "acf"}
  with tempfile.TemporaryDirectory() as place:
    folder = pathlib.Path(place)
    if victim == WEIGHTS:
      _save(folder / WEIGHTS, tensors)
    else:
      _save_shards(folder, tensors)
    data = drawn.draw(_damage((folder / victim).read_bytes())) or b"x"
    (folder / victim).write_bytes(data)
    read = _read_all(folder)
  if read is not None and victim == WEIGHTS:
    assert read == _bytes_by_hand(data)
  elif read is not None:
    assert read == {n: (x.shape, x.tobytes()) for n, x in tensors.items()}
