"""Reading safetensors files and pickles, also hostile ones.

test_flax_files.py has the files of Flax.
"""

import io
import json
import os
import pickle
import struct
import sys
import types
import zipfile

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.arrays import open_arrays

WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"
FLAX = "flax_model.msgpack"


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
  loaded = arrays.load()
  for name, x in tensors.items():
    assert loaded[name].dtype == x.dtype
    np.testing.assert_array_equal(loaded[name], x)


def test_reads_every_type_from_one_file(tmp_path):
  _save(tmp_path / WEIGHTS, _tensors())
  arrays = open_arrays(tmp_path)
  assert arrays.path == tmp_path / WEIGHTS
  _assert_holds(arrays, _tensors())


def test_types_unknown_to_numpy_are_refused(tmp_path):
  _write(tmp_path, {"a": _entry((8,), dtype="F8_E4M3")})
  with pytest.raises(InputError, match="cannot be read"):
    open_arrays(tmp_path).load()


ENTRY = json.dumps(_entry()).encode()
LIBRARY = "deserializing header"  # the rest depends on the library's version
# Case -> header, number of bytes after it, words of the message.
HOSTILE_HEADERS = {
  "not json": (b"hello", 0, LIBRARY),
  "no arrays": (b"{}", 0, "no arrays"),
  "overlap": ({"a": _entry(), "b": _entry(offsets=(4, 12))}, 12, LIBRARY),
  "file too short": ({"a": _entry()}, 7, LIBRARY),
  "terminal escape codes": ({"a\x1b[2J\nb": _entry()}, 8, r"'a\x1b[2J\nb'"),
  "empty name": ({"": _entry()}, 8, "'' is not a valid name"),
  "long header": ({"x" * 2**20: _entry()}, 8, "longer than 1,048,576 bytes"),
  "long name": ({"x" * 10**6: _entry()}, 8, "is not a valid name"),
}


@pytest.mark.parametrize("case", HOSTILE_HEADERS)
def test_a_hostile_header_is_refused(tmp_path, case):
  header, num_bytes, expected = HOSTILE_HEADERS[case]
  _write(tmp_path, header, b"\0" * num_bytes)
  assert expected in _error_message(tmp_path)


@pytest.mark.parametrize("num_bytes", [0, 7, 40, -1])
def test_a_truncated_file_is_refused(tmp_path, num_bytes):
  _save(tmp_path / WEIGHTS, _tensors())
  content = (tmp_path / WEIGHTS).read_bytes()
  (tmp_path / WEIGHTS).write_bytes(content[:num_bytes])
  assert WEIGHTS in _error_message(tmp_path)


@pytest.mark.parametrize("name", [WEIGHTS, FLAX, PICKLE])
def test_a_pointer_of_git_lfs_is_recognized(tmp_path, name):
  pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
  (tmp_path / name).write_text(pointer)
  assert "git lfs pull" in _error_message(tmp_path)


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
@pytest.mark.parametrize("name", [PICKLE, FLAX, WEIGHTS, "model.pt"])
def test_code_in_a_pickle_is_not_executed(tmp_path, name, wrap):
  canary = tmp_path / "canary"
  _Canary.path = str(canary)
  pickled = pickle.dumps({"a": _Canary()}, protocol=2)
  (tmp_path / name).write_bytes(wrap(pickled))
  # A file of an unknown name is not opened.
  reads = WEIGHTS if name == "model.pt" else name
  assert reads in _error_message(tmp_path)
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
  path = tmp_path / PICKLE
  torch.save(tensors, path, _use_new_zipfile_serialization=zipped)
  arrays = open_arrays(tmp_path)
  _assert_holds(
    arrays,
    {
      name: x.float().numpy().astype(str(x.dtype).removeprefix("torch."))
      for name, x in tensors.items()
    },
  )
  torch.save([x], path, _use_new_zipfile_serialization=zipped)
  assert "no named arrays" in _error_message(tmp_path)
  path.write_bytes(path.read_bytes()[:-50])
  assert "cannot be read" in _error_message(tmp_path)


@pytest.mark.parametrize(
  ("make", "words"),
  [
    (lambda torch: torch.zeros(1).expand(10**6, 10**6), "4,000,000,040,000"),
    (
      lambda torch: torch.zeros(1).bfloat16().expand(10**6, 10**6),
      "2,000,000,040,000 bytes",
    ),
    (lambda torch: torch.empty(2, 2, device="meta"), "no named arrays"),
    (lambda torch: torch.eye(2).to_sparse(), "no named arrays"),
    (lambda torch: {"a": torch.eye(2)}, "no named arrays"),
  ],
  ids=["expanded", "expanded bfloat16", "meta", "sparse", "nested"],
)
def test_what_is_no_dense_array_is_refused(tmp_path, make, words):
  torch = pytest.importorskip("torch")
  tied = torch.ones(10_000)
  torch.save({"a": tied, "b": tied}, tmp_path / PICKLE)
  open_arrays(tmp_path)
  torch.save({"a": tied, "b": make(torch)}, tmp_path / PICKLE)
  assert words in _error_message(tmp_path)


def test_a_pickle_needs_a_recent_torch(tmp_path, monkeypatch):
  (tmp_path / PICKLE).write_bytes(b"")
  for torch in None, types.SimpleNamespace(__version__="2.9.1"):
    monkeypatch.setitem(sys.modules, "torch", torch)
    message = _error_message(tmp_path)
    assert "pip install torch==" in message and FLAX in message


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
  (folder / WEIGHTS).rename(folder / PICKLE)
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


@pytest.mark.parametrize("name", [WEIGHTS, FLAX, PICKLE])
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
