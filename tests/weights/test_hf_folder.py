"""Folders of strangers: formats, hostile files, old names and prefixes."""

import io
import itertools
import json
import os
import pickle
import struct
import sys
import types
import zipfile

import ml_dtypes
import msgpack
import numpy as np
import pytest
import safetensors.numpy

from support import flax_files, tiny
from support.weight_files import (
  assert_same_tree,
  edit_config,
  edit_tensors,
  load_params,
  random_params,
  read_tensors,
  strip_prefix,
  write_export,
)
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.hf_folder import (
  open_arrays,
  open_network,
  write_checksums,
)

WEIGHTS = "model.safetensors"
PICKLE = "pytorch_model.bin"
FLAX = "flax_model.msgpack"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def _header(header, num_data, num_bytes=None):
  """Returns a safetensors file without the library's checks."""
  if not isinstance(header, bytes):
    header = json.dumps(header).encode()
  size = struct.pack("<Q", len(header) if num_bytes is None else num_bytes)
  return size + header + b"\0" * num_data


def _array(*parts):
  return msgpack.ExtType(1, msgpack.packb(parts))


ENTRY = {"dtype": "F32", "shape": (2,), "data_offsets": (0, 8)}
FOUR = _array([1], "float32", b"\0" * 4)
GOOD = msgpack.packb({"a": {"kernel": FOUR}})
# Case -> file, its content (or a value for msgpack), words of the message.
HOSTILE = {
  "not json": (WEIGHTS, _header(b"hello", 8), "deserializing header"),
  "too short": (WEIGHTS, _header({"a": ENTRY}, 7), "deserializing header"),
  "long header": (WEIGHTS, _header(b"", 8, 2**20 + 1), "header has 1,048,577"),
  "empty file": (WEIGHTS, b"", "cannot be read"),
  "of Git LFS": (WEIGHTS, LFS, "git lfs pull"),
  "cut off": (FLAX, GOOD[:-1], "incomplete input"),
  "deep": (FLAX, b"\x81\xa1a" * 10**5 + GOOD, "StackError"),
  "a number": (FLAX, {"a": 3}, "'a' is not one array"),
  "huge": (FLAX, {"a": _array([2**62, 0], "float32", b"")}, "too big"),
  "two names": (FLAX, {"kernel": FOUR, "embedding": FOUR}, "'weight' is not"),
}


def _assert_refused(folder, *words):
  """Checks the InputError, whose message must be printable."""
  with pytest.raises(InputError, match="^init: ") as error:
    open_arrays(folder)[1]()
  message = str(error.value)
  assert message.isprintable() and len(message) < 2_000
  for word in (str(folder), *words):
    assert word in message


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path, no_torch, case):
  name, value, words = HOSTILE[case]
  data = value if isinstance(value, bytes) else msgpack.packb(value)
  (tmp_path / name).write_bytes(data)
  _assert_refused(tmp_path, words)


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
@pytest.mark.parametrize("name", [PICKLE, FLAX, WEIGHTS])
def test_code_in_a_pickle_is_not_executed(tmp_path, name, wrap):
  canary = tmp_path / "canary"
  _Canary.path = str(canary)
  pickled = pickle.dumps({"a": _Canary()}, protocol=2)
  (tmp_path / name).write_bytes(wrap(pickled))
  _assert_refused(tmp_path, name)
  assert not canary.exists()
  pickle.loads(pickled)
  assert canary.exists(), "the pickle is harmless"


@pytest.mark.parametrize("kind", ["safetensors", "zip", "old pickle"])
def test_reads_every_type(tmp_path, kind):
  x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
  tensors = {
    "a.weight": x,
    "b.half": x.astype(np.float16),
    "c.bfloat": x.astype(ml_dtypes.bfloat16),
    "d.ids": np.arange(6)[None],
  }
  if kind == "safetensors":
    safetensors.numpy.save_file(tensors, tmp_path / WEIGHTS)
  else:
    torch = pytest.importorskip("torch")
    saved = {x: torch.tensor(np.float32(y)) for x, y in tensors.items()}
    saved["b.half"] = saved["b.half"].half()
    saved["c.bfloat"] = saved["c.bfloat"].bfloat16().T
    saved["d.ids"] = saved["d.ids"].long()
    tensors["c.bfloat"] = tensors["c.bfloat"].T
    path = tmp_path / PICKLE
    torch.save(saved, path, _use_new_zipfile_serialization=kind == "zip")
  shapes, load = open_arrays(tmp_path)
  assert shapes == {name: x.shape for name, x in tensors.items()}
  loaded = load()
  for name, x in tensors.items():
    assert loaded[name].dtype == x.dtype
    np.testing.assert_array_equal(loaded[name], x)


@pytest.mark.parametrize("kind", ["expanded", "meta", "sparse", "list"])
def test_what_is_no_dense_array_is_refused(tmp_path, kind):
  torch = pytest.importorskip("torch")
  tied = torch.ones(10_000)
  torch.save({"a": tied, "b": tied}, tmp_path / PICKLE)
  open_arrays(tmp_path)
  special = {
    "expanded": torch.zeros(1).expand(10**6, 10**6),
    "meta": torch.empty(2, 2, device="meta"),
    "sparse": torch.eye(2).to_sparse(),
  }
  value = {"b": special[kind]} if kind in special else [tied]
  torch.save(value, tmp_path / PICKLE)
  _assert_refused(tmp_path, "4,000,000,0" if kind == "expanded" else PICKLE)


def test_a_pickle_needs_a_recent_torch(tmp_path, monkeypatch):
  (tmp_path / PICKLE).write_bytes(b"")
  for torch in None, types.SimpleNamespace(__version__="2.9.1"):
    monkeypatch.setitem(sys.modules, "torch", torch)
    _assert_refused(tmp_path, "pip install torch==", FLAX)


@pytest.mark.parametrize("name", [WEIGHTS, FLAX, PICKLE])
def test_links_folders_and_pipes_are_refused(tmp_path, name):
  path = tmp_path / "folder" / name
  path.mkdir(parents=True)
  _assert_refused(path.parent, "not a file")
  path.rmdir()
  os.mkfifo(path)  # reading it would block forever
  _assert_refused(path.parent, "not a file")
  for target in ("../real", "/dev/zero"):
    path.unlink()
    path.symlink_to(target)
    _assert_refused(path.parent, "leads out of the folder")


@pytest.mark.parametrize("kind", ["pair", "pooled"])
def test_a_flax_file_is_read_bit_for_bit_and_before_a_pickle(
  tmp_path, no_torch, kind
):
  model = tiny.make_model(max_positions=64)
  if kind == "pooled":
    model = tiny.make_bert(max_positions=64, pooler=True)
  write_export(tmp_path, model)
  for role in model.roles:
    flax_files.convert(tmp_path / role)
    (tmp_path / role / PICKLE).write_bytes(b"not read")
  loaded, lines = load_params(tmp_path, model, complete=True)
  assert_same_tree(loaded, random_params(model))
  assert not lines


WRAPPERS = ["_orig_mod.", "module.", "model.", "module._orig_mod.", "0.auto."]


@pytest.mark.parametrize(
  ("kind", "wrapper"),
  [
    *[("bert", wrapper) for wrapper in WRAPPERS],
    *itertools.product(["bare", "modern"], ["model.", "0.auto."]),
  ],
)
def test_a_common_prefix_of_names_is_taken_off_and_said(
  tmp_path, kind, wrapper
):
  backbone = "modern" if kind == "modern" else "encoder"
  model = tiny.make_bert(max_positions=64, backbone=backbone)
  folder = write_export(tmp_path, model) / "bert"
  if kind == "bare":
    strip_prefix(folder)
  expected, drawn = load_params(folder, model)
  tensors = read_tensors(folder)
  old = dict.fromkeys(tensors)
  edit_tensors(folder, old | {f"{wrapper}{x}": y for x, y in tensors.items()})
  # What does not begin with it, such as a loss, is outside of the network.
  edit_tensors(folder, {"loss.weight": np.ones(3, np.float32)})
  loaded, lines = load_params(folder, model)
  assert_same_tree(loaded, expected)
  line = f"init: read the names of '{folder}' without the prefix '{wrapper}'."
  left_out = f"init: left out what this model lacks of '{folder}': loss."
  assert lines == [line, left_out, *drawn]


@pytest.mark.parametrize("make", [tiny.make_model, tiny.make_bert])
def test_reads_old_names_and_ignores_old_constants(tmp_path, make):
  model = make(max_positions=64)
  write_export(tmp_path, model)
  for role in model.roles:
    family = "bert" if role == "bert" else "electra"
    new = {f"{family}.embeddings.position_ids": np.arange(64)[None]}
    for name, x in read_tensors(tmp_path / role).items():
      if "LayerNorm" in name:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        new |= {name: None, old.replace("LayerNorm.bias", "LayerNorm.beta"): x}
      if name == "cls.predictions.bias":
        new |= {name: None, "cls.predictions.decoder.bias": x}
    edit_tensors(tmp_path / role, new)
  assert_same_tree(load_params(tmp_path, model)[0], random_params(model))


def test_a_config_without_model_type_is_that_of_its_class(tmp_path):
  model = tiny.make_bert(max_positions=64)
  folder = write_export(tmp_path, model) / "bert"
  edit_config(folder, {"model_type": None})
  assert_same_tree(load_params(folder, model)[0], random_params(model))
  for classes in None, [], ["GPT2Model"], "BertModel":
    edit_config(folder, {"architectures": classes})
    with pytest.raises(InputError, match='Add it .* "model_type": "bert"'):
      open_network(folder)
  edit_config(folder, {"model_type": "gpt2"})
  with pytest.raises(InputError, match="model_type 'gpt2'.*bert, electra"):
    open_network(folder)


def test_other_files_of_a_folder_must_be_its_own(tmp_path):
  folder = write_export(tmp_path, tiny.make_bert()) / "bert"
  for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(InputError, match=f"{name}.*leads out"):
      open_network(folder)
    (tmp_path / name).replace(folder / name)
  (folder / "config.json").unlink()
  with pytest.raises(InputError, match="holds no config.json"):
    open_network(folder)


def test_every_file_that_is_read_has_a_checksum(tmp_path):
  folder = write_export(tmp_path, tiny.make_bert()) / "bert"
  write_checksums(folder)
  path = folder / "SHA256SUMS"
  text = path.read_text()
  for sums in (
    "",
    text.replace(".safetensors", ".bin"),
    "\n".join(text.split("\n")[:-2]),
    text + "0" * 64 + text[64:],
  ):
    path.write_text(sums)
    with pytest.raises(InputError, match="is not as listed"):
      open_network(folder)
  # Marks of binary files and lines of other files are read over.
  path.write_text(f"# x\n{text[:64]}  ../a\n{text}".replace("  ", " *"))
  open_network(folder)
  edit_config(folder, {"hidden_dropout_prob": 0.5})
  with pytest.raises(InputError, match="config.json' is not as .*damaged"):
    open_network(folder)
