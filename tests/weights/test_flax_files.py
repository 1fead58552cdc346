"""Reading `flax_model.msgpack`, the format of ELECTRA's without PyTorch."""

import shutil

import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from flax import serialization

from support import flax_files, runs, tiny
from support.weight_files import (
  assert_same_tree,
  edit_tensors,
  load_params,
  random_params,
  read_tensors,
  write_export,
)
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights import find
from truenegs_jax.weights.arrays import open_arrays

MODELS = {
  "pair": lambda: tiny.make_model(max_positions=64),
  "bert": lambda: tiny.make_bert(max_positions=64),
  "pooled": lambda: tiny.make_bert(max_positions=64, pooler=True),
}


def _write(folder, kind="pair"):
  """Writes a network per role as Flax saves it; returns model and params."""
  model = MODELS[kind]()
  params = random_params(model)
  write_export(folder, model, params)
  for role in model.roles:
    (folder / role / "SHA256SUMS").unlink(missing_ok=True)
    flax_files.convert(folder / role)
  return model, params


@pytest.mark.parametrize("kind", MODELS)
def test_starts_from_flax_files_bit_for_bit_without_torch(
  tmp_path, no_torch, kind
):
  model, params = _write(tmp_path, kind)
  loaded, lines = load_params(tmp_path, model, complete=True)
  assert_same_tree(loaded, params)
  assert not lines
  assert set(find.Weights(str(tmp_path)).networks) == set(model.roles)


def test_reads_half_precision(tmp_path, no_torch):
  model = MODELS["bert"]()
  write_export(tmp_path, model)
  folder = tmp_path / "bert"
  halves = {
    name: x.astype(jnp.bfloat16) for name, x in read_tensors(folder).items()
  }
  edit_tensors(folder, halves)
  flax_files.convert(folder)
  arrays = open_arrays(folder)
  loaded = arrays.load()
  for name, x in halves.items():
    assert loaded[name].dtype == x.dtype
    np.testing.assert_array_equal(loaded[name], x)


def test_equals_the_pickle_and_is_read_before_it(tmp_path):
  torch = pytest.importorskip("torch")
  model, _ = _write(tmp_path / "flax")
  shutil.copytree(tmp_path / "flax", tmp_path / "torch")
  for role in model.roles:
    folder = tmp_path / "torch" / role
    arrays = open_arrays(folder)
    tensors = {n: torch.tensor(x) for n, x in arrays.load().items()}
    torch.save(tensors, folder / "pytorch_model.bin")
    shutil.copy(folder / "pytorch_model.bin", tmp_path / "flax" / role)
    (folder / flax_files.FILE).unlink()
    assert open_arrays(folder).path.name == "pytorch_model.bin"
    assert open_arrays(tmp_path / "flax" / role).path.name == flax_files.FILE
  a, b = (load_params(tmp_path / x, model)[0] for x in ("flax", "torch"))
  assert_same_tree(a, b)


def _array(*parts, code=1):
  return msgpack.ExtType(code, msgpack.packb(parts))


FOUR = _array([1], "float32", b"\0" * 4)
GOOD = msgpack.packb({"a": {"kernel": FOUR}})
# Case -> a value or a file, and words of the message.
HOSTILE = {
  "empty": (b"", "incomplete input"),
  "cut off": (GOOD[:-1], "incomplete input"),
  "longer": (GOOD + b"\0", "extra data"),
  "text": (b"hello", "extra data"),
  "pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
  "deep": (b"\x81\xa1a" * 10**5 + GOOD, "StackError"),
  "deep names": (b"\x81\xa1a" * 400 + GOOD, "not a valid name"),
  "claims a map": (b"\xdf\xff\xff\xff\xff", "max_map_len"),
  "claims a list": (b"\x81\xa1a\xdd\xff\xff\xff\xff", "max_array_len"),
  "claims an array": (b"\x81\xa1a\xc9\xff\xff\xff\xff\1", "max_ext_len"),
  "claims bytes": (b"\x81\xa1a\xc6\xff\xff\xff\xff", "incomplete input"),
  "no map": (3, "not one map"),
  "no arrays": ({}, "no arrays"),
  "a number": ({"a": 3}, "'a' is not one array"),
  "complex": ({"a": _array(1.0, 2.0, code=2)}, "'a' is not one array"),
  "objects": ({"a": _array([1], "object", b"\0" * 8)}, "OBJECT array"),
  "another size": ({"a": _array([3], "float32", b"\0" * 8)}, "reshape"),
  "huge and empty": ({"a": _array([2**62, 0], "float32", b"")}, "too big"),
  "escape codes": ({"a\x1b[2J": FOUR}, r"'a\x1b[2J' is not a valid name"),
  "two names": ({"kernel": FOUR, "embedding": FOUR}, "'weight' is not one"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path, no_torch, case):
  value, words = HOSTILE[case]
  data = value if isinstance(value, bytes) else msgpack.packb(value)
  (tmp_path / flax_files.FILE).write_bytes(data)
  with pytest.raises(InputError, match=r"^init: .* cannot be read: ") as caught:
    open_arrays(tmp_path)
  message = str(caught.value)
  assert words in message and str(tmp_path) in message
  assert message.isprintable() and len(message) < 1_000


def test_an_array_of_up_to_16_bytes_is_read(tmp_path):
  tree = {"a": {"scale": np.float32([1])}, "b": {"bias": np.float16([2])}}
  (tmp_path / flax_files.FILE).write_bytes(serialization.to_bytes(tree))
  assert open_arrays(tmp_path).load() == {"a.weight": 1, "b.bias": 2}


@pytest.mark.slow
def test_the_papers_recipe_starts_from_flax_files_without_torch(
  tmp_path, no_torch, one_device
):
  model, params = _write(tmp_path / "pair")
  corpus = tmp_path / "corpus.txt"
  words = [f"w{i % 60 + 5}" for i in range(1_000)]
  corpus.write_text("\n".join(" ".join(words[i:][:9]) for i in range(900)))
  flags = runs.demo_flags(
    corpus,
    init=tmp_path / "pair",
    data__vocab="init",
    model__variant="init",
    model__dtype="float32",
    model__max_positions=64,
    generator__multiplier=0.5,
    optim__lr=1e-12,  # too small to change any weight
    optim__warmup_steps=0,
    steps=1,
    batch_size=4,
    length=16,
  )
  code, output = runs.run_in_process(
    tmp_path / "run", flags, "electra_base:continue,baseline"
  )
  assert code == 0 and "torch is not installed" in output, output
  trained, _ = load_params(tmp_path / "run", model)
  assert_same_tree(trained, params)
